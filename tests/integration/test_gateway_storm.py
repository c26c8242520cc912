"""Many clients that ask a gateway for streams, hang up and ask again, all at once: nobody waits, and nothing is left over."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from domain.events import ModelInfo, Registered
from domain.ids import Incarnation, ModelId, NodeId
from services.config import Limits
from services.gateway.catalogue import Catalogue
from services.gateway.forwarding import Forwarder
from tests.support.odd_server import DONE, Heard, Reply, event, odd_server
from tests.support.stall import Watch, elsewhere
from tests.support.waiting import until

ROUNDS, EVENTS = 4, 40
WHOLE = [*(event(str(number)) for number in range(EVENTS)), DONE]
STALL_S = 0.5
"""The longest time of the processor for which the loop may do nothing else; the engine lives in it, too, and nothing besides."""
BODY = json.dumps({"model": "m", "stream": True, "messages": []}).encode()


async def talks(_: Heard, reply: Reply) -> None:
    """Tell a whole stream, event by event."""
    await reply.head(content_type="text/event-stream")
    for number in range(EVENTS):
        await reply.chunk(event(str(number)))
    await reply.chunk(DONE)
    await reply.end()


async def ask(url: str, count: int) -> list[bytes]:
    """Ask for a stream, and hang up without a word once so many events have come; return them."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        told: list[bytes] = []
        while len(told) < count:
            line = await reader.readline()
            assert line, told[-1:]
            if line.startswith(b"data: "):
                told.append(line + b"\n")
        return told
    finally:
        writer.transport.abort()


async def storm(directory: Path, clients: int) -> tuple[float, list[list[bytes]]]:
    """Have so many clients come and go together; return the longest stall of the loop in seconds, and the last streams."""
    catalogue = Catalogue(directory / "catalogue.json")
    forwarder = Forwarder("gateway-main", catalogue, Limits(), SystemClock())
    server = HttpServer(forwarder.serve, connections_max=1024, served_by="gateway-main")
    whole: list[list[bytes]] = []

    async def whole_one(url: str) -> None:
        whole.append(await ask(url, EVENTS + 1))

    async with AsyncExitStack() as stack:
        stack.push_async_callback(forwarder.close)
        stack.push_async_callback(server.stop)
        url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        node = await stack.enter_async_context(odd_server(talks))
        known = Registered(url=node.url, models=(ModelInfo(id=ModelId("m"), local_id="m"),), version="0", depth=2)
        catalogue.apply(NodeId("n1"), Incarnation("a" * 32), known)
        watch = Watch()
        for _ in range(ROUNDS):
            await elsewhere(ask(url, 1 + number % EVENTS) for number in range(clients))
        await elsewhere(whole_one(url) for _ in range(clients))
        stalled_s = watch.end()
        await until("nothing to be in progress", lambda: forwarder.in_progress == 0)
    return stalled_s, whole


async def test_fifty_clients_that_hang_up_and_come_back_together_get_whole_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, whole = await storm(tmp_path, 50)
    assert whole == [WHOLE] * 50
    assert [record.message for record in caplog.records if record.name.startswith("leaseway")] == []


@pytest.mark.long
async def test_two_hundred_clients_that_hang_up_and_come_back_together_stall_no_gateway(tmp_path: Path) -> None:
    stalled_s, whole = await storm(tmp_path, 200)
    assert stalled_s < STALL_S
    assert whole == [WHOLE] * 200

"""Many clients that ask a gateway for streams, hang up and ask again, all at once: nobody waits, and nothing is left over."""

import asyncio
import json
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

CLIENTS, ROUNDS, EVENTS = 50, 4, 40
STALL_S = 0.25
"""The longest time of the processor for which the loop may do nothing else; the engine lives in it, too."""
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


async def test_fifty_clients_that_hang_up_and_come_back_together_stall_no_gateway_and_get_whole_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue = Catalogue(tmp_path / "catalogue.json")
    forwarder = Forwarder("gateway-main", catalogue, Limits(), SystemClock())
    server = HttpServer(forwarder.serve, connections_max=1024, served_by="gateway-main")
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    whole: list[list[bytes]] = []

    async def whole_one() -> None:
        whole.append(await ask(url, EVENTS + 1))

    async with odd_server(talks) as node:
        known = Registered(url=node.url, models=(ModelInfo(id=ModelId("m"), local_id="m"),), version="0", depth=2)
        catalogue.apply(NodeId("n1"), Incarnation("a" * 32), known)
        watch = Watch()
        for _ in range(ROUNDS):
            await elsewhere(ask(url, 1 + number % EVENTS) for number in range(CLIENTS))
        await elsewhere(whole_one() for _ in range(CLIENTS))
        assert watch.end() < STALL_S
        await until("nothing to be in progress", lambda: forwarder.in_progress == 0)
    await server.stop()
    await forwarder.close()
    assert whole == [[*(event(str(number)) for number in range(EVENTS)), DONE]] * CLIENTS
    assert [record.message for record in caplog.records if record.name.startswith("leaseway")] == []

"""Whoever leaves, at whatever moment: its place is free at once, the facts say that it left, and no operator is woken."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import aiohttp
import pytest

from domain.ids import lease_id
from services import lend_head
from tests.support.lending_pair import PATH, Pair, pair
from tests.support.local_nodes import CHAT, GENERATION, LocalNode, local_node, model_at
from tests.support.moments import elapsed
from tests.support.odd_server import DONE, Heard, Reply, event, odd_server, stream
from tests.support.waiting import until

STREAM = json.dumps(CHAT | {"stream": True}).encode()
LAST = event("all of it") + DONE.rstrip()
"""An event, and a terminator without its blank line: two writes to the client in one step of the loop."""
EMPTY = (0, 0, 0, 0)


class Leaver:
    """A client on a bare socket that asks for a stream, and can go at one moment and no later."""

    def __init__(self, local: LocalNode) -> None:
        where = urlsplit(local.url)
        self._socket = socket.create_connection((where.hostname, where.port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(STREAM)}\r\n\r\n".encode() + STREAM)

    def leave(self) -> None:
        """Reset the connection now."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def leaving(whole: bytes, leave: Callable[[], None]) -> Callable[[asyncio.StreamWriter], None]:
    """Return what writes the rest of an answer so that its reader hears of that just before it hears that its client has left."""

    def write(writer: asyncio.StreamWriter) -> None:
        writer.write(whole)
        asyncio.get_running_loop().call_soon(leave)

    return write


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


SSE_HEAD = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


async def test_a_client_that_leaves_as_its_stream_ends_has_left_and_its_engine_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with odd_server() as engine, local_node([model_at(engine.url)]) as node:
        client = Leaver(node)

        async def script(_: Heard, reply: Reply) -> None:
            await reply.raw(b"HTTP/1.1 200 OK\r\n" + SSE_HEAD + b"\r\n")
            leaving(chunked(LAST), client.leave)(reply._writer)

        engine.script = script
        await node.said("queue.cancelled")
        await until("nothing to be left", lambda: node.counts() == EMPTY)
        assert node.tags("queue") == ["queue.cancelled"]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_client_that_leaves_as_its_turn_in_the_engine_comes_leaves_no_place_taken() -> None:
    async with odd_server() as engine, local_node([model_at(engine.url)]) as node:
        first = Leaver(node)

        async def script(heard: Heard, reply: Reply) -> None:
            await until("the second one to wait", lambda: node.counts()[0] == 1)
            second.leave()
            await stream([DONE])(heard, reply)

        engine.script = script
        await engine.arrived()
        second = Leaver(node)
        await node.said("queue.cancelled")
        await until("nothing to be left", lambda: node.counts() == EMPTY)
        assert sorted(node.tags("queue")) == ["queue.cancelled", "queue.finished"]
        assert len(engine.heard) == 1
        first.leave()


@contextlib.asynccontextmanager
async def helper_that(end: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[str]:
    """Run a helper that takes one lend, begins to answer it as a stream, and lets `end` write the rest; give its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(int(head.partition("content-length:")[2].split("\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\n" + f"{lend_head.OUTCOME}: answered\r\n".encode() + SSE_HEAD + b"\r\n")
        end(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def test_a_client_that_leaves_as_its_lent_stream_ends_frees_its_slot_at_the_helper(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair() as two:
        client = Leaver(two.owner)
        await until("the request to be held", lambda: two.owner.counts()[0] == 1)
        async with helper_that(leaving(chunked(LAST), client.leave)) as url:
            two.grant(url=url)
            await two.owner.said("queue.cancelled")
            assert two.owner.tags("lend")[-1] == "lend.cut_off"
            assert two.owner.counts()[2] == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def head_of(two: Pair, number: int) -> bytes:
    """Return the head of a true lend."""
    body = lend_head.body_hash(STREAM)
    lease = lease_id(GENERATION, two.versions, 0)
    grant = two.owner.node.copies.shown(two.link.link, lease)
    assert grant is not None
    head = lend_head.LendHead(
        request=f"req_{number:032x}",  # type: ignore[arg-type]
        lease=lease,
        link=two.link.link,
        owner=two.link.owner,
        helper=two.link.helper,
        model=two.link.helper_model,
        path=PATH,
        work=1,
        remaining_ms=1000,
        size_bytes=len(STREAM),
        body_sha256=body,
    )
    sealed = lend_head.sealed(head, two.owner.node.lender._signer, grant)
    rows = "".join(f"{name}: {value}\r\n" for name, value in sealed.items())
    where = urlsplit(two.helper.url).netloc
    return (
        f"POST {lend_head.PREFIX}{PATH} HTTP/1.1\r\nHost: {where}\r\nExpect: 100-continue\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(STREAM)}\r\n{rows}\r\n"
    ).encode()


async def test_an_owner_that_hangs_up_right_after_the_head_of_its_lend_frees_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair(depth=4) as two:
        two.grant(slots=4)
        where = urlsplit(two.helper.url)
        for number in range(8):
            with socket.create_connection((where.hostname, where.port)) as owner:
                owner.sendall(head_of(two, number))
            await two.helper.said("borrow.accepted", number + 1)
            await until("the place to be free", lambda: two.helper.counts("theirs") == EMPTY, timeout_s=2)
        assert len(two.helper.of("borrow.returned")) == 8
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


ODD = {
    "html error": b"HTTP/1.1 500 No\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n<html>no</html>",
    "no JSON": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{",
    "cut": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{",
    "cut stream": b"HTTP/1.1 200 OK\r\n" + SSE_HEAD + b"\r\n4\r\ndata\r\n",
    "no terminator": b"HTTP/1.1 200 OK\r\n" + SSE_HEAD + b"\r\n" + chunked(event("a")),
    "stream": b"HTTP/1.1 200 OK\r\n" + SSE_HEAD + b"\r\n" + chunked(event("a"), event("b"), DONE),
    "no chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "no gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nno",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "not modified": b"HTTP/1.1 304 No\r\n\r\n",
    "early words": b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "nothing": b"",
}
"""What an engine may answer before it drops the connection."""
ENDS_OF_LENDS = ("lend.answered", "lend.returned", "lend.busy", "lend.cut_off", "lend.relay_refused")
ENDS_OF_BORROWED = ("borrow.finished", "borrow.returned")
ENDS = ("queue.finished", "queue.failed", "queue.cancelled")


async def test_after_a_storm_of_odd_engines_and_clients_that_leave_every_place_is_free_and_everything_ended_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dice = random.Random(7)

    async def odd(_: Heard, reply: Reply) -> None:
        await elapsed(dice.random() * 0.02)
        answer = ODD[dice.choice(sorted(ODD))]
        middle = dice.randrange(len(answer) + 1)
        await reply.raw(answer[:middle])
        await asyncio.sleep(0)
        await reply.raw(answer[middle:])
        reply.die()

    async def ask(client: aiohttp.ClientSession) -> None:
        leaves_after_s = dice.choice((0.001, 0.01, 0.05, 0.1, 30, 30))
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(leaves_after_s):
                async with client.post(PATH, json=CHAT | {"stream": dice.random() < 0.5}) as got:
                    await got.read()

    async with pair(slots=2, depth=2) as two:
        two.engine.script = two.helping.script = odd
        two.engine.drop_all()
        for _ in range(4):
            two.grant()
            await asyncio.gather(*(ask(two.client) for _ in range(40)))
        await until("the owner to be empty", lambda: two.owner.counts() == EMPTY)
        await until("the helper to be empty", lambda: two.helper.counts("theirs") == EMPTY)
        lent, home = requests(two.owner, "lend.lent"), requests(two.owner, *ENDS_OF_LENDS)
        assert lent == home
        assert len(lent) > 10, "the storm reached the helper"
        taken, given_back = requests(two.helper, "borrow.accepted"), requests(two.helper, *ENDS_OF_BORROWED)
        assert {request: given_back[request] for request in taken} == taken
        assert max(requests(two.owner, *ENDS).values()) == 1
        for local in (two.owner, two.helper):
            assert local.node.ingress._bodies._used_bytes == 0
            for served in local.node.models.values():
                assert not served.serving._tickets
                assert not served.sizes._unsized
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def requests(local: LocalNode, *tags: str) -> Counter[str]:
    """Return how often each request stands in the facts of these tags."""
    return Counter(str(getattr(fact, "request", "")) for tag in tags for fact in local.of(tag))

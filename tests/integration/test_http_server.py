"""The HTTP server at its edge: deadlines, bounds, ids, quiet refusals, and handlers that end when the client goes."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from adapters.clock import SystemClock
from adapters.http.body import check_headers, read_bytes
from adapters.http.errors import STATUS, ApiError
from adapters.http.server import Call, Deadlines, Handler, HttpServer
from tests.support.moments import elapsed

FAST = Deadlines(first_byte_s=0.3, headers_s=0.5, idle_s=0.4)


async def echo(call: Call) -> web.StreamResponse:
    check_headers(call.request, 1000)
    body = await read_bytes(call.request, 1000, SystemClock())
    return web.json_response({"path": call.path, "size": len(body)}, headers=call.id_headers())


@contextlib.asynccontextmanager
async def serving(
    handler: Handler = echo, *, deadlines: Deadlines = FAST, connections: int = 100
) -> AsyncIterator[int]:
    server = HttpServer(handler, connections_max=connections, deadlines=deadlines, served_by="n1")
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.stop()


async def exchange(port: int, data: bytes) -> bytes:
    """Send `data`, and return all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def post(body: bytes, *headers: str) -> bytes:
    rows = ["POST /x HTTP/1.1", "Host: a", "Connection: close", "Content-Type: application/json", *headers]
    return ("\r\n".join(rows) + f"\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nX-A", b"G"],
    ids=["silent", "half headers", "half line", "one byte"],
)
async def test_a_connection_that_does_not_get_on_is_closed(sent: bytes):
    async with serving() as port:
        assert await exchange(port, sent) == b""


async def test_headers_that_drip_are_cut_although_each_drop_comes_in_time():
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closing = asyncio.ensure_future(reader.read())
        writer.write(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(5):
                while not closing.done():
                    writer.write(b"X-A: b\r\n")
                    await asyncio.wait({closing}, timeout=0.05)
        assert closing.done()
        assert await closing == b""
        writer.close()


async def test_an_idle_connection_is_closed_and_a_used_one_is_kept():
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(post(b"{}").replace(b"Connection: close\r\n", b""))
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_one_connection_too_many_is_told_so_and_the_others_go_on():
    async with serving(connections=2, deadlines=Deadlines()) as port:
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        refused = await exchange(port, b"")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"too_many_connections"' in refused
        assert b"Retry-After: 1" in refused
        for reader, writer in first:
            writer.write(post(b"{}"))
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()


@pytest.mark.parametrize(
    "smuggled",
    [
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /y HTTP/1.1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd",
        b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nX-A: a\r\n b\r\n\r\n",
        b"GET /x HTTP/1.1\nHost: a\n\n",
        b"GET /x HTTP/1.1\r\nHost: x/v1/models?a=\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: u@a\r\n\r\n",
        b"GET /x HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(100)) + b"\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",
    ],
    ids=(
        *("length and chunked", "two lengths", "signed length", "odd encoding", "space before colon", "folded"),
        *("bare line feeds", "path in host", "user in host", "no host", "many headers", "long header", "tls"),
    ),
)
async def test_an_ambiguous_request_is_refused_quietly_and_its_connection_closed(
    smuggled: bytes, caplog: pytest.LogCaptureFixture
):
    async with serving() as port:
        with caplog.at_level(logging.DEBUG, logger="leaseway"):
            answer = await exchange(port, smuggled)
    # what cannot be read as HTTP/1.1 is answered as 1.0
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert answer.count(b"HTTP/1.") == 1
    assert b"aiohttp" not in answer
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"
    assert caplog.records == []


async def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_so():
    async with serving() as port:
        assert b" 413 " in await exchange(port, post(b"x" * 1001))
        chunked = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert b" 413 " in await exchange(port, chunked + b"".join(b"64\r\n%b\r\n" % (b"x" * 100) for _ in range(20)))


async def test_a_compressed_or_untyped_body_is_refused_unread():
    async with serving() as port:
        assert b'"unsupported_content_encoding"' in await exchange(port, post(b"{}", "Content-Encoding: gzip"))
        assert b" 200 " in await exchange(port, post(b"{}", "Content-Encoding: identity"))
        for kind in ("text/plain", "multipart/form-data; boundary=x", ""):
            wrong = post(b"{}").replace(b"application/json", kind.encode())
            assert b'"unsupported_content_type"' in await exchange(port, wrong)
        assert b" 200 " in await exchange(port, post(b"{}").replace(b"/json", b"/json; charset=utf-8"))


async def test_every_answer_carries_our_id_and_a_sound_one_of_the_client():
    async with serving() as port, aiohttp.ClientSession() as client:
        for stated, echoed in (
            ("abc-1.2:3_4", True),
            ("a" * 128, True),
            ("a" * 129, False),
            ("a b", False),
            ("é", False),
        ):
            async with client.post(f"http://127.0.0.1:{port}/x", json={}, headers={"x-request-id": stated}) as answer:
                ours = answer.headers["leaseway-request"]
                assert ours.startswith("req_")
                assert answer.headers["x-request-id"] == (stated if echoed else ours)
        async with client.post(f"http://127.0.0.1:{port}/x", data=b"x", headers={"Content-Type": "a/b"}) as answer:
            assert answer.status == 415
            assert answer.headers["x-request-id"] == answer.headers["leaseway-request"]
            assert answer.headers["leaseway-served-by"] == "n1"


async def test_a_handler_is_cancelled_when_its_client_goes():
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_: Call) -> web.StreamResponse:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async with serving(wait) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"{}"))
        async with asyncio.timeout(5):
            await began.wait()
            writer.transport.abort()
            await cancelled.wait()


async def test_a_fault_of_ours_is_logged_once_and_told_without_its_words(caplog: pytest.LogCaptureFixture):
    async def fail(_: Call) -> web.StreamResponse:
        raise ValueError("inner secret")

    async with serving(fail) as port:
        answer = await exchange(port, post(b"{}"))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"x-should-retry: false" in answer
    assert b"secret" not in answer
    assert [record.message for record in caplog.records] == ["handler_failed"]


def test_every_own_error_has_openais_shape_and_tells_whether_to_try_again():
    for code, status in STATUS.items():
        error = ApiError(code, "why", param="p")
        document = json.loads(error.body())["error"]
        assert document == {"message": "why", "type": error.kind, "code": code, "param": "p"}
        assert error.status == status
        headers = error.headers()
        assert ("Retry-After" in headers) == (status == 503), code
        if status in {500, 502} and code != "forward_failed":  # what a relay could not pass on has not started
            assert headers["x-should-retry"] == "false"
        if status in {400, 404, 503}:
            assert "x-should-retry" not in headers


async def test_a_client_that_takes_nothing_of_a_whole_answer_is_dropped_and_one_that_reads_slowly_is_not():
    async def much(_: Call) -> web.StreamResponse:
        return web.Response(body=bytes(16 * 1024 * 1024))

    async with serving(much, deadlines=Deadlines(take_s=1)) as port:
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        idle.transport.pause_reading()  # type: ignore[attr-defined]  # the transport of a socket has it
        idle.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        reader, slow = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        slow.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        got, looks = 0, 0
        async with asyncio.timeout(30):
            while part := await reader.read(256 * 1024):
                got, looks = got + len(part), looks + 1
                if looks < 20:  # for twice as long as the other one has
                    await elapsed(0.1)
            assert got > 16 * 1024 * 1024
            idle.transport.resume_reading()  # type: ignore[attr-defined]  # the transport of a socket has it
            with pytest.raises(ConnectionError):
                await idle_reader.readexactly(got)
        slow.close()
        idle.close()

"""Asking an upstream: what provably did not start, what may have, and that letting go cancels."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator

import pytest

from adapters.http.headers import scrub, to_client, to_engine
from adapters.http.upstream import Upstream
from domain.errors import MayHaveRunError, NotConnectedError, NotStartedError
from tests.support.odd_server import Heard, Reply, odd_server, stream
from tests.support.waiting import until

BODY = b'{"model":"local"}'


@pytest.fixture
async def upstream():
    client = Upstream(connections=4, connect_s=1, silent_s=5)
    yield client
    await client.close()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_refused_connection_an_unknown_name_and_a_failed_handshake_did_not_start(upstream: Upstream):
    async with odd_server() as plain:
        for url in (
            f"http://127.0.0.1:{unused_port()}/x",
            "http://no-such-host.invalid/x",
            plain.url.replace("http:", "https:") + "/x",
            "http:///x",
        ):
            with pytest.raises(NotStartedError):
                await upstream.post(url, BODY, {})
        assert plain.heard == []


@contextlib.contextmanager
def nobody_takes() -> Iterator[str]:
    """Give a URL at which a connection neither opens nor fails, as behind a firewall that drops what it does not like."""
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


async def test_a_connection_that_nobody_takes_did_not_start_and_is_given_up_in_time():
    client = Upstream(connections=1, connect_s=0.3)
    with nobody_takes() as url:
        async with asyncio.timeout(5):
            with pytest.raises(NotStartedError):
                await client.post(f"{url}/x", BODY, {})
    await client.close()


async def test_where_no_connection_opens_in_the_time_that_a_100_may_take_nobody_was_reached_at_all():
    client = Upstream(connections=1, connect_s=10)
    with nobody_takes() as url:
        async with asyncio.timeout(5):
            with pytest.raises(NotConnectedError):
                await client.post_when_asked(f"{url}/x", BODY, {}, asked_for=lambda: None, continue_s=0.6)
    await client.close()


async def test_an_upstream_that_dies_after_the_request_may_have_run_it_and_is_asked_once(upstream: Upstream):
    async def die(_: Heard, reply: Reply) -> None:
        reply.die()

    async with odd_server(die) as engine:
        with pytest.raises(MayHaveRunError):
            await upstream.post(engine.url, BODY, {})
        assert len(engine.heard) == 1


async def test_a_kept_connection_that_closes_after_reading_is_not_sent_the_request_again(upstream: Upstream):
    async def answer_once(_: Heard, reply: Reply) -> None:
        if len(engine.heard) == 1:
            await reply.json({})
        else:
            reply.die()

    async with odd_server(answer_once) as engine:
        first = await upstream.post(engine.url, BODY, {})
        await first.read(1000)
        with pytest.raises(MayHaveRunError):
            await upstream.post(engine.url, BODY, {})
        assert len(engine.heard) == 2


async def test_a_cut_answer_is_never_taken_for_a_whole_one(upstream: Upstream):
    async def short(_: Heard, reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        reply.die()

    for script in (stream([b"data: 1\n\n"] * 3, die=True), short):
        async with odd_server(script) as engine:
            answer = await upstream.post(engine.url, BODY, {})
            with pytest.raises(MayHaveRunError):
                await answer.read(1000)


async def test_letting_go_of_an_answer_hangs_up_on_the_upstream(upstream: Upstream):
    async with odd_server() as engine:

        async def endless(heard: Heard, reply: Reply) -> None:
            await stream([b"data: 1\n\n"], end=False)(heard, reply)
            engine.cancelled.set()

        engine.script = endless
        answer = await upstream.post(engine.url, BODY, {})
        answer.close()
        async with asyncio.timeout(1):
            await engine.cancelled.wait()


async def test_giving_up_before_the_head_of_the_answer_hangs_up_too(upstream: Upstream):
    async with odd_server() as engine:
        engine.script = engine.hang()
        asking = asyncio.ensure_future(upstream.post(engine.url, BODY, {}))
        await engine.arrived()
        asking.cancel()
        async with asyncio.timeout(1):
            await engine.cancelled.wait()


async def test_an_upstream_has_at_most_its_number_of_connections_and_the_surplus_waits_in_order():
    client = Upstream(connections=2)
    order: list[str] = []
    go = asyncio.Event()

    async def script(heard: Heard, reply: Reply) -> None:
        order.append(heard.path)
        await go.wait()
        await reply.json({})

    async def ask(path: str) -> None:
        await (await client.post(engine.url + path, BODY, {})).read(100)

    async with odd_server(script) as engine:
        asking = [asyncio.ensure_future(ask(f"/{number}")) for number in range(5)]
        await engine.arrived(2)
        assert order == ["/0", "/1"]
        go.set()
        await asyncio.gather(*asking)
        assert order == [f"/{number}" for number in range(5)]
    await client.close()


async def test_each_party_may_have_its_number_of_connections_whatever_another_has():
    client = Upstream(connections=1, per_party=True)
    async with odd_server() as sick, odd_server() as well:
        sick.script = sick.hang()
        hanging = asyncio.ensure_future(client.post(sick.url, BODY, {}))
        await sick.arrived()
        waiting = asyncio.ensure_future(client.post(sick.url, BODY, {}))
        async with asyncio.timeout(5):
            await (await client.post(well.url, BODY, {})).read(1000)
        assert len(sick.heard) == 1
        for asked in (hanging, waiting):
            asked.cancel()
    await client.close()


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_of_parties_that_are_left_nothing_is_kept_while_a_stream_of_another_runs_on(*, keep_alive: bool):
    client = Upstream(connections=2, per_party=True, keep_alive=keep_alive)
    go = asyncio.Event()

    async def slow(_: Heard, reply: Reply) -> None:
        await reply.head()
        await reply.chunk(b"begun")
        await go.wait()
        await reply.chunk(b", ended")
        await reply.end()

    async with odd_server(slow) as streaming:
        running = await client.post(streaming.url, BODY, {})
        for _ in range(5):
            async with odd_server() as left:
                await (await client.post(left.url, BODY, {})).read(1000)
        assert client._session is not None
        connector = client._session.connector
        assert connector is not None
        await until("idle connections to close", lambda: not connector._conns)
        assert [key.port for key in connector._acquired_per_host] == [int(streaming.url.rsplit(":", 1)[1])]
        go.set()
        assert await running.read(100) == b"begun, ended"
    await client.close()


# -- with Expect: 100-continue ------------------------------------------------------------------------------------------


async def raw_helper(said: bytes, seen: list[bytes], *, close: bool = False) -> asyncio.Server:
    """Return a server that answers each head with `said` and notes what comes after it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        if close:
            writer.transport.abort()
        seen.append(await reader.read())
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def not_asked() -> None:
    raise AssertionError("the body was asked for")


def url_of(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"


async def test_the_body_goes_out_only_after_the_100_and_is_the_same_bytes(upstream: Upstream):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        assert f"Content-Length: {len(BODY)}".encode() in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(len(BODY))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        asked: list[str] = []
        answer = await upstream.post_when_asked(url_of(server), BODY, {}, asked_for=lambda: asked.append("asked"))
        assert (answer.status, asked, await answer.read(100)) == (200, ["asked"], BODY)


async def test_a_final_status_instead_of_the_100_means_no_body_and_a_closed_connection():
    client = Upstream(connections=4, keep_alive=False)
    seen: list[bytes] = []

    def closed(count: int) -> bool:
        return len(seen) == count

    refusal = b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}"
    async with await raw_helper(refusal, seen) as server:
        for count in (1, 2):
            answer = await client.post_when_asked(url_of(server), BODY, {}, asked_for=not_asked)
            assert (answer.status, await answer.read(100)) == (409, b"{}")
            answer.close()
            await until("the connection to close", functools.partial(closed, count))
    assert seen == [b"", b""]
    await client.close()


@pytest.mark.parametrize(("said", "close"), [(b"", False), (b"", True)], ids=["silent", "closed"])
async def test_without_a_100_the_body_is_never_sent_and_nothing_has_started(
    upstream: Upstream, *, said: bytes, close: bool
):
    seen: list[bytes] = []
    async with await raw_helper(said, seen, close=close) as server:
        with pytest.raises(NotStartedError):
            await upstream.post_when_asked(url_of(server), BODY, {}, asked_for=not_asked, continue_s=0.2)
        await until("the connection to close", lambda: seen)
    assert seen == [b""]


async def test_a_helper_that_dies_after_its_100_may_have_run_it(upstream: Upstream):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(len(BODY))
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        with pytest.raises(MayHaveRunError):
            await upstream.post_when_asked(url_of(server), BODY, {}, asked_for=lambda: None)


# -- headers ------------------------------------------------------------------------------------------------------------


def test_no_credential_and_nothing_hop_by_hop_crosses_in_either_direction():
    canary = "canary-7f3a"
    names = (
        *(
            "Authorization",
            "Cookie",
            "x-api-key",
            "x-goog-api-key",
            "api-key",
            "Proxy-Authorization",
            "Proxy-Connection",
        ),
        *("Forwarded", "X-Forwarded-For", "Via", "Connection", "Keep-Alive", "TE", "Trailer", "Upgrade", "Set-Cookie"),
        *(
            "Server",
            "Location",
            "Transfer-Encoding",
            "Content-Encoding",
            "Content-Length",
            "X-Internal-Host",
            "Alt-Svc",
        ),
    )
    headers = dict.fromkeys(names, canary) | {"content-type": "application/json", "accept": "text/event-stream"}
    assert to_engine(headers) == {"Content-Type": "application/json", "Accept": "text/event-stream"}
    assert to_client(headers) == {"Content-Type": "application/json"}


def test_a_header_that_connection_names_stays_behind():
    assert to_engine({"Connection": "close, TraceParent", "traceparent": "00-x", "Accept": "*/*"}) == {"Accept": "*/*"}


def test_an_engines_address_does_not_stand_in_the_error_that_is_passed_on():
    body = b'{"error":"POST http://10.0.0.7:8081/v1 failed at 10.0.0.7:8081"}'
    assert scrub(body, ["10.0.0.7:8081", ""]) == b'{"error":"POST http://engine/v1 failed at engine"}'

"""A trace on its way through a node: what an engine hears of it, and what the node says of what went wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from services.config import Config, TelemetryConfig
from services.telemetry.tracing import OFF, tracing_of
from tests.support.collector import Collector, collector, end_sending
from tests.support.local_nodes import CHAT, LocalNode, client_of, local_node, model_at
from tests.support.moments import elapsed
from tests.support.odd_server import COMPLETION, Heard, OddServer, Reply, Script, answer, odd_server
from tests.support.waiting import until

PATH = "/v1/chat/completions"
TRACE, OUTSIDE = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{OUTSIDE}-01", "tracestate": "vendor=value"}


@contextlib.asynccontextmanager
async def traced_node(script: Script | None = None) -> AsyncIterator[tuple[LocalNode, OddServer, Collector]]:
    """Run a node with one engine; the collector has all of its spans once the block has ended."""
    async with odd_server(script) as engine, collector() as got:
        tracing = tracing_of(Config(telemetry=TelemetryConfig(otlp_url=got.url)), "node", "n1", {})
        async with local_node([model_at(engine.url)], tracing=tracing) as node:
            yield node, engine, got
        await tracing.close()


async def ask(node: LocalNode) -> int:
    async with client_of(node) as client, client.post(PATH, json=CHAT, headers=CLIENT) as got:
        await got.read()
        return got.status


def carried(heard: list[Heard]) -> dict[str, str]:
    work = next(each for each in heard if each.method == "POST")
    return {name: value for name, value in work.headers.items() if name in CLIENT}


async def test_where_nothing_is_traced_an_engine_hears_the_client_s_own_trace():
    async with odd_server() as engine, local_node([model_at(engine.url)], tracing=OFF) as node:
        assert await ask(node) == 200
    assert carried(engine.heard) == CLIENT


async def test_an_engine_hears_the_span_that_its_work_is():
    async with traced_node() as (node, engine, got):
        assert await ask(node) == 200
    by_name = {span.name: span for span in got.spans}
    assert set(by_name) == {"node.request", "engine.generate"}, "a request that never waits is not held"
    assert by_name["node.request"].parent == OUTSIDE
    assert by_name["engine.generate"].parent == by_name["node.request"].id
    assert carried(engine.heard) == {
        "traceparent": f"00-{TRACE}-{by_name['engine.generate'].id}-01",
        "tracestate": "vendor=value",
    }


async def test_an_engine_s_failure_is_in_its_span_and_none_of_its_words():
    async with traced_node(answer({"error": {"message": "of the engine's own"}}, status=500)) as (node, _, got):
        assert await ask(node) == 500
    span = next(span for span in got.spans if span.name == "engine.generate")
    assert span.is_error
    assert span.attributes["error.type"] == "engine_error"
    assert b"of the engine's own" not in got.raw


async def test_a_request_that_waits_is_held_in_its_trace_and_one_whose_client_leaves_is_cancelled():
    release = asyncio.Event()

    async def slow(heard: Heard, reply: Reply) -> None:
        await release.wait()
        await answer(COMPLETION)(heard, reply)

    async with traced_node(slow) as (node, _, got):
        running, held = (asyncio.create_task(ask(node)) for _ in range(2))
        await until("one to be held", lambda: node.counts()[:2] == (1, 1))
        held.cancel()
        await until("it to have left", lambda: node.counts()[:2] == (0, 1))
        release.set()
        assert await running == 200
    waited = [span for span in got.spans if span.name == "node.held"]
    assert [span.attributes["error.type"] for span in waited] == ["cancelled"]
    outer = {span.id: span for span in got.spans}[waited[0].parent]
    assert (outer.name, outer.is_error, outer.attributes["error.type"]) == ("node.request", True, "cancelled")


@contextlib.asynccontextmanager
async def sick_collector(kind: str) -> AsyncIterator[str]:
    """Run a collector that takes connections and is of no other use; give its URL."""
    taken: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if kind == "resets":
                writer.transport.abort()
            elif kind == "fails":
                writer.write(b"HTTP/1.1 503 No\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n")
            elif kind == "dribbles":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not writer.is_closing():
                    writer.write(b"x")
                    await elapsed(0.05)
            await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in taken:
            writer.transport.abort()
        await server.wait_closed()


@pytest.mark.parametrize("kind", ["hangs", "resets", "fails", "dribbles"])
async def test_a_sick_collector_costs_no_request_anything_and_no_more_memory_than_its_queue(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    monkeypatch.setattr("services.telemetry.tracing._FLUSH_S", 0.2)
    async with sick_collector(kind) as url, odd_server(answer(COMPLETION)) as engine:
        tracing = tracing_of(Config(telemetry=TelemetryConfig(otlp_url=url)), "node", "n1", {})
        async with local_node([model_at(engine.url, slots=8)], tracing=tracing) as node, client_of(node) as client:
            async with asyncio.timeout(10):
                for _ in range(2):
                    assert await asyncio.gather(*(one(client) for _ in range(40))) == [200] * 40
            queue = tracing._provider._active_span_processor._span_processors[0]._batch_processor._queue  # type: ignore[attr-defined]
            assert len(queue) <= 64
        began_s = asyncio.get_running_loop().time()
        await tracing.close()
        assert asyncio.get_running_loop().time() - began_s < 5
    await asyncio.to_thread(end_sending, tracing)
    said = [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert len(said) < 10, "what is dropped is not said of each span"


async def one(client: aiohttp.ClientSession) -> int:
    async with client.post(PATH, json=CHAT) as got:
        await got.read()
        return got.status

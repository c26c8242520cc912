"""What clients get from a gateway, whatever the nodes behind it do."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict
from yarl import URL

from adapters.clock import SystemClock
from adapters.http.errors import ApiError
from adapters.http.server import HttpServer
from domain.events import LoadFailed, ModelInfo, Registered
from domain.ids import Incarnation, ModelId, NodeId
from services.config import Limits
from services.gateway.catalogue import Catalogue
from services.gateway.forwarding import Forwarder
from tests.support.local_nodes import CHAT, code_of, local_node, model_at
from tests.support.moments import elapsed
from tests.support.odd_server import COMPLETION, DONE, Heard, Reply, answer, event, odd_server, stream
from tests.support.sessions import sessions

PATH = "/v1/chat/completions"
STREAM = CHAT | {"stream": True}
LIFE = Incarnation("a" * 32)
MODELS = ("public", "org/m:7b", "a.b", "a/b", "モデル 1")


class Gateway:
    """A gateway over a catalogue that the test writes."""

    def __init__(self, catalogue: Catalogue, client: aiohttp.ClientSession, url: str, forwarder: Forwarder) -> None:
        self.catalogue, self.client, self.url, self.forwarder = catalogue, client, url, forwarder

    def know(self, node: str, url: str, *models: str) -> None:
        """Let a node register."""
        infos = tuple(ModelInfo(id=ModelId(model), local_id="x") for model in models or MODELS)
        self.catalogue.apply(NodeId(node), LIFE, Registered(url=url, models=infos, version="0", depth=2))

    async def ask(self, **more: object) -> tuple[int, dict[str, object], CIMultiDict[str]]:
        """Return (status, body, headers) of one request."""
        async with self.client.post(PATH, json=CHAT | more) as got:
            return got.status, await got.json(), CIMultiDict(got.headers)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    catalogue = Catalogue(tmp_path / "catalogue.json")
    forwarder = Forwarder("gateway-main", catalogue, Limits(upstream_connect_s=2, body_bytes=100_000), SystemClock())
    server = HttpServer(forwarder.serve, connections_max=100, served_by="gateway-main")
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with aiohttp.ClientSession(url) as client:
        yield Gateway(catalogue, client, url, forwarder)
    await server.stop()
    await forwarder.close()
    assert forwarder.in_progress == 0


def nobody() -> str:
    """Return a URL at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def test_a_request_reaches_a_node_that_holds_the_model_and_its_answer_comes_back(gateway: Gateway):
    async with odd_server() as engine, local_node([model_at(engine.url)]) as node:
        gateway.know("n1", node.url, "public")
        async with gateway.client.post(PATH, json=CHAT, headers={"x-request-id": "mine"}) as got:
            assert (got.status, await got.json()) == (200, COMPLETION | {"model": "public"})
            assert got.headers["leaseway-served-by"] == "n1"
            assert got.headers["x-request-id"] == "mine"
            # the name under which the request stands in every event
            (fact,) = node.of("queue.finished")
            assert got.headers["leaseway-request"] == getattr(fact, "request", "")
        engine.script = stream([event("日"), DONE])
        async with gateway.client.post(PATH, json=STREAM) as got:
            assert await got.read() == event("日").replace(b"local", b"public") + DONE
            assert got.content_type == "text/event-stream"


async def test_a_gateway_whose_nodes_go_elsewhere_keeps_no_session_for_where_they_were(gateway: Gateway):
    async with odd_server() as engine, local_node([model_at(engine.url)]) as node:
        held = []
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            gateway.know("n1", node.url.replace("127.0.0.1", host), "public")
            assert (await gateway.ask())[0] == 200
            held.append(sessions())
        assert held == [held[0]] * 3


@pytest.mark.parametrize("streaming", [False, True])
async def test_unknown_unavailable_and_unreachable_are_told_apart_the_same_for_streams(
    gateway: Gateway, *, streaming: bool
):
    gateway.know("n1", nobody(), "public", "down")
    gateway.catalogue.apply(NodeId("n1"), LIFE, LoadFailed(model=ModelId("down"), cause="own", reason="x"))
    for model, status, code in (
        ("none", 404, "model_not_found"),
        ("down", 503, "model_unavailable"),
        ("public", 503, "model_unavailable"),
    ):
        got, body, headers = await gateway.ask(model=model, stream=streaming)
        assert (got, code_of(body)) == (status, code)
        assert ("Retry-After" in headers) == (status == 503)
        assert "x-should-retry" not in headers
        assert headers["x-request-id"]
        assert headers["leaseway-served-by"] == "gateway-main"


async def test_the_health_of_a_gateway_says_that_it_has_not_begun_until_it_has(gateway: Gateway):
    for started, status, word in ((False, 503, "starting"), (True, 200, "ok")):
        gateway.forwarder.started = started
        async with gateway.client.get("/health") as got:
            assert (got.status, (await got.json())["status"]) == (status, word)


async def test_a_second_node_is_asked_once_if_the_first_provably_did_not_start(gateway: Gateway):
    async with odd_server() as third:
        gateway.know("n1", nobody())
        gateway.know("n2", nobody())
        gateway.know("n3", third.url)
        statuses = [(await gateway.ask())[0] for _ in range(6)]
        # two tries: a request that met both dead nodes is not tried a third time
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
    async with odd_server() as second:
        gateway.know("n2", second.url)
        gateway.know("n3", second.url)
        assert [(await gateway.ask())[0] for _ in range(6)] == [200] * 6


async def test_a_node_that_may_have_run_it_is_the_only_one_that_is_asked(gateway: Gateway):
    async def die(_: Heard, reply: Reply) -> None:
        reply.die()

    async with odd_server(die) as first, odd_server(die) as second:
        gateway.know("n1", first.url)
        gateway.know("n2", second.url)
        for asked in range(1, 5):
            status, body, headers = await gateway.ask(stream=asked % 2 == 0)
            assert (status, code_of(body), headers["x-should-retry"]) == (502, "node_failed", "false")
            assert len(first.heard) + len(second.heard) == asked


async def test_a_node_that_says_not_started_is_passed_over_and_its_word_stands_if_there_is_no_other(gateway: Gateway):
    refusal = ApiError("node_draining", "x")

    async def refuse(_: Heard, reply: Reply) -> None:
        await reply.head(503, **{name.replace("-", "_"): value for name, value in refusal.headers().items()})
        await reply.chunk(refusal.body())
        await reply.end()

    async with odd_server(refuse) as draining, odd_server() as other:
        gateway.know("n1", draining.url)
        status, body, headers = await gateway.ask()
        assert (status, code_of(body), headers["Retry-After"]) == (503, "node_draining", "1")
        gateway.know("n2", other.url)
        assert [(await gateway.ask())[0] for _ in range(6)] == [200] * 6


async def test_an_error_of_an_engine_passes_unchanged_and_is_not_tried_elsewhere(gateway: Gateway):
    error = {"error": {"message": "x", "type": "t", "code": "c", "param": None}}
    async with odd_server(answer(error, 503)) as first, odd_server() as second:
        gateway.know("n1", first.url)
        gateway.know("n2", second.url)
        got = [await gateway.ask() for _ in range(2)]
        assert sorted(status for status, _, _ in got) == [200, 503]
        assert [body for status, body, _ in got if status == 503] == [error]


async def test_the_idlest_node_is_asked_and_of_equal_ones_each_in_turn(gateway: Gateway):
    go = asyncio.Event()

    async def wait(_: Heard, reply: Reply) -> None:
        await go.wait()
        await reply.json(COMPLETION)

    async with contextlib.AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(odd_server(wait)) for _ in range(2)]
        for number, node in enumerate(nodes):
            gateway.know(f"n{number}", node.url)
        # eight at once, two equal idle nodes: four each, counted when decided and not when answered
        asking = [asyncio.ensure_future(gateway.ask()) for _ in range(8)]
        for node in nodes:
            await node.arrived(4)
        go.set()
        await asyncio.gather(*asking)
        assert [len(node.heard) for node in nodes] == [4, 4]
        for _ in range(4):
            await gateway.ask()
        assert [len(node.heard) for node in nodes] == [6, 6]


async def test_a_stream_whose_node_dies_ends_with_one_error_event(gateway: Gateway):
    async with odd_server(stream([event("x")] * 3, die=True)) as node:
        gateway.know("n1", node.url)
        async with gateway.client.post(PATH, json=STREAM) as got:
            body = (await got.read()).decode()
        assert body.count('"error"') == 1
        assert json.loads(body.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "node_failed"
        assert "[DONE]" not in body


async def test_a_frozen_node_holds_no_stream_of_a_client_for_ever_before_its_head_or_after_it(gateway: Gateway):
    gateway.forwarder.stream_silent_s = 0.3
    async with odd_server() as node:
        gateway.know("n1", node.url, "public")
        node.script = node.hang()
        async with asyncio.timeout(5):
            status, body, headers = await gateway.ask(stream=True)
        assert (status, code_of(body), headers["x-should-retry"]) == (502, "node_failed", "false")
        node.script = stream([event("a")], end=False)
        gateway.forwarder.stream_silent_s = 1.0  # its head has to be in time
        async with asyncio.timeout(5), gateway.client.post(PATH, json=STREAM) as got:
            told = await got.read()
        assert told.startswith(event("a"))
        assert told.count(b'"node_failed"') == 1
        assert b"[DONE]" not in told


async def test_a_node_that_says_that_a_stream_waits_may_take_its_time(gateway: Gateway):
    gateway.forwarder.stream_silent_s = 1.0

    async def waiting(_: Heard, reply: Reply) -> None:
        await reply.head(content_type="text/event-stream")
        for _comment in range(12):
            await reply.chunk(b": waiting\n\n")
            await elapsed(0.1)
        await reply.chunk(DONE)
        await reply.end()

    async with odd_server(waiting) as node:
        gateway.know("n1", node.url, "public")
        async with gateway.client.post(PATH, json=STREAM) as got:
            assert await got.read() == b": waiting\n\n" * 12 + DONE


async def test_an_error_event_of_the_node_is_the_only_one(gateway: Gateway):
    async def die(_: Heard, reply: Reply) -> None:
        await stream([event("x")], die=True)(_, reply)

    async with odd_server(die) as engine, local_node([model_at(engine.url)]) as node:
        gateway.know("n1", node.url, "public")
        async with gateway.client.post(PATH, json=STREAM) as got:
            body = (await got.read()).decode()
        assert body.count('"error"') == 1
        assert "engine_failed" in body


async def test_a_client_that_leaves_cancels_at_the_engine_behind_gateway_and_node(gateway: Gateway):
    async with odd_server() as engine, local_node([model_at(engine.url)]) as node:
        engine.script = engine.hang()
        gateway.know("n1", node.url, "public")
        for ask in (CHAT, STREAM):
            engine.cancelled.clear()
            asking = asyncio.ensure_future(gateway.client.post(PATH, json=ask))
            await engine.arrived(len(engine.heard) + 1)
            asking.cancel()
            async with asyncio.timeout(1):
                await engine.cancelled.wait()
        await node.said("queue.cancelled", 2)


async def test_models_are_listed_from_the_catalogue_and_found_raw_and_encoded(gateway: Gateway):
    gateway.know("n1", nobody())
    gateway.know("n2", nobody(), "public")
    async with gateway.client.get("/v1/models") as got:
        listed = (await got.json())["data"]
    assert [entry["id"] for entry in listed] == sorted(MODELS)
    (entry,) = [entry for entry in listed if entry["id"] == "public"]
    assert [node["node"] for node in entry["leaseway"]["nodes"]] == ["n1", "n2"]
    for raw, name in (
        ("org/m:7b", "org/m:7b"),
        ("org%2Fm%3A7b", "org/m:7b"),
        ("a.b", "a.b"),
        ("a/b", "a/b"),
        ("a%2Fb", "a/b"),
        ("%E3%83%A2%E3%83%87%E3%83%AB%201", "モデル 1"),
    ):
        async with gateway.client.get(URL(f"{gateway.url}/v1/models/{raw}", encoded=True)) as got:
            assert (got.status, (await got.json())["id"]) == (200, name)
    async with gateway.client.get("/v1/models/" + "x" * 300) as got:
        assert got.status == 404


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"model":7}', "application/json", 400),
        (b'{"model":"public","model":"x"}', "application/json", 400),
        (b'{"model":"public","tools":' + b'{"a":' * 3000 + b"1" + b"}" * 3001, "application/json", 400),
        (b"x" * 100_001, "application/json", 413),
        (b"{}", "text/plain", 415),
    ],
    ids=["broken", "number", "twice", "deep", "large", "typed"],
)
async def test_a_bad_request_never_reaches_a_node(gateway: Gateway, body: bytes, kind: str, status: int):
    async with odd_server() as node:
        gateway.know("n1", node.url)
        async with gateway.client.post(PATH, data=body, headers={"Content-Type": kind}) as got:
            assert got.status == status
            assert (await got.json())["error"]["type"] == "invalid_request_error"
        assert node.heard == []


async def test_no_credential_of_a_client_reaches_a_node(gateway: Gateway):
    async with odd_server() as node:
        gateway.know("n1", node.url)
        headers = dict.fromkeys(("Authorization", "Cookie", "x-api-key", "X-Forwarded-For"), "canary")
        async with gateway.client.post(PATH, json=CHAT, headers=headers) as got:
            assert got.status == 200
        assert "canary" not in str(node.heard[0].headers)

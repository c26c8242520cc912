"""A node alone: what clients get from it, whatever its engine does, with no bus anywhere."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from adapters.http.relay import Pace
from domain.events import Cancelled, Failed, Finished
from domain.ids import ModelId
from services.config import Limits
from tests.support.local_nodes import CHAT, LocalNode, client_of, local_node, model_at
from tests.support.odd_server import COMPLETION, DONE, Heard, OddServer, Reply, answer, event, odd_server, stream
from tests.support.waiting import until

PATH = "/v1/chat/completions"
STREAM = CHAT | {"stream": True}
MODEL = ModelId("public")


@contextlib.asynccontextmanager
async def node_with(engine: OddServer, **options: object) -> AsyncIterator[tuple[LocalNode, aiohttp.ClientSession]]:
    async with local_node([model_at(engine.url)], **options) as local, client_of(local) as client:  # type: ignore[arg-type]
        yield local, client


async def test_an_answer_comes_back_with_the_public_id_and_the_engine_saw_its_own():
    async with odd_server() as engine, node_with(engine) as (local, client):
        async with client.post(PATH, json=CHAT) as got:
            body = await got.json()
        assert got.status == 200
        assert body == COMPLETION | {"model": "public"}
        assert got.headers["leaseway-served-by"] == "n1"
        assert got.headers["x-request-id"].startswith("req_")
        assert engine.heard[0].json() == CHAT | {"model": "local"}
        (fact,) = local.of("queue.finished")
        assert isinstance(fact, Finished)
        assert (fact.status, fact.tokens_in, fact.tokens_out) == (200, 5, 3)
        assert fact.request == got.headers["leaseway-request"]


async def test_a_stream_comes_back_event_by_event_with_the_public_id():
    sent = [event("Hi", usage=None), event("日本"), event("", usage={"prompt_tokens": 2, "completion_tokens": 9}), DONE]
    async with odd_server(stream(sent)) as engine, node_with(engine) as (local, client):
        async with client.post(PATH, json=STREAM) as got:
            body = await got.read()
        assert body == b"".join(sent).replace(b'"model": "local"', b'"model": "public"')
        assert got.content_type == "text/event-stream"
        (fact,) = await local.said("queue.finished")
        assert isinstance(fact, Finished)
        assert (fact.tokens_in, fact.tokens_out) == (2, 9)


async def test_no_credential_reaches_the_engine_and_none_of_its_addresses_the_client():
    async with odd_server() as engine, node_with(engine) as (_, client):
        engine.script = answer({"error": {"message": f"refused at {engine.url}", "code": 7}}, 422)
        headers = dict.fromkeys(("Authorization", "Cookie", "x-api-key", "x-goog-api-key", "X-Secret"), "canary")
        async with client.post(PATH, json=CHAT, headers=headers | {"Connection": "X-Secret"}) as got:
            assert got.status == 422
            assert (await got.json())["error"] == {"message": "refused at http://engine", "code": 7}
        assert "canary" not in str(engine.heard[0].headers)


async def test_an_engine_that_dies_before_its_answer_gives_one_502_that_is_not_to_be_retried():
    async def die(_: Heard, reply: Reply) -> None:
        reply.die()

    async def empty(_: Heard, reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n")

    async def headers_only(_: Heard, reply: Reply) -> None:
        await reply.head(content_type="text/event-stream")
        reply.die()

    async def ends_at_once(_: Heard, reply: Reply) -> None:
        await reply.head(content_type="text/event-stream")
        await reply.end()

    for script in (die, empty, headers_only, ends_at_once):
        async with odd_server(script) as engine, node_with(engine) as (local, client):
            for ask in (CHAT, STREAM):
                async with client.post(PATH, json=ask) as got:
                    error = (await got.json())["error"]
                assert (got.status, error["code"]) == (502, "engine_failed")
                assert got.headers["x-should-retry"] == "false"
            assert len(engine.heard) == 2
            assert [type(fact) for fact in local.facts if isinstance(fact, Failed | Finished)] == [Failed, Failed]


@pytest.mark.parametrize("die", [True, False])
async def test_a_stream_that_is_cut_ends_with_one_error_event_and_never_with_a_terminator(*, die: bool):
    sent = [event("one"), event("two"), event("three"), b'data: {"model": "loc']
    async with odd_server(stream(sent, die=die)) as engine, node_with(engine) as (local, client):
        async with client.post(PATH, json=STREAM) as got:
            body = await got.read()
        events = body.decode().strip().split("\n\n")
        assert got.status == 200
        assert len(events) == 4
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert "[DONE]" not in body.decode()
        assert "finish_reason" not in body.decode()
        assert got.headers["Connection"] == "close"
        assert len(engine.heard) == 1
        await local.said("queue.failed")


async def test_an_error_event_of_the_engine_is_passed_on_and_ours_is_not_added():
    sent = [event("one"), b'data: {"error":{"message":"context is full"}}\n\n']
    async with odd_server(stream(sent)) as engine, node_with(engine) as (local, client):
        async with client.post(PATH, json=STREAM) as got:
            body = await got.read()
        assert body.count(b'"error"') == 1
        (fact,) = await local.said("queue.failed")
        assert isinstance(fact, Failed)
        assert fact.code == "engine_error"


@pytest.mark.parametrize("ask", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_is_noticed_by_the_engine_and_frees_its_place(ask: dict[str, object]):
    async with odd_server() as engine, node_with(engine) as (local, client):
        engine.script = engine.hang()
        asking = asyncio.ensure_future(client.post(PATH, json=ask))
        await engine.arrived()
        asking.cancel()
        async with asyncio.timeout(1):
            await engine.cancelled.wait()
        (fact,) = await local.said("queue.cancelled")
        assert isinstance(fact, Cancelled)
        assert fact.code == "engine"
        assert local.counts() == (0, 0, 0, 0)
        engine.script = answer()
        async with client.post(PATH, json=CHAT) as got:
            assert got.status == 200


async def test_a_client_that_leaves_in_the_middle_of_its_stream_is_noticed_too():
    async with odd_server() as engine, node_with(engine) as (local, client):

        async def three_then_silent(heard: Heard, reply: Reply) -> None:
            await stream([event("x")] * 3, end=False)(heard, reply)
            engine.cancelled.set()

        engine.script = three_then_silent
        got = await client.post(PATH, json=STREAM)
        await got.content.readuntil(b"\n\n")
        got.close()
        async with asyncio.timeout(1):
            await engine.cancelled.wait()
        await local.said("queue.cancelled")


async def test_a_held_request_whose_client_leaves_never_starts_and_the_running_one_is_unharmed():
    go = asyncio.Event()

    async def wait(_: Heard, reply: Reply) -> None:
        await go.wait()
        await reply.json(COMPLETION)

    async with odd_server(wait) as engine, node_with(engine) as (local, client):
        first = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await engine.arrived()
        second = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await until("the second to be held", lambda: local.counts()[0] == 1)
        second.cancel()
        await until("it to leave", lambda: local.counts()[0] == 0)
        go.set()
        assert (await first).status == 200
        assert len(engine.heard) == 1


def taken(local: LocalNode, count: int) -> bool:
    """Tell whether `count` requests are here or were."""
    return sum(local.counts()) + len(local.of("queue.finished")) >= count


async def test_more_requests_than_slots_are_all_served_in_order_of_admission_none_before_its_turn():
    at_once = most = 0
    order: list[str] = []
    go = asyncio.Event()

    async def count(heard: Heard, reply: Reply) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        order.append(str(heard.json()["user"]))
        await go.wait()
        at_once -= 1
        await reply.json(COMPLETION)

    async with odd_server(count) as engine, local_node([model_at(engine.url, slots=4)]) as local:
        async with client_of(local) as client:
            asking = []
            for number in range(10):
                asking.append(asyncio.ensure_future(client.post(PATH, json=CHAT | {"user": str(number)})))
                await until("it to be taken", functools.partial(taken, local, number + 1))
            go.set()
            assert [got.status for got in await asyncio.gather(*asking)] == [200] * 10
        assert most == 4
        assert order == [str(number) for number in range(10)]


async def test_slots_do_not_leak_over_many_cancels_and_failures():
    async def odd(heard: Heard, reply: Reply) -> None:
        if heard.json()["user"] == "die":
            reply.die()
        else:
            await reply.gone()

    async with odd_server(odd) as engine, node_with(engine) as (local, client):
        for number in range(20):
            asking = asyncio.ensure_future(client.post(PATH, json=CHAT | {"user": "die" if number % 2 else "hang"}))
            await engine.arrived(number + 1)
            if number % 2:
                assert (await asking).status == 502
            else:
                asking.cancel()
                await local.said("queue.cancelled", number // 2 + 1)
        assert local.counts() == (0, 0, 0, 0)
        engine.script = answer()
        assert (await client.post(PATH, json=CHAT)).status == 200


async def test_a_waiting_stream_hears_comments_at_event_borders_and_a_later_failure_is_an_event():
    async with odd_server() as engine, node_with(engine) as (local, client):
        local.node.ingress.pace = Pace(comment_s=0.05)
        engine.script = engine.hang()
        async with client.post(PATH, json=STREAM) as got:
            assert got.status == 200
            for _ in range(3):
                assert await got.content.readuntil(b"\n\n") == b": waiting\n\n"
            engine.drop_all()
            rest = (await got.read()).decode()
        assert json.loads(rest.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "engine_failed"


async def test_a_stream_that_waited_is_still_the_engines_stream():
    go = asyncio.Event()

    async def late(heard: Heard, reply: Reply) -> None:
        await go.wait()
        await stream([event("x"), DONE])(heard, reply)

    async with odd_server(late) as engine, node_with(engine) as (local, client):
        local.node.ingress.pace = Pace(comment_s=0.05)
        async with client.post(PATH, json=STREAM) as got:
            assert await got.content.readuntil(b"\n\n") == b": waiting\n\n"
            go.set()
            body = (await got.read()).replace(b": waiting\n\n", b"")
        assert body == event("x").replace(b"local", b"public") + DONE


async def test_an_error_answer_after_the_first_comment_becomes_an_event():
    go = asyncio.Event()

    async def late(_: Heard, reply: Reply) -> None:
        await go.wait()
        await reply.json({"error": {"message": "too\nlong", "code": 400}}, 400)

    async with odd_server(late) as engine, node_with(engine) as (local, client):
        local.node.ingress.pace = Pace(comment_s=0.05)
        async with client.post(PATH, json=STREAM) as got:
            await got.content.readuntil(b"\n\n")
            go.set()
            body = (await got.read()).replace(b": waiting\n\n", b"")
        assert body == b'data: {"error":{"message":"too\\nlong","code":400}}\n\n'


async def test_an_unreachable_engine_starts_nothing_and_the_request_is_served_once_it_is_there():
    async with odd_server() as engine:
        port = int(engine.url.rsplit(":", 1)[1])
    async with local_node([model_at(f"http://127.0.0.1:{port}")]) as local, client_of(local) as client:
        asking = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await until("the request to be held", lambda: local.counts()[0] == 1)
        async with odd_server(port=port) as engine:
            assert (await asking).status == 200
            assert len(engine.heard) == 1


async def test_an_engine_that_is_gone_is_noticed_and_one_that_is_silent_while_it_works_is_not_judged():
    async with odd_server() as engine, node_with(engine) as (local, client):
        engine.script = engine.hang()
        asking = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await engine.arrived()
        engine.health_status = 500
        await until("several looks at its health", lambda: local.node.models[MODEL].life.health.reason, timeout_s=5)
        assert local.node.models[MODEL].serving.ready
        asking.cancel()
        await until("the idle one to count as dead", lambda: not local.node.models[MODEL].serving.ready)
        assert local.of("model.load_failed")
        engine.health_status = 200
        await until("it to be back", lambda: local.node.models[MODEL].serving.ready)


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back():
    async with odd_server() as engine, node_with(engine, limits=Limits(held=1)) as (local, client):
        engine.script = engine.hang()
        waiting = [asyncio.ensure_future(client.post(PATH, json=CHAT)) for _ in range(2)]
        await until("one to be held", lambda: local.counts()[:2] == (1, 1))
        async with client.post(PATH, json=CHAT) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (503, "queue_full")
            assert int(got.headers["Retry-After"]) >= 1
            assert "x-should-retry" not in got.headers
        for task in waiting:
            task.cancel()


async def test_bodies_of_held_requests_are_bounded_in_bytes():
    async with odd_server() as engine, node_with(engine, limits=Limits(held_bytes=250)) as (local, client):
        engine.script = engine.hang()
        waiting = [asyncio.ensure_future(client.post(PATH, json=CHAT)) for _ in range(2)]
        await until("both to be here", lambda: sum(local.counts()) == 2)
        async with client.post(PATH, json=CHAT) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (503, "queue_full")
        for task in waiting:
            task.cancel()


async def test_a_drain_ends_what_runs_and_refuses_what_comes():
    go = asyncio.Event()

    async def wait(_: Heard, reply: Reply) -> None:
        await go.wait()
        await reply.json(COMPLETION)

    async with odd_server(wait) as engine, node_with(engine) as (local, client):
        running = [asyncio.ensure_future(client.post(PATH, json=CHAT)) for _ in range(3)]
        await until("all to be here", lambda: sum(local.counts()) == 3)
        draining = asyncio.ensure_future(local.node.drain(10))
        await until("the drain to begin", lambda: local.node.draining)
        async with client.post(PATH, json=CHAT) as got:
            assert got.status == 503
        go.set()
        assert [got.status for got in await asyncio.gather(*running)] == [200, 200, 200]
        assert await draining


async def test_a_drain_that_takes_too_long_breaks_off_with_an_error_event():
    async with odd_server(stream([event("x")], end=False)) as engine, node_with(engine) as (local, client):
        async with client.post(PATH, json=STREAM) as got:
            await got.content.readuntil(b"\n\n")
            assert not await local.node.drain(0.1)
            rest = await got.read()
        assert json.loads(rest.strip().removeprefix(b"data: "))["error"]["code"] == "node_draining"
        assert b"[DONE]" not in rest


async def test_a_drain_that_takes_too_long_lets_another_node_have_what_has_not_begun_and_leaves_nothing_open():
    async with odd_server() as engine, node_with(engine) as (local, client):
        engine.script = engine.hang()
        asking = [asyncio.ensure_future(client.post(PATH, json=CHAT)) for _ in range(2)]
        await engine.arrived()
        await until("the second one to be held", lambda: local.counts()[0] == 1)
        began_s = asyncio.get_running_loop().time()
        assert not await local.node.drain(0.1)
        assert asyncio.get_running_loop().time() - began_s < 1, "nothing is waited for that nobody waits for"
        got = [(each.status, each.headers.get("leaseway-not-started")) for each in await asyncio.gather(*asking)]
        assert sorted(got, key=str) == [(503, "true"), (503, None)]
        assert sorted(local.tags("queue")) == ["queue.cancelled", "queue.failed"]
        assert local.counts() == (0, 0, 0, 0)


async def test_health_tells_the_state_of_engines_and_bus():
    async with odd_server() as engine, node_with(engine) as (_, client):
        async with client.get("/health") as got:
            assert (await got.json())["status"] == "ok"
        async with client.get("/cluster/v1/status") as got:
            status = await got.json()
        assert status["queues"][0]["counts"] == {"held": 0, "in_engine": 0, "lent": 0, "borrowed": 0}


async def test_a_request_that_waits_too_long_is_told_so_and_never_starts():
    async with odd_server() as engine, node_with(engine, limits=Limits(queue_wait_s=1)) as (local, client):
        engine.script = engine.hang()
        running = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await engine.arrived()
        for ask in (CHAT, STREAM):
            async with client.post(PATH, json=ask) as got:
                assert (got.status, (await got.json())["error"]["code"]) == (504, "queue_timeout")
                assert "x-should-retry" not in got.headers
        assert len(local.of("queue.expired")) == len(engine.heard) + 1 == 2
        running.cancel()


async def test_requests_that_the_engine_refuses_leave_it_healthy():
    async with odd_server() as engine, node_with(engine) as (local, client):
        engine.script = answer({"error": {"message": "too long", "type": "invalid_request_error", "code": 400}}, 400)
        for _ in range(20):
            async with client.post(PATH, json=CHAT) as got:
                assert got.status == 400
                assert (await got.json())["error"]["message"] == "too long"
        engine.script = answer()
        async with client.post(PATH, json=CHAT) as got:
            assert got.status == 200
        assert "model.load_failed" not in local.tags()


async def test_a_client_that_reads_nothing_does_not_hold_the_engine_for_ever():
    async def flood(_: Heard, reply: Reply) -> None:
        await reply.head(content_type="text/event-stream")
        with contextlib.suppress(ConnectionError):
            while True:
                await reply.chunk(event("x" * 60_000))
        engine.cancelled.set()

    async with odd_server(flood) as engine, node_with(engine) as (local, _):
        local.node.ingress.pace = Pace(comment_s=0.1, stall_s=0.3)
        host, port = local.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps(STREAM).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(10):
            await engine.cancelled.wait()
        await local.said("queue.cancelled")
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

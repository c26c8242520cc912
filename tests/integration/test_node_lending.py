"""Two nodes: an owner lends to a helper over HTTP, and what can go wrong in between. The test is the master."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from adapters.http.upstream import Upstream
from adapters.keys import Signer, new_nkey
from domain.events import (
    BorrowFinished,
    Cancelled,
    CutOff,
    Finished,
    LeaseCleared,
    LendReturned,
    LinkRemoved,
    RelayRefused,
)
from domain.ids import LeaseId, ModelId
from services import lend_head
from tests.support.lending_pair import LENT, PATH, Pair, pair
from tests.support.local_nodes import (
    CHAT,
    client_of,
    grant_of,
    publish,
    signed,
)
from tests.support.odd_server import COMPLETION, DONE, Heard, Reply, event, stream
from tests.support.waiting import until

STREAM = CHAT | {"stream": True}


async def test_a_held_request_is_lent_and_answered_with_the_owners_public_id():
    async with pair() as two:
        two.helping.script = answered("I said theirs and x and public")
        asking = await two.held()
        two.grant()
        got = await asking
        body = await got.json()
        assert (got.status, body["model"]) == (200, "public")
        assert body["choices"][0]["text"] == "I said theirs and x and public"
        assert got.headers["leaseway-served-by"] == "n2"
        assert two.helping.heard[0].json() == LENT | {"model": "x"}
        (fact,) = await two.owner.said("queue.finished")
        assert isinstance(fact, Finished)
        assert (fact.helper, fact.status, fact.tokens_out) == ("n2", 200, 3)
        assert two.owner.tags("lend") == ["lend.lease_updated", "lend.lent", "lend.answered"]
        assert two.helper.tags("borrow") == ["borrow.accepted", "borrow.started", "borrow.finished"]


def answered(text: str):
    async def script(_: Heard, reply: Reply) -> None:
        await reply.json(
            {"model": "x", "choices": [{"text": text}], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}
        )

    return script


async def test_a_held_stream_is_lent_and_comes_back_event_by_event():
    sent = [event("Hi").replace(b"local", b"x"), event("日本 theirs").replace(b"local", b"x"), DONE]
    async with pair() as two:
        two.helping.script = stream(sent)
        asking = await two.held(stream=True)
        two.grant()
        got = await asking
        body = await got.read()
        assert got.headers["leaseway-served-by"] == "n2"
        assert body == b"".join(sent).replace(b'"model": "x"', b'"model": "public"')
        await two.owner.said("lend.answered")


async def test_a_helper_that_has_heard_of_the_grant_only_from_the_owner_takes_the_lend():
    async with pair() as two:
        asking = await two.held()
        two.grant(seen_by_helper=False)
        assert (await asking).headers["leaseway-served-by"] == "n2"


async def test_a_helper_with_work_of_its_own_hands_back_and_no_client_sees_the_409():
    async with pair() as two, client_of(two.helper) as own:
        two.helping.script = two.helping.hang()
        natives = [asyncio.ensure_future(own.post(PATH, json=LENT)) for _ in range(3)]
        await until("the helper to be full", lambda: two.helper.counts("theirs")[0] == 1)
        asking = await two.held()
        two.grant()
        (fact,) = await two.owner.said("lend.returned")
        assert isinstance(fact, LendReturned)
        assert fact.reason == "own_work"
        await until("the request to be held again", lambda: two.owner.counts()[0] == 1)
        assert len(two.helping.heard) == 2
        two.busy[0].cancel()
        two.engine.script = two.engine.hang()
        await two.engine.arrived(2)
        for task in (*natives, asking):
            task.cancel()


async def test_a_borrowed_request_that_has_not_started_is_handed_back_when_own_work_comes():
    async with pair() as two, client_of(two.helper) as own:
        two.helping.script = two.helping.hang()
        running = [await two.held(), await two.held()]
        two.grant(slots=2)
        await two.helper.said("borrow.started", 2)
        third = await two.held()
        two.grant(slots=3)
        await two.owner.said("lend.busy")
        native = asyncio.ensure_future(own.post(PATH, json=LENT))
        await until("the native to be held", lambda: two.helper.counts("theirs")[0] == 1)
        for task in (*running, third, native):
            task.cancel()
        assert len(two.helping.heard) == 2


async def test_a_full_desk_answers_busy_and_the_request_is_lent_again_later():
    async with pair() as two:
        go = asyncio.Event()

        async def wait(_: Heard, reply: Reply) -> None:
            await go.wait()
            await reply.json(COMPLETION)

        two.helping.script = wait
        asking = [await two.held() for _ in range(3)]
        two.grant(slots=3)
        await two.owner.said("lend.busy")
        go.set()
        got = await asyncio.gather(*asking)
        assert [answer.headers["leaseway-served-by"] for answer in got] == ["n2"] * 3
        assert [answer.status for answer in got] == [200] * 3


async def test_a_client_that_leaves_cancels_at_the_helpers_engine_within_a_second():
    async with pair() as two:
        two.helping.script = two.helping.hang()
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        asking.cancel()
        async with asyncio.timeout(1):
            await two.helping.cancelled.wait()
        (fact,) = await two.owner.said("queue.cancelled")
        assert isinstance(fact, Cancelled)
        assert fact.code == "lent"
        await two.helper.said("borrow.finished")
        assert two.helper.counts("theirs") == (0, 0, 0, 0)
        assert two.owner.counts()[2] == 0


async def test_a_lent_stream_whose_client_leaves_cancels_at_the_helpers_engine():
    async with pair() as two:

        async def endless(heard: Heard, reply: Reply) -> None:
            await stream([event("x")], end=False)(heard, reply)
            two.helping.cancelled.set()

        two.helping.script = endless
        asking = await two.held(stream=True)
        two.grant()
        got = await asking
        await got.content.readuntil(b"\n\n")
        got.close()
        async with asyncio.timeout(1):
            await two.helping.cancelled.wait()


async def test_a_helper_that_is_gone_before_the_100_started_nothing_and_the_owner_runs_the_request():
    async with pair() as two:
        two.engine.script = answered("mine")
        asking = await two.held()
        await two.helper.node.server.stop()
        two.grant()
        (fact,) = await two.owner.said("lend.relay_refused")
        assert isinstance(fact, RelayRefused)
        assert fact.reason == "helper_unreachable"
        two.busy[0].cancel()
        got = await asking
        assert (got.status, got.headers["leaseway-served-by"]) == (200, "n1")


async def test_a_helper_that_dies_before_its_answer_is_fenced_and_a_replayable_request_runs_at_its_owner_once():
    async with pair() as two:
        two.helping.script = two.helping.hang()
        two.engine.script = answered("mine")
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        await two.helper.node.server.stop()
        (fact,) = await two.owner.said("lend.cut_off")
        assert isinstance(fact, CutOff)
        assert (fact.reason, fact.may_have_run) == ("helper_failed", True)
        async with asyncio.timeout(1):
            await two.helping.cancelled.wait()
        two.busy[0].cancel()
        got = await asking
        assert (got.status, got.headers["leaseway-served-by"], (await got.json())["model"]) == (200, "n1", "public")
        assert len(two.owner.of("queue.finished")) == 1


async def test_a_stream_that_a_helper_took_is_not_run_again_when_the_helper_dies():
    async with pair() as two:
        two.helping.script = two.helping.hang()
        asking = await two.held(stream=True)
        two.grant()
        await two.helping.arrived()
        await two.helper.node.server.stop()
        got = await asking
        assert (got.status, got.headers["x-should-retry"]) == (502, "false")
        assert len(two.engine.heard) == 1


async def test_a_lent_stream_that_is_cut_ends_with_one_error_event():
    async with pair() as two:
        two.helping.script = stream([event("one"), event("two")], die=True)
        asking = await two.held(stream=True)
        two.grant()
        got = await asking
        body = (await got.read()).decode()
        assert got.status == 200
        assert body.count('"error"') == 1
        assert "[DONE]" not in body
        assert json.loads(body.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "engine_failed"
        (fact,) = await two.owner.said("lend.cut_off")
        assert isinstance(fact, CutOff)
        assert (fact.reason, fact.may_have_run) == ("helper_failed", True)
        assert len(two.engine.heard) == 1


async def test_a_request_that_killed_the_helpers_engine_gets_no_second_one():
    async def die(_: Heard, reply: Reply) -> None:
        reply.die()

    async with pair() as two:
        two.helping.script = die
        asking = await two.held()
        two.grant()
        got = await asking
        assert (got.status, (await got.json())["error"]["code"]) == (502, "engine_failed")
        assert got.headers["x-should-retry"] == "false"
        assert len(two.engine.heard) == 1


async def test_a_helpers_5xx_runs_once_more_at_the_owner_and_its_4xx_passes_unchanged():
    async with pair() as two:
        two.engine.script = answered("mine")

        async def fail(heard: Heard, reply: Reply) -> None:
            await reply.json({"error": {"message": "x"}}, 500 if heard.json()["user"] == "five" else 422)

        two.helping.script = fail
        four = await two.held(user="four")
        two.grant(slots=1)
        got = await four
        assert (got.status, await got.json()) == (422, {"error": {"message": "x"}})
        (at_helper,) = await two.helper.said("borrow.finished")
        assert isinstance(at_helper, BorrowFinished)
        assert (at_helper.status, at_helper.ok) == (422, False)  # it teaches no price
        five = await two.held(user="five")
        await two.owner.said("lend.cut_off")
        two.busy[0].cancel()
        got = await five
        assert (got.status, got.headers["leaseway-served-by"]) == (200, "n1")


async def test_a_down_helper_engine_starts_nothing_and_the_owner_runs_the_request():
    async with pair() as two:
        two.engine.script = answered("mine")
        two.helping.health_status = 500
        await until(
            "the helper's engine to count as down", lambda: not two.helper.node.models[ModelId("theirs")].serving.ready
        )
        asking = await two.held()
        two.grant()
        await two.owner.said("lend.returned")
        two.busy[0].cancel()
        assert (await asking).headers["leaseway-served-by"] == "n1"


# -- what a helper does not take ------------------------------------------------------------------------------------------


class Forger:
    """Sends lends to a helper as an owner would, or not quite."""

    def __init__(self, two: Pair) -> None:
        self.two = two
        self.body = json.dumps(LENT).encode()
        self.grant = signed(grant_of(two.link, two.owner, two.helper.url))
        self.signer: Signer = two.owner.node.lender._signer
        self.upstream = Upstream(connections=4, keep_alive=False)
        self.asked = 0

    def head(self, **changes: object) -> lend_head.LendHead:
        head = lend_head.LendHead(
            request=f"req_{1:032x}",  # type: ignore[arg-type]
            lease=LeaseId("0001beef-1-0"),
            link=self.two.link.link,
            owner=self.two.link.owner,
            helper=self.two.link.helper,
            model=self.two.link.helper_model,
            path=PATH,
            work=1,
            remaining_ms=1000,
            size_bytes=len(self.body),
            body_sha256=lend_head.body_hash(self.body),
        )
        return msgspec.structs.replace(head, **changes)

    async def send(
        self, head: lend_head.LendHead, *, path: str = PATH, body: bytes | None = None, **headers: str
    ) -> tuple[int, str]:
        """Return (status, code) of the answer."""
        sealed = {"Content-Type": "application/json", **lend_head.sealed(head, self.signer, self.grant), **headers}
        url = self.two.helper.url + lend_head.PREFIX + path
        answer = await self.upstream.post_when_asked(url, body or self.body, sealed, asked_for=self._asked)
        document = json.loads(await answer.read(10_000))
        answer.close()
        return answer.status, document["error"]["code"] if "error" in document else "answered"

    def _asked(self) -> None:
        self.asked += 1


@contextlib.asynccontextmanager
async def forger() -> AsyncIterator[Forger]:
    async with pair() as two:
        made = Forger(two)
        yield made
        await made.upstream.close()


async def test_a_true_lend_is_taken():
    async with forger() as mine:
        assert await mine.send(mine.head()) == (200, "answered")
        assert mine.asked == 1


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"owner": "n9"}, (403, "bad_signature")),
        ({"helper": "n1"}, (400, "bad_request")),
        ({"path": "/v1/embeddings"}, (400, "bad_request")),
        ({"model": "other"}, (403, "no_live_lease")),
        ({"lease": "0001beef-2-0"}, (403, "no_live_lease")),
        ({"link": "0" * 16}, (403, "no_live_lease")),
        ({"remaining_ms": 0}, (403, "no_live_lease")),
        ({"remaining_ms": -5}, (403, "no_live_lease")),
        ({"size_bytes": 3}, (400, "bad_request")),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_lend_that_does_not_fit_its_grant_is_refused_before_its_body(
    changes: dict[str, object], refusal: tuple[int, str]
):
    async with forger() as mine:
        assert await mine.send(mine.head(**changes)) == refusal
        assert mine.asked == 0
        assert mine.two.helping.heard == []
        assert mine.two.helper.of("borrow.accepted") == []


async def test_a_lend_that_another_node_signed_is_refused():
    async with forger() as mine:
        mine.signer = Signer(new_nkey()[0])
        assert await mine.send(mine.head()) == (403, "bad_signature")
        mine.signer = mine.two.helper.node.lender._signer
        assert await mine.send(mine.head()) == (403, "bad_signature")
        assert mine.asked == 0


async def test_a_grant_that_the_master_did_not_sign_is_refused_by_helper_and_owner():
    async with forger() as mine:
        for forged in (
            signed(grant_of(mine.two.link, mine.two.owner, mine.two.helper.url), seed=new_nkey()[0]),
            signed(grant_of(mine.two.link, mine.two.owner, mine.two.helper.url), cluster="other"),
            mine.grant.replace(b'"slots":2', b'"slots":9'),
            mine.grant[: mine.grant.rfind(b',"sig"')] + b"}",
            b"{}",
        ):
            mine.grant = forged
            assert await mine.send(mine.head()) == (403, "bad_signature")
            assert not publish(forged, mine.two.owner)
        assert mine.asked == 0
        assert mine.two.owner.of("lend.lease_updated") == []


async def test_a_lease_that_was_cleared_is_dead_at_the_helper_whatever_the_owner_shows():
    async with forger() as mine:
        two = mine.two
        grant = grant_of(two.link, two.owner, two.helper.url)
        cleared = msgspec.convert({**msgspec.to_builtins(grant), "event": "lease.cleared", "slots": 0}, LeaseCleared)
        assert publish(signed(cleared, version=2), two.helper)
        assert await mine.send(mine.head()) == (403, "no_live_lease")
        assert mine.asked == 0


async def test_a_removed_link_ends_its_leases_at_the_helper():
    async with forger() as mine:
        two = mine.two
        two.helper.node.view.apply(
            LinkRemoved(link=two.link.link, owner=two.link.owner, owner_model=two.link.owner_model)
        )
        two.helper.node.control_changed()
        assert await mine.send(mine.head()) == (403, "no_live_lease")


async def test_a_lend_without_expect_is_refused():
    async with forger() as mine, aiohttp.ClientSession() as client:
        head = {"Content-Type": "application/json", **lend_head.sealed(mine.head(), mine.signer, mine.grant)}
        async with client.post(mine.two.helper.url + lend_head.PREFIX + PATH, data=mine.body, headers=head) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (417, "expectation_failed")


async def test_another_body_than_the_signed_one_is_not_run():
    async with forger() as mine:
        other = mine.body.replace(b"hello", b"HELLO")
        assert await mine.send(mine.head(), body=other) == (400, "invalid_body")
        assert mine.two.helping.heard == []
        assert mine.two.helper.tags("borrow") == ["borrow.accepted", "borrow.returned"]
        assert mine.two.helper.counts("theirs") == (0, 0, 0, 0)


async def test_the_same_lend_twice_runs_once():
    async with forger() as mine:
        assert await mine.send(mine.head()) == (200, "answered")
        assert (await mine.send(mine.head()))[0] == 409
        assert len(mine.two.helping.heard) == 1


async def test_an_owner_that_leaves_after_the_100_frees_its_place():
    async with forger() as mine:
        sealed = {"Content-Type": "application/json", **lend_head.sealed(mine.head(), mine.signer, mine.grant)}
        host, port = mine.two.helper.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        rows = "".join(f"{name}: {value}\r\n" for name, value in sealed.items())
        writer.write(
            f"POST {lend_head.PREFIX}{PATH} HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\n"
            f"Content-Length: {len(mine.body)}\r\n{rows}\r\n".encode()
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        assert mine.two.helper.counts("theirs")[3] == 1
        writer.transport.abort()
        await mine.two.helper.said("borrow.returned")
        assert mine.two.helper.counts("theirs") == (0, 0, 0, 0)


async def test_a_helper_that_stops_breaks_off_what_takes_too_long_and_the_owner_runs_it():
    async with pair() as two:
        two.helping.script = two.helping.hang()
        two.engine.script = answered("mine")
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        assert not await two.helper.node.drain(0.1)
        async with asyncio.timeout(5):
            await two.helping.cancelled.wait()
        await two.owner.said("lend.cut_off")
        two.busy[0].cancel()
        async with asyncio.timeout(5):
            got = await asking
        assert (got.status, got.headers["leaseway-served-by"]) == (200, "n1")


async def test_a_helper_that_stops_hands_back_what_waits_at_its_desk_when_its_time_is_over():
    async with pair() as two:
        two.helping.script = two.helping.hang()
        two.engine.script = answered("mine")
        asking = [await two.held(), await two.held()]
        two.grant()
        await two.helping.arrived()
        await two.helper.said("borrow.accepted", 2)
        async with asyncio.timeout(5):
            assert not await two.helper.node.drain(0.1)
        two.busy[0].cancel()
        async with asyncio.timeout(5):
            got = await asyncio.gather(*asking)
        assert [(each.status, each.headers["leaseway-served-by"]) for each in got] == [(200, "n1")] * 2

"""A first burst on a node that has measured nothing yet: nobody knows its sizes until two of its requests are answered."""

import asyncio

import msgspec

from domain.events import BorrowFinished, Finished, Held, Lent
from domain.ids import ModelId
from tests.support.lending_pair import Pair, pair
from tests.support.local_nodes import grant_of, publish, signed
from tests.support.odd_server import COMPLETION, Heard, Reply
from tests.support.waiting import until


def lease_with_window(two: Pair, context: int) -> None:
    """Let the owner lend two at once of what surely fits `context` tokens."""
    grant = msgspec.structs.replace(grant_of(two.link, two.owner, two.helper.url), context=context)
    assert publish(signed(grant), two.helper, two.owner)


def held_of(two: Pair) -> list[Held]:
    return [fact for fact in two.owner.facts if isinstance(fact, Held)]


async def answers_when_told(two: Pair) -> asyncio.Semaphore:
    """Let the owner's engine, free again, answer one request a release."""
    go = asyncio.Semaphore(0)

    async def script(_: Heard, reply: Reply) -> None:
        await go.acquire()
        await reply.json(COMPLETION)

    async def counted(_: Heard, reply: Reply) -> None:
        await reply.json(COMPLETION)

    two.engine.script, two.helping.script = script, counted
    two.busy[0].cancel()
    await two.engine.arrived(2)
    return go


async def test_after_the_first_two_answers_of_a_first_burst_the_rest_of_it_is_lent():
    async with pair() as two:
        burst = [await two.held() for _ in range(6)]
        lease_with_window(two, 4096)
        go = await answers_when_told(two)
        go.release()
        await two.owner.said("queue.finished")
        await two.engine.arrived(3)
        assert {fact.est_tokens for fact in held_of(two)} == {0}
        assert two.owner.of("lend.lent") == []
        go.release()
        got = await asyncio.gather(burst[2], burst[3], burst[5])  # the fourth of these took the engine's place
        assert [answer.headers["leaseway-served-by"] for answer in got] == ["n2"] * 3
        lent = [fact.request for fact in two.owner.of("lend.lent") if isinstance(fact, Lent)]
        first, again = held_of(two)[:6], [fact for fact in held_of(two)[6:] if fact.est_tokens]
        assert lent == [first[at].request for at in (2, 3, 5)]
        assert [fact.request for fact in again] == [fact.request for fact in first[2:]]
        assert all(0 < fact.est_tokens < 4096 for fact in again)
        burst[4].cancel()


async def test_the_first_answer_changes_the_unit_of_work_of_what_has_ended_of_what_waits_and_of_what_is_lent():
    async with pair() as two:
        burst = [await two.held() for _ in range(6)]
        guessed = {fact.work for fact in held_of(two)}
        go = await answers_when_told(two)
        go.release()
        (ended,) = await two.owner.said("queue.finished")
        await two.engine.arrived(3)
        assert isinstance(ended, Finished)
        restated = held_of(two)[6:]
        assert len(restated) == 5
        assert {fact.work for fact in restated} == {ended.work} != guessed
        two.grant(slots=1)
        got = await burst[2]
        assert got.headers["leaseway-served-by"] == "n2"
        (borrowed, *_) = await two.helper.said("borrow.finished")
        assert isinstance(borrowed, BorrowFinished)
        assert borrowed.work == ended.work
        for one in burst[1:]:
            one.cancel()


async def test_what_was_lent_by_a_guess_ends_at_its_helper_in_the_unit_that_its_answer_gives():
    async with pair() as two:
        burst = [await two.held() for _ in range(2)]
        await answers_when_told(two)
        two.grant(slots=1)
        assert (await burst[1]).headers["leaseway-served-by"] == "n2"
        (borrowed, *_) = await two.helper.said("borrow.finished")
        assert isinstance(borrowed, BorrowFinished)
        assert 0 < 2 * borrowed.work < min(fact.work for fact in held_of(two))
        burst[0].cancel()


async def test_what_turns_out_not_to_fit_the_window_stays_and_the_node_remembers_no_request_that_ended():
    async with pair() as two:
        burst = [await two.held() for _ in range(2)]
        large = await two.held(max_tokens=5000)
        gone = await two.held()
        last = await two.held()
        lease_with_window(two, 4096)
        gone.cancel()
        sizes = two.owner.node.models[ModelId("public")].sizes
        await until(
            "the one whose client left to be forgotten", lambda: len(sizes._unsized) == 5
        )  # one is in the engine
        go = await answers_when_told(two)
        for _ in range(2):
            go.release()
        assert (await last).headers["leaseway-served-by"] == "n2"
        for _ in range(2):
            go.release()
        assert (await large).headers["leaseway-served-by"] == "n1"
        await asyncio.gather(*burst)
        assert not sizes._unsized

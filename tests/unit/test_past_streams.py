"""Stories out of the streams alone: gathered by time, whole or with a word on what is missing, clear about what nobody knows."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec
import pytest

from adapters.log.history import Streams
from domain.errors import BadIdError
from domain.events import Finished, LeaseUpdated, LendAnswered, Lent, LinkRemoved
from domain.ids import RequestId
from domain.ports import Bounds, StoredMessage
from services.past.source import NotKnownError, Sought
from services.past.streams import StreamsPast
from services.past.why import last_plan, why_commit, why_lease, why_request
from tests.support.history import START_NS, finished, held, lend, started
from tests.support.listed import ListedStream, ledger_of, stored
from tests.support.stories import ON, Story

BORN_MS = START_NS // 1_000_000


def request(number: int) -> str:
    """Return an id as a node makes it at about the history's beginning."""
    return f"req_{BORN_MS:012x}7{number:019x}"


def told(request: Callable[[int], str] = request) -> tuple[Story, str]:
    """Return a history in which request 1 was lent under the lease that is returned with it, and answered."""
    story = Story()
    for number in range(8):
        story.recorder.state("a", started(request(number)) if number in {6, 7} else held(request(number), number + 1))
    story.look()
    lease = next(iter(story.master.state.leases.values())).event.lease
    facts = [
        lend(Lent, request(1), ON, work=64_000_000, out=1, waited_us=3_000, slots=2),
        lend(LendAnswered, request(1), ON, status=200, service_us=400_000),
    ]
    for fact in facts:
        story.recorder.state("a", msgspec.structs.replace(fact, lease=lease), after_us=400_000)
    story.recorder.state("a", finished(request(1), helper="b", service_us=400_000))
    story.look()
    for number in (0, 2, 3, 4, 5):
        story.recorder.state("a", started(request(number)), after_us=1_000_000)
        story.recorder.state("a", Finished(request=RequestId(request(number)), model=ON.owner_model, status=200))
        story.look()
    return story, lease


@pytest.fixture
def past() -> StreamsPast:
    story, _ = told()
    return StreamsPast(stored(story.recorder, story.master.commits))


async def test_a_request_is_found_by_the_time_in_its_id_with_its_lease_and_plans(past: StreamsPast):
    made = await why_request(past, request(1))
    assert (made.state, made.helper, made.source, made.incomplete) == ("finished", "b", "NATS", "")
    assert made.lease is not None
    assert made.lease.reason == "pays"
    assert made.plans
    assert made.compared.home_finish_us > 0


@pytest.mark.parametrize("off_s", [-86_400, -7 * 3600, 60, 3600, 86_400])
async def test_a_request_of_a_node_whose_clock_is_off_is_found_whole(off_s: int):
    """Its id has the node's time, and all else the server's."""

    def made_by(number: int) -> str:
        return f"req_{BORN_MS + off_s * 1000:012x}7{number:019x}"

    story, _ = told(made_by)
    past = StreamsPast(stored(story.recorder, story.master.commits))
    found = await why_request(past, made_by(1))
    assert found.moments[0].what == "held"
    assert (found.state, found.helper, len(found.moments)) == ("finished", "b", 4)


async def test_a_request_is_told_from_its_beginning_where_its_nodes_clock_is_a_little_ahead():
    """A part of its life would stand in the span that the time in its id names: the rest must not be passed over."""

    def made_by(number: int) -> str:
        return f"req_{BORN_MS + 13_000:012x}7{number:019x}"

    story, _ = told(made_by)
    past = StreamsPast(stored(story.recorder, story.master.commits))
    found = await why_request(past, made_by(5))
    assert [each.what for each in found.moments] == ["held", "started", "finished"]


async def test_a_lease_and_its_commit_are_found_by_the_version_in_the_name():
    story, lease = told()
    past = StreamsPast(stored(story.recorder, story.master.commits))
    made = await why_lease(past, lease, now_ns=0)
    assert [(each.request, each.outcome) for each in made.requests] == [(request(1), "answered")]
    assert made.state == "cleared"
    commit = await why_commit(past, made.version, generation=lease[:8], chosen=1)
    assert commit.leases[0].lease == lease
    assert sum(commit.inputs.values()) == commit.hi - commit.lo + commit.chi - commit.clo
    ended = next(step.line for step in made.steps if step.line is not None and step.line.kind == "cleared")
    last = await why_commit(past, ended.version)
    assert (last.leases[0].slots_before > 0, last.leases[0].slots_after) == (True, 0)


async def test_what_nobody_stored_is_said_with_who_was_asked_and_how_far_back_that_one_reaches(past: StreamsPast):
    with pytest.raises(NotKnownError, match=r"request .*NATS was asked; its LW_EVENTS begins at 1, stored 20\d\d-"):
        await why_request(past, request(99))
    with pytest.raises(NotKnownError, match=r"commit 999: is not kept .*LW_LEDGER begins at 1"):
        await why_commit(past, 999)
    with pytest.raises(NotKnownError, match="must be of generation ffff0000, the one that is kept is of 00010000"):
        await why_commit(past, 1, generation="ffff0000")
    with pytest.raises(NotKnownError, match="decision 0 of commit 1 grants none"):
        await why_lease(past, "00010000-1-0", now_ns=0)
    with pytest.raises(BadIdError, match="must be <generation>-<version>-<index>"):
        await why_lease(past, "nonsense", now_ns=0)
    with pytest.raises(BadIdError):
        await why_request(past, "my-own-id")


async def test_a_story_of_which_a_piece_is_gone_says_what_is_missing():
    story, _ = told()
    whole = stored(story.recorder, story.master.commits)
    kept = [message for message in story.recorder.facts if message.seq != 9]
    past = StreamsPast(Streams(ListedStream("LW_EVENTS", kept, batch=1), whole.control, whole.ledger))
    made = await why_request(past, request(1))
    assert "message 9 is not there" in made.incomplete
    assert made.state == "held"
    with pytest.raises(NotKnownError, match="message 9 is not there"):
        await why_request(past, request(99))


async def test_no_more_is_found_than_was_asked_for_and_that_is_said(past: StreamsPast):
    found = await past.facts(Sought(limit=3))
    assert len(found.messages) == 3
    assert found.incomplete == "only the first 3 messages of LW_EVENTS are told of"


async def test_only_what_was_stored_in_the_span_that_is_asked_for_is_found(past: StreamsPast):
    stamps = [message.stamp_ns for message in (await past.facts(Sought())).messages]
    since_ns, until_ns = stamps[3], stamps[8]
    found = (await past.facts(Sought(since_ns=since_ns, until_ns=until_ns))).messages
    assert [message.stamp_ns for message in found] == stamps[3:9]


async def test_what_is_lent_long_after_the_last_word_on_a_live_lease_is_in_its_story():
    story = Story()
    story.burst(8)
    lease = next(iter(story.master.state.leases.values())).event.lease
    for number, after_us in ((2, 1_000), (3, 9_000_000)):
        lent = lend(Lent, f"req_{number}", ON, work=64_000_000, out=1, waited_us=9, slots=2)
        story.recorder.state("a", msgspec.structs.replace(lent, lease=lease), after_us=after_us)
        answered = lend(LendAnswered, f"req_{number}", ON, status=200, service_us=9)
        story.recorder.state("a", msgspec.structs.replace(answered, lease=lease))
    made = await why_lease(StreamsPast(stored(story.recorder, story.master.commits)), lease, now_ns=0)
    assert made.state == "live"
    assert [(each.request, each.outcome) for each in made.requests] == [("req_2", "answered"), ("req_3", "answered")]


async def test_an_answer_that_comes_long_after_its_lease_is_over_is_in_its_story():
    story = Story()
    story.burst(8)
    lease = next(iter(story.master.state.leases.values())).event.lease
    lent = lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=9, slots=2)
    story.recorder.state("a", msgspec.structs.replace(lent, lease=lease))
    story.recorder.decree(LinkRemoved(link=ON.link, owner=ON.owner, owner_model=ON.owner_model))
    story.look()
    over = LeaseUpdated(link=ON.link, lease=lease, model=ON.owner_model, helper=ON.helper, slots=0, out=1)
    story.recorder.state("a", over)
    answered = lend(LendAnswered, "req_2", ON, status=200, service_us=9)
    story.recorder.state("a", msgspec.structs.replace(answered, lease=lease), after_us=60_000_000)
    story.recorder.state("a", started("req_3"), after_us=60_000_000)
    made = await why_lease(StreamsPast(stored(story.recorder, story.master.commits)), lease, now_ns=0)
    assert (made.state, made.ended_code) == ("cleared", "link_removed")
    assert [(each.request, each.outcome) for each in made.requests] == [("req_2", "answered")]


async def test_the_newest_plan_of_a_queue_is_found_or_there_is_none(past: StreamsPast):
    found = await last_plan((past,), "a", "m")
    assert found is not None
    assert (found.owner, found.model) == ("a", "m")
    later = [await past.commit(version) for version in range(found.version + 1, found.version + 50)]
    assert not any(message is not None and b"plan.planned" in message.body for message in later)
    assert await last_plan((past,), "b", "m") is None
    assert await last_plan((), "a", "m") is None


async def test_what_a_commit_had_read_is_told_however_long_before_it_was_stored():
    """A master that was away for an hour folds what came meanwhile in one commit after the other."""
    story = Story()
    for number in range(4):
        story.recorder.state("a", held(request(number), number + 1))
    late = story.recorder.facts[story.seen :]
    story.master.take(late[:2], [])
    story.master.take(late[2:], [])
    streams = stored(story.recorder, story.master.commits)
    hour_ns = 3600 * 10**9
    ledger = ledger_of(story.recorder, story.master.commits)
    moved = [msgspec.structs.replace(message, stamp_ns=message.stamp_ns + hour_ns) for message in ledger]
    past = StreamsPast(msgspec.structs.replace(streams, ledger=ListedStream("LW_LEDGER", moved)))
    assert (await why_commit(past, len(moved))).inputs == {"queue.held": 2}
    for made in story.master.commits:
        inputs = (await why_commit(past, made.version)).inputs
        assert sum(inputs.values()) == made.hi - made.lo + made.chi - made.clo
    assert (await why_commit(past, 1)).inputs["control.link_added"] == 1


class Waiting(ListedStream):
    """As the bus: whoever reads what is not stored yet waits for it."""

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        last = (await self.bounds()).last
        async for batch in super().read(after=after, until=None if until is None else min(until, last)):
            yield batch
        if until is not None and until > last:
            await asyncio.Event().wait()


class Archive(ListedStream):
    """As ClickHouse: what it has of an older life of the stream goes on beyond the end of the newest."""

    async def bounds(self) -> Bounds:
        return Bounds(1, 2, 0)


async def test_what_a_commit_had_read_of_an_older_life_of_a_stream_is_told_as_far_as_it_is_kept():
    story = Story()
    story.recorder.state("a", held(request(1), 1))
    story.master.take(story.recorder.facts[story.seen :], [])
    streams, made = stored(story.recorder, story.master.commits), story.master.commits[-1]
    facts = Archive("LW_EVENTS", story.recorder.facts)
    told = await why_commit(StreamsPast(msgspec.structs.replace(streams, events=facts)), made.version)
    assert sum(told.inputs.values()) == made.hi - made.lo + made.chi - made.clo
    assert (made.hi > 2, told.incomplete) == (True, "")


async def test_what_a_commit_had_read_of_a_stream_that_ends_before_is_waited_for_by_nobody():
    """It was made anew since, or has lost its newest messages."""
    story = Story()
    story.recorder.state("a", held(request(1), 1))
    story.recorder.state("a", held(request(2), 2))
    story.master.take(story.recorder.facts[story.seen :], [])
    streams, made = stored(story.recorder, story.master.commits), story.master.commits[-1]
    facts = Waiting("LW_EVENTS", story.recorder.facts[: made.hi - 1])
    cut = msgspec.structs.replace(streams, events=facts, control=Waiting("LW_CONTROL", []))
    async with asyncio.timeout(5):
        told = await why_commit(StreamsPast(cut), made.version)
    assert sum(told.inputs.values()) == made.hi - made.lo - 1
    ends = f"LW_EVENTS: ends at {made.hi - 1}, before message {made.hi}"
    assert told.incomplete == f"{ends}; LW_CONTROL: ends at 0, before message {made.chi}"

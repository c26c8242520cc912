"""Time travel: the state at a version is the one that the master had, bit for bit; at a time, that and the facts since."""

import hashlib
from collections.abc import Sequence

import msgspec
import pytest

from adapters.clock import SystemClock
from adapters.log.history import Streams
from adapters.log.reader import BAD_MAC, Reader
from adapters.log.snapshots import Snapshots
from adapters.log.travel import NothingThereError, last_until, state_at
from adapters.log.unkeyed import UnkeyedReader
from adapters.memory.stream import MemoryStream
from domain.errors import NotYetError
from domain.events.commit import Commit
from domain.master.state import State, encode_state
from domain.master.step import Position, Range, after, fold_into, replay
from projections.why.cluster import cluster_at, knows
from tests.support import golden
from tests.support.history import CLUSTER, SECRET, Master, Recorder, finished, held
from tests.support.listed import ListedStream, stored, with_other_tag
from tests.support.stories import Story

HISTORIES = ("random", "realistic", "rules", "switch")


def lived(recorder: Recorder, commits: Sequence[Commit]) -> list[bytes]:
    """Return the state after each commit, decided again as the master did."""
    reader, state, position = Reader(CLUSTER, SECRET), State(), Position(commits[0].generation)
    states = []
    for made in commits:
        state.term, span = made.term, Range()
        control = [(reader.control(message), message) for message in recorder.control[made.clo : made.chi]]
        fold_into(state, span, control, reader.facts(recorder.facts[made.lo : made.hi]))
        replay(state, position, made, span)
        position = after(made)
        states.append(encode_state(state))
    return states


@pytest.mark.parametrize("name", HISTORIES)
async def test_the_state_at_every_version_is_the_one_that_the_master_had(name: str):
    recorder, commits = golden.load(name)
    streams, states = stored(recorder, commits), lived(recorder, commits)
    snapshots = Snapshots(MemoryStream("LW_SNAP", SystemClock()), cluster=CLUSTER)
    stated = 0
    for made, state in zip(commits, states, strict=True):
        found = await state_at(streams, Reader(CLUSTER, SECRET), snapshots=snapshots, version=made.version)
        assert encode_state(found.state) == state, made.version
        assert (found.commit, found.facts, found.control, found.head) == (made, 0, 0, commits[-1].version)
        if made.state:
            stated += 1
            assert hashlib.blake2b(encode_state(found.state), digest_size=16).hexdigest() == made.state
            await snapshots.save(made.version, state)
        elif stated:
            assert found.snapshot == max(each.version for each in commits[: made.version] if each.state)
    assert stated or name in {"rules", "switch"}


async def test_without_snapshots_and_without_the_keys_it_is_the_same_state():
    recorder, commits = golden.load("random")
    streams, states = stored(recorder, commits), lived(recorder, commits)
    assert any(made.rejected for made in commits)
    for version in (commits[-1].version, commits[-1].version // 2):
        for reader in (Reader(CLUSTER, SECRET), UnkeyedReader(CLUSTER)):
            found = await state_at(streams, reader, version=version)
            assert encode_state(found.state) == states[version - 1]


async def test_a_forged_fact_is_left_out_without_the_keys_because_the_commit_says_so():
    story = Story()
    forged = story.recorder.state("a", held("req_forged"))
    story.recorder.facts[-1] = msgspec.structs.replace(forged, body=with_other_tag(forged.body))
    story.recorder.pseq["a"] -= 1
    story.burst(3)
    assert [code for made in story.master.commits for _, code in made.rejected] == [BAD_MAC]
    found = await state_at(stored(story.recorder, story.master.commits), UnkeyedReader(CLUSTER))
    assert "req_forged" not in found.state.queues["a/m"].held
    assert "req_2" in found.state.queues["a/m"].held


async def test_between_two_commits_it_is_the_older_one_and_the_facts_since():
    story = Story()
    story.burst(4)
    version, hi = story.master.position.version, story.master.position.hi
    state = encode_state(story.master.state)
    story.recorder.state("a", held("req_later", 3), after_us=5_000_000)
    story.recorder.state("a", held("req_too_late", 4), after_us=5_000_000)
    story.look()
    streams = stored(story.recorder, story.master.commits)
    at_ns = story.recorder.facts[hi].stamp_ns
    reader = Reader(CLUSTER, SECRET)
    before = await state_at(streams, reader, time_ns=at_ns - 1)
    assert (before.commit.version, before.facts, encode_state(before.state)) == (version, 0, state)
    found = await state_at(streams, reader, time_ns=at_ns)
    assert (found.commit.version, found.facts) == (version, 1)
    assert sorted(found.state.queues["a/m"].held) == ["req_2", "req_3", "req_later"]
    assert found.state.leases.keys() == before.state.leases.keys()


async def test_now_is_everything_that_is_stored():
    story = Story()
    story.burst(4)
    story.recorder.state("a", finished("req_0"))
    streams = stored(story.recorder, story.master.commits)
    found = await state_at(streams, Reader(CLUSTER, SECRET))
    assert (found.facts, found.state.hi) == (1, len(story.recorder.facts))
    assert "req_0" not in found.state.queues["a/m"].engine


async def test_what_is_asked_for_beyond_history_says_where_history_begins_and_ends():
    story = Story()
    story.burst(4)
    streams, last = stored(story.recorder, story.master.commits), story.master.position.version
    for version, time_ns in ((last + 1, None), (0, None), (None, 1)):
        with pytest.raises(NothingThereError, match=f"begins at version 1.* and ends at {last}"):
            await state_at(streams, Reader(CLUSTER, SECRET), version=version, time_ns=time_ns)
    with pytest.raises(NotYetError, match="the ledger is empty"):
        await state_at(stored(Recorder(), []), Reader(CLUSTER, SECRET))


async def test_a_ledger_that_lost_its_beginning_is_folded_from_a_snapshot_or_said_to_be_too_short():
    recorder, commits = golden.load("random")
    at = next(made for made in commits if made.state and made.version > 5)
    streams = stored(recorder, commits)
    short = Streams(
        streams.events,
        streams.control,
        ListedStream(
            "LW_LEDGER",
            [m async for batch in streams.ledger.read(after=at.version - 1, until=commits[-1].version) for m in batch],
        ),
    )
    reader = Reader(CLUSTER, SECRET)
    with pytest.raises(NothingThereError, match="cannot be folded"):
        await state_at(short, reader, version=at.version + 3)
    snapshots = Snapshots(MemoryStream("LW_SNAP", SystemClock()), cluster=CLUSTER)
    states = lived(recorder, commits)
    await snapshots.save(at.version, states[at.version - 1])
    found = await state_at(short, reader, snapshots=snapshots, version=at.version + 3)
    assert encode_state(found.state) == states[at.version + 2]


async def test_the_newest_message_until_a_time_is_found_by_its_stamp():
    recorder, commits = golden.load("rules")
    streams = stored(recorder, commits)
    for number in (1, 2, len(recorder.facts) // 2, len(recorder.facts)):
        stamp = recorder.facts[number - 1].stamp_ns
        until = max(message.seq for message in recorder.facts if message.stamp_ns <= stamp)
        assert await last_until(streams.events, stamp) == until
    assert await last_until(streams.events, recorder.facts[0].stamp_ns - 1) == 0


async def test_the_cluster_as_people_read_it_has_queues_leases_links_and_costs_and_can_be_narrowed():
    story = Story()
    story.burst(6)
    master: Master = story.master
    made = cluster_at(
        master.state, version=1, generation="g", at_ns=1, policy="p", digest="", state="", facts=0, control=0, head=1
    )
    [queue] = made.queues
    assert (queue.node, queue.held, queue.in_engine) == ("a", ("req_2", "req_3", "req_4", "req_5"), ("req_0", "req_1"))
    [lease] = made.leases
    assert (lease.owner, lease.helper, lease.left_us > 0) == ("a", "b", True)
    assert {each.node: each.health for each in made.nodes} == {"a": "healthy", "b": "healthy"}
    assert [(fit.node, fit.samples) for fit in made.fits] == [("a", 1)]
    assert [(link.owner, link.helper) for link in made.links] == [("a", "b")]
    narrow = cluster_at(
        master.state, only="b/m", version=1, generation="g", at_ns=1, policy="p", digest="", state="", facts=0, control=0,
        head=1,
    )  # fmt: skip
    assert (narrow.queues, len(narrow.leases), len(narrow.links), len(narrow.nodes)) == ((), 1, 1, 1)
    assert [knows(master.state, each) for each in ("", "a", "a/m", "c", "a/other")] == [True, True, True, False, False]

"""The ledger as an ordinary aggregate: commits as the master writes them, read by version on a real server."""

import asyncio
import threading

import nats
import pytest
from eventsourcing.persistence import NotSupportedError, StoredEvent

from adapters.nats.eventsourcing.grant_ledger import GrantLedger, GrantRecord
from adapters.nats.eventsourcing.ledger_recorder import CommitMapper
from domain.errors import CallerError, ChainBrokenError, HistoryGapError
from domain.events import Basis, LeaseChanged, LeaseCleared, LeaseGranted, OwnerPlanned
from domain.events.commit import GENESIS_DIGEST, Commit, encode_commit, seal
from domain.ids import Generation, Incarnation, LeaseId, ModelId, NodeId, link_id
from tests.support.bare_nats import bare_nats_url  # noqa: F401  # a fixture

pytestmark = pytest.mark.real
A, B, C, M = NodeId("a"), NodeId("b"), NodeId("c"), ModelId("m")
AB, AC = link_id(A, M, B, M), link_id(A, M, C, M)
GENERATION = Generation("00010000")
TTL_US = 30_000_000
PLAN = OwnerPlanned(
    owner=A, model=M, trigger="enqueued", held=1, lendable=1, in_engine=2, out=0, drain_us=1, verdicts=()
)


def lease(kind, helper, *, slots):
    return kind(
        link=link_id(A, M, helper, M),
        owner=A,
        owner_model=M,
        helper=helper,
        helper_model=M,
        helper_url="http://h:1",
        lease=LeaseId("00010000-1-1"),
        slots=slots,
        ttl_us=TTL_US,
        basis=Basis(A, Incarnation("0" * 32), 1),
    )


GRANTED_B, CHANGED_B = lease(LeaseGranted, B, slots=1), lease(LeaseChanged, B, slots=2)
CLEARED_B, GRANTED_C = lease(LeaseCleared, B, slots=0), lease(LeaseGranted, C, slots=1)
STORY = [(PLAN, GRANTED_B), (GRANTED_C,), (CHANGED_B, PLAN), (CLEARED_B,), ()]
"""Decisions of versions 1 to 5."""


def chain(story, *, prev=GENESIS_DIGEST, first=1, step_us=1_000_000):
    """Return sealed commits with these decisions."""
    commits = []
    for version, decisions in enumerate(story, first):
        unsealed = Commit(
            version=version,
            generation=GENERATION,
            term=1,
            policy="p",
            lo=version - 1,
            hi=version,
            clo=0,
            chi=0,
            n=1,
            now_us=version * step_us,
            decisions=tuple(decisions),
            prev=prev,
            digest="",
        )
        commits.append(seal(unsealed, ()))
        prev = commits[-1].digest
    return commits


@pytest.fixture
async def write(nats_server):
    """Store commits as the master does: raw, whole-stream expectation, no headers of any library."""
    client = await nats_server.client("master")
    js = client.jetstream()

    async def write_all(commits):
        for commit in commits:
            expected = {"Nats-Expected-Last-Sequence": str(commit.version - 1)}
            await js.publish("lw.local.ledger", encode_commit(commit), headers=expected)

    return write_all


@pytest.fixture
async def ledger(nats_server):
    ledger = await asyncio.to_thread(GrantLedger, nats_server.url, nats_server.credentials("operator"), "local")
    yield ledger
    await asyncio.to_thread(ledger.close)


async def test_every_version_has_the_leases_that_were_live_then(ledger, write):
    await write(chain(STORY))
    seen = [await asyncio.to_thread(ledger.grants_at, version) for version in range(6)]
    assert seen == [
        {},
        {AB: GRANTED_B},
        {AB: GRANTED_B, AC: GRANTED_C},
        {AB: CHANGED_B, AC: GRANTED_C},
        {AC: GRANTED_C},
        {AC: GRANTED_C},
    ]
    assert list(seen[2]) == sorted([AB, AC])
    assert await asyncio.to_thread(ledger.head) == 5


async def test_now_is_the_newest_version_and_goes_on_from_what_was_read(ledger, write):
    assert await asyncio.to_thread(ledger.grants_at) == {}
    commits = chain(STORY)
    for commit, expected in zip(commits[:4], ({AB}, {AB, AC}, {AB, AC}, {AC}), strict=True):
        await write([commit])
        assert set(await asyncio.to_thread(ledger.grants_at)) == expected
    assert await asyncio.to_thread(ledger.grants_at, 1) == {AB: GRANTED_B}


async def test_a_lease_that_nobody_renewed_is_over_when_its_time_is(ledger, write):
    await write(chain([(GRANTED_B,), (), ()], step_us=TTL_US * 6 // 10))
    assert await asyncio.to_thread(ledger.grants_at, 2) == {AB: GRANTED_B}
    assert await asyncio.to_thread(ledger.grants_at, 3) == {}


async def test_the_history_of_a_link_names_version_and_place_of_each_change(ledger, write):
    await write(chain(STORY))
    history = await asyncio.to_thread(lambda: list(ledger.history(AB)))
    assert history == [
        GrantRecord(version=1, index=1, now_us=1_000_000, event=GRANTED_B),
        GrantRecord(version=3, index=0, now_us=3_000_000, event=CHANGED_B),
        GrantRecord(version=4, index=0, now_us=4_000_000, event=CLEARED_B),
    ]
    assert await asyncio.to_thread(lambda: list(ledger.history(AB, after=1, until=3))) == history[1:2]
    everything = await asyncio.to_thread(lambda: list(ledger.history()))
    assert [record.version for record in everything] == [1, 2, 3, 4]


async def test_a_subscription_gives_old_commits_and_then_new_ones_each_once(ledger, write):
    commits = chain(STORY)
    await write(commits[:2])
    subscription = await asyncio.to_thread(ledger.subscribe, 1)

    def take(count):
        return [next(subscription) for _ in range(count)]

    assert await asyncio.to_thread(take, 1) == commits[1:2]
    waiting = asyncio.create_task(asyncio.to_thread(take, 3))
    await write(commits[2:])
    assert await waiting == commits[2:]
    await asyncio.to_thread(subscription.stop)


async def test_a_subscription_outlives_a_restart_of_the_server(ledger, write, nats_server):
    commits = chain(STORY)
    await write(commits[:1])
    with await asyncio.to_thread(ledger.subscribe, 0) as subscription:
        assert await asyncio.to_thread(next, subscription) == commits[0]
        waiting = asyncio.create_task(asyncio.to_thread(next, subscription))
        nats_server.kill()
        await nats_server.restart()
        await write(commits[1:2])
        assert await waiting == commits[1]


async def test_a_waiting_subscription_is_ended_from_another_thread(ledger):
    subscription = await asyncio.to_thread(ledger.subscribe)
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(subscription))
    thread.start()
    await asyncio.to_thread(subscription.stop)
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    assert taken == []


async def test_a_version_that_is_not_there_yet_is_refused(ledger, write):
    await write(chain(STORY[:2]))
    for version in (3, -1):
        with pytest.raises(CallerError, match=f"version {version}: must be 0 to 2"):
            await asyncio.to_thread(ledger.grants_at, version)


async def test_a_commit_that_does_not_continue_the_one_before_is_named(ledger, write):
    first, *_ = chain(STORY)
    stray = chain(STORY[1:], prev="1" * 32, first=2)[0]
    await write([first, stray])
    assert await asyncio.to_thread(ledger.grants_at, 1) == {AB: GRANTED_B}
    for version in (2, None):
        with pytest.raises(ChainBrokenError, match="version 2: does not continue version 1"):
            await asyncio.to_thread(ledger.grants_at, version)


async def test_nobody_writes_the_ledger_through_the_library(ledger, write, nats_server):
    await write(chain(STORY[:1]))
    client = await nats_server.client("master")
    (stored,) = ledger._application.recorder.select_events("ledger")
    with pytest.raises(NotSupportedError, match="only the master writes commits"):
        ledger._application.recorder.insert_events([stored])
    assert (await client.jetstream().stream_info("LW_LEDGER")).state.last_seq == 1


async def test_what_is_no_commit_or_stands_elsewhere_is_named():
    first = chain(STORY)[0]
    for sequence, body, rule in (
        (1, b"{}", "sequence 1: not a commit"),
        (2, encode_commit(first), "sequence 2: must hold version 2, holds 1"),
    ):
        with pytest.raises(ChainBrokenError, match=rule):
            CommitMapper().to_domain_event(stored(sequence, body))


def stored(sequence, body):
    return StoredEvent("ledger", sequence, "commit", body)


@pytest.fixture
async def thinned(bare_nats_url):  # noqa: F811  # the fixture
    """Return a maker of ledgers from which some versions are gone, as by age or by accident."""
    client = await nats.connect(bare_nats_url)
    js = client.jetstream()
    ledgers = []

    async def make(gone):
        await js.add_stream(name="LW_LEDGER", subjects=["lw.local.ledger"])
        for commit in chain(STORY):
            await js.publish("lw.local.ledger", encode_commit(commit))
        for version in gone:
            await js.delete_msg("LW_LEDGER", version)
        ledgers.append(await asyncio.to_thread(GrantLedger, bare_nats_url, None, "local"))
        return ledgers[-1]

    yield make
    for ledger in ledgers:
        await asyncio.to_thread(ledger.close)
    await js.delete_stream("LW_LEDGER")
    await client.close()


async def test_a_ledger_whose_beginning_is_too_old_to_be_kept_is_read_from_there(thinned):
    ledger = await thinned((1, 2))
    assert await asyncio.to_thread(ledger.grants_at, 3) == {AB: CHANGED_B}
    assert [commit.version for commit in await asyncio.to_thread(lambda: list(ledger.commits()))] == [3, 4, 5]
    for asked in (lambda: ledger.grants_at(2), lambda: list(ledger.commits(1)), lambda: list(ledger.commits(1, 2))):
        with pytest.raises(HistoryGapError, match="version 2 is missing"):
            await asyncio.to_thread(asked)


async def test_a_hole_in_the_ledger_is_named(thinned):
    ledger = await thinned((3,))
    assert await asyncio.to_thread(ledger.grants_at, 2) == {AB: GRANTED_B, AC: GRANTED_C}
    for asked in (ledger.grants_at, lambda: ledger.grants_at(5), lambda: list(ledger.commits())):
        with pytest.raises(HistoryGapError, match="version 3 is missing"):
            await asyncio.to_thread(asked)

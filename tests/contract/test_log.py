"""What producer, ledger, feed and snapshots promise over a stream that fails, in memory and on a real server."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.clock import SystemClock, new_incarnation
from adapters.keys import Signer, Verifier, mac_matches, new_nkey
from adapters.log.feed import Feed, order_of
from adapters.log.ledger import Ledger
from adapters.log.producer import Producer
from adapters.log.snapshots import PART_BYTES_MAX, Snapshots
from adapters.log.spool import Spool
from domain.events import codec
from domain.events.commit import Commit
from domain.ids import NodeId
from domain.ports import StoredMessage, Stream
from tests.contract.rigs import AnyStream, Rig
from tests.support import facts
from tests.support.waiting import until

CLOCK = SystemClock()
KEY = b"k" * 32


async def stored(stream: Stream) -> list[StoredMessage]:
    bounds = await stream.bounds()
    return [message async for batch in stream.read(after=bounds.first - 1, until=bounds.last) for message in batch]


def folded(messages: list[StoredMessage]) -> list[tuple[str, int]]:
    """Return (incarnation, pseq) of what the fold accepts: only the next one counts; fail if it never gets one it needs."""
    last: dict[str, int] = {}
    accepted: list[tuple[str, int]] = []
    for message in messages:
        tagged = codec.split_tag(message.body, "mac")
        assert tagged is not None
        assert mac_matches(KEY, *tagged)
        envelope = codec.decode_envelope(message.body)
        pseq = int(envelope.pseq)
        if pseq == last.get(envelope.incarnation, 0) + 1:
            last[envelope.incarnation] = pseq
            accepted.append((envelope.incarnation, pseq))
    return accepted


# The stream rig gives streams whose subjects are `<name>.>`; facts go to lw.<cluster>, so it is named accordingly.
@asynccontextmanager
async def producing(stream: AnyStream, folder: Path) -> AsyncIterator[Producer]:
    producer = Producer(
        stream,
        cluster="local",
        node=NodeId("n1"),
        incarnation=new_incarnation(),
        mac_key=KEY,
        clock=CLOCK,
        spool=Spool(folder),
    )
    running = asyncio.create_task(producer.run())
    try:
        yield producer
    finally:
        running.cancel()


async def test_every_fact_is_stored_in_order_though_answers_are_lost(rig: Rig, tmp_path: Path):
    stream = await rig.stream("lw")
    async with producing(stream, tmp_path / "spool") as producer:
        producer.state(facts.held(1))
        assert await producer.drained()
        await rig.lose_answers()
        for number in range(2, 40):
            producer.state(facts.held(number))
        await until("the bus to be found silent", lambda: producer.unanswered > 0)
        await rig.heal()
        assert await producer.drained(20)
    assert folded(await stored(stream)) == [(producer.incarnation, pseq) for pseq in range(1, 40)]


async def test_every_fact_is_stored_in_order_though_the_bus_froze_and_stored_late(rig: Rig, tmp_path: Path):
    stream = await rig.stream("lw")
    async with producing(stream, tmp_path / "spool") as producer:
        await rig.freeze()
        for number in range(1, 40):
            producer.state(facts.held(number))
        await until("the bus to be found silent", lambda: producer.unanswered > 0)
        await rig.heal()
        assert await producer.drained(20)
    assert folded(await stored(stream)) == [(producer.incarnation, pseq) for pseq in range(1, 40)]


async def test_the_next_process_sends_the_old_spool_first(rig: Rig, tmp_path: Path):
    stream = await rig.stream("lw")
    async with producing(stream, tmp_path / "spool") as first:
        first.state(facts.held(1))
        assert await first.drained()
        await rig.freeze()
        for number in range(2, 30):
            first.state(facts.held(number))
    # the process is gone; nobody has told it whether anything of that was stored
    async with producing(stream, tmp_path / "spool") as second:
        second.state(facts.held(30))
        await rig.heal()
        assert await second.drained(20)
    old = [(first.incarnation, pseq) for pseq in range(1, 30)]
    assert folded(await stored(stream)) == [*old, (second.incarnation, 1)]


# -- ledger


def ledger_of(stream: Stream) -> Ledger:
    return Ledger(stream, "LW_LEDGER.x")


async def test_commits_are_appended_and_read_back(rig: Rig):
    ledger = ledger_of(await rig.stream())
    assert await ledger.head() is None
    assert [await ledger.append(version, b"c%d" % version, f"d{version}") for version in (1, 2, 3)] == [True] * 3
    assert [m.body async for batch in ledger.read(1, until=3) for m in batch] == [b"c2", b"c3"]
    head = await ledger.head()
    assert head is not None
    assert (head.seq, head.body) == (3, b"c3")


async def test_of_two_masters_one_wins_and_both_know(rig: Rig):
    ours, theirs = ledger_of(await rig.stream()), ledger_of(await rig.another())
    for version in range(1, 31):
        won = await asyncio.gather(
            ours.append(version, b"ours %d" % version, "aa"), theirs.append(version, b"theirs %d" % version, "bb")
        )
        assert sorted(won) == [False, True]
        head = await ours.head()
        assert head is not None
        assert head.body == (b"ours %d" if won[0] else b"theirs %d") % version


async def test_a_stale_master_whose_commit_has_the_same_id_learns_that_it_lost(rig: Rig):
    stream = await rig.stream()
    # another's commit under the very message id that ours would have: the stream answers `duplicate`
    await stream.publish("LW_LEDGER.x", b"theirs", message_id="1-aa")
    assert not await ledger_of(stream).append(1, b"ours", "aa")


async def test_a_stale_master_learns_that_it_lost_though_the_ledger_has_gone_on(rig: Rig):
    ledger = ledger_of(await rig.stream())
    for version in range(1, 6):
        await ledger.append(version, b"c%d" % version, "aa")
    assert not await ledger.append(3, b"stale", "bb")


async def test_of_two_masters_that_make_the_same_commit_only_one_stored_it(rig: Rig):
    """Two that take over at one moment make the same claim; were both told that it is theirs, both would go on deciding."""
    ours, theirs = ledger_of(await rig.stream()), ledger_of(await rig.another())
    for version in range(1, 21):
        won = await asyncio.gather(
            ours.append(version, b"claim %d" % version, "aa"), theirs.append(version, b"claim %d" % version, "aa")
        )
        assert sorted(won) == [False, True]


async def test_an_append_whose_answer_is_lost_is_found_to_be_stored(rig: Rig):
    stream = await rig.stream()
    await rig.lose_answers()
    appending = asyncio.create_task(ledger_of(stream).append(1, b"ours", "aa"))
    await until("the commit to be stored", lambda: _is_stored(rig))
    await rig.heal()
    async with asyncio.timeout(15):
        assert await appending
    assert [message.body for message in await stored(stream)] == [b"ours"]


async def _is_stored(rig: Rig) -> bool:
    return (await (await rig.another()).bounds()).last == 1


async def test_an_append_that_lands_late_is_stored_once(rig: Rig):
    stream = await rig.stream()
    await rig.freeze()
    appending = asyncio.create_task(ledger_of(stream).append(1, b"ours", "aa"))
    await asyncio.wait([appending], timeout=0.2)
    await rig.heal()
    async with asyncio.timeout(15):
        assert await appending
    assert [message.body for message in await stored(stream)] == [b"ours"]


# -- feed


def feed_of(stream: AnyStream, seed: str) -> Feed:
    return Feed(stream, cluster="local", signer=Signer(seed), clock=CLOCK)


def commits(count: int) -> list[Commit]:
    ledger = facts.Ledger()
    return [
        ledger.commit(facts.plan(), facts.granted(slots=number), facts.plan(), facts.granted(slots=number + 1))
        for number in range(1, count + 1)
    ]


async def test_the_feed_holds_every_decision_but_the_plans_once_in_order_and_signed(rig: Rig):
    stream = await rig.stream("lw")
    seed, public = new_nkey()
    feed = feed_of(stream, seed)
    assert await feed.resume() == (0, -1)
    made = commits(3)
    for commit in made:
        await feed.publish(commit)
    await feed.publish(made[1])  # again, by whoever
    messages = await stored(stream)
    orders = [order_of(message.headers) for message in messages]
    assert orders == [(facts.GENERATION, version, index) for version in (1, 2, 3) for index in (1, 3)]
    for message, (generation, version, index) in zip(messages, orders, strict=True):
        tagged = codec.split_tag(message.body, "sig")
        assert tagged is not None
        assert Verifier(public).verifies(*tagged)
        envelope = codec.decode_envelope(message.body)
        assert envelope.id == f"{generation}-{version}-{index}"
        assert codec.decode_decision(envelope.data) == made[version - 1].decisions[index]
    assert await feed_of(stream, seed).resume() == (3, 3)


async def test_two_masters_publish_the_same_commits_and_each_decision_is_there_once(rig: Rig):
    seed, _ = new_nkey()
    stream = await rig.stream("lw")
    other = await rig.another("lw")

    async def publish_all(feed: Feed) -> None:
        for commit in commits(10):
            await feed.publish(commit)

    async with asyncio.timeout(20):
        await asyncio.gather(publish_all(feed_of(stream, seed)), publish_all(feed_of(other, seed)))
    orders = [order_of(message.headers) for message in await stored(stream)]
    assert orders == [(facts.GENERATION, version, index) for version in range(1, 11) for index in (1, 3)]


async def test_a_feed_whose_answers_are_lost_goes_on_after_what_is_stored(rig: Rig):
    stream = await rig.stream("lw")
    feed = feed_of(stream, new_nkey()[0])
    made = commits(2)
    await feed.publish(made[0])
    await rig.lose_answers()
    publishing = asyncio.create_task(feed.publish(made[1]))
    await until("both decisions to be stored", lambda: _reaches(rig, 4))
    await rig.heal()
    async with asyncio.timeout(15):
        await publishing
    assert [order_of(message.headers)[1:] for message in await stored(stream)] == [(1, 1), (1, 3), (2, 1), (2, 3)]


async def _reaches(rig: Rig, last: int) -> bool:
    return (await (await rig.another("lw")).bounds()).last == last


# -- snapshots


async def test_the_newest_whole_snapshot_is_found(rig: Rig):
    stream = await rig.stream("lw")
    snapshots = Snapshots(stream, cluster="local")
    assert await snapshots.newest() is None
    large = hashlib.blake2b(b"x").digest() * 20_000  # several parts
    await snapshots.save(7, b"seven")
    await snapshots.save(9, large)
    assert (await stream.bounds()).last == 1 + -(-len(large) // PART_BYTES_MAX)
    assert await snapshots.newest() == (9, large)
    assert await snapshots.newest(not_after=8) == (7, b"seven")


async def test_a_snapshot_that_lacks_a_part_is_passed_over(rig: Rig):
    stream = await rig.stream("lw")
    snapshots = Snapshots(stream, cluster="local")
    await snapshots.save(7, b"seven")
    await snapshots.save(9, b"x" * (2 * PART_BYTES_MAX + 1))
    await rig.remove(stream, 3)
    assert await snapshots.newest() == (7, b"seven")


@pytest.mark.parametrize("size", [0, 1, PART_BYTES_MAX, PART_BYTES_MAX + 1])
async def test_a_snapshot_of_any_size_comes_back(rig: Rig, size: int):
    snapshots = Snapshots(await rig.stream("lw"), cluster="local")
    await snapshots.save(1, b"s" * size)
    assert await snapshots.newest() == (1, b"s" * size)

"""A master over streams in memory, hours in no time: what goes wrong beside the decisions does not stop them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import pytest

from adapters.log.feed import order_of
from adapters.log.history import Streams
from adapters.memory.stream import MemoryStream
from domain.events import (
    Due,
    HeartbeatMissed,
    HeartbeatSeen,
    LeaseGranted,
    OwnerPlanned,
    RequestOrphaned,
    Witness,
)
from domain.events.commit import decode_commit
from domain.ids import Generation, NodeId
from domain.ports import StoredMessage
from services.master.http import describe
from tests.support.history import finished, held, registered, started
from tests.support.scene import Scene, messages, play


def test_decisions_go_on_while_the_feed_refuses_and_reach_it_in_order_afterwards():
    async def scenario(scene: Scene) -> None:
        loop = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        scene.feed.faults.refuse(20)
        for name in "xyz":
            await scene.burst(name)
            await scene.beat("a", "b", seconds=2)
        made = await scene.commits()
        assert len({d.request for m in made for d in m.decisions if hasattr(d, "request")}) == 0
        assert any(isinstance(d, LeaseGranted) for m in made for d in m.decisions)
        assert loop.mode == "active"
        assert "full" in loop.feed_trouble or loop.feed_trouble
        scene.feed.faults.clear()
        await scene.beat("a", "b", seconds=5)
        wanted = [(m.version, i) for m in await scene.commits() for i, d in enumerate(m.decisions)
                  if not isinstance(d, OwnerPlanned)]  # fmt: skip
        assert [order_of(message.headers)[1:] for message in await messages(scene.feed)] == wanted
        assert loop.feed_trouble == ""

    play(scenario)


def test_decisions_go_on_where_neither_snapshots_nor_the_witness_can_be_kept():
    async def scenario(scene: Scene) -> None:
        scene.book.broken = True
        scene.snap.faults.refuse(1000)
        loop = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.burst("x")
        await scene.beat("a", "b", seconds=3)
        assert loop.mode == "active"
        assert any(isinstance(d, LeaseGranted) for m in await scene.commits() for d in m.decisions)
        assert await scene.clean()

    play(scenario)


def test_a_ledger_that_is_behind_its_own_feed_means_safe_mode():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.burst("x")
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        scene.book.kept = None
        scene.ledger.truncate(1)
        loop = scene.master()
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == "safe_mode"
        assert "the feed has seen version" in loop.doubt

    play(scenario)


def test_a_master_that_was_cut_off_itself_calls_no_node_silent():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        scene.air.connected = False
        await scene.beat("a", "b", seconds=60)
        scene.air.connected = True
        await scene.beat("a", "b", seconds=20)
        assert await scene.said(HeartbeatMissed) == []
        await scene.beat("a", seconds=5)
        assert [fact.node for fact in await scene.said(HeartbeatMissed)] == ["b"]  # type: ignore[union-attr]

    play(scenario)


def test_a_new_master_does_not_call_a_dead_node_alive():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.beat("a", seconds=20)
        await scene.stop()
        successor = scene.master()
        await scene.beat("a", seconds=20)
        assert successor.state.nodes[NodeId("b")].health == "offline"
        assert await scene.said(HeartbeatSeen) == []
        await scene.beat("a", "b", seconds=2)
        assert successor.state.nodes[NodeId("b")].health == "healthy"

    play(scenario)


def test_an_idle_cluster_states_no_timers_and_a_held_one_a_minute():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.burst("x", 2)
        await scene.beat("a", "b", seconds=600)
        stated = len(await scene.said(Due))
        assert 8 <= stated <= 40  # the backlog's minute, and its leases'
        for name in ("req_xs", "req_x0", "req_x1"):
            await scene.say("a", started(name), finished(name))
        await scene.beat("a", "b", seconds=120)
        stated = len(await scene.said(Due))
        await scene.beat("a", "b", seconds=3600)
        assert len(await scene.said(Due)) == stated

    play(scenario)


def test_a_standby_follows_a_busy_master_with_one_reading_of_each_stream():
    async def scenario(scene: Scene) -> None:
        opened: list[str] = []
        for stream in (scene.events, scene.control, scene.ledger):
            stream.read = counted(stream, opened)  # type: ignore[method-assign,assignment]
        active = scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        standby = scene.master()
        await scene.beat("a", "b", seconds=2)
        del opened[:]
        for i in range(40):
            await scene.burst(f"y{i}_", 2)
            await scene.beat("a", "b", seconds=0.5)
        assert active.mode == "active"
        assert standby.mode == "standby"
        assert standby.history.position == active.history.position
        assert len(opened) <= 3
        await scene.stop()

    play(scenario)


def counted(stream: MemoryStream, opened: list[str]) -> Callable[..., AsyncIterator[Sequence[StoredMessage]]]:
    plain = stream.read

    def read(**bounds: int | None) -> AsyncIterator[Sequence[StoredMessage]]:
        opened.append(stream.name)
        return plain(**bounds)  # type: ignore[arg-type]

    return read


@pytest.mark.parametrize("when", ["before", "loading", "doubt"])
def test_the_state_can_be_shown_at_any_time(when: str):
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.burst("x")
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        if when == "doubt":
            first = (await messages(scene.events))[0]
            scene.events.replace(msgspec.structs.replace(first, body=first.body.replace(b"http://h", b"http://i")))
            scene.snap.truncate(0)
        loop = scene.master()
        assert msgspec.json.encode(describe(loop))
        if when == "loading":
            while loop.mode == "starting":
                await asyncio.sleep(0)
                assert msgspec.json.encode(describe(loop))
        if when == "doubt":
            await scene.beat("a", "b", seconds=5)
            assert loop.mode == "safe_mode"
            assert describe(loop)["safe_mode"]
            assert loop.doubt

    play(scenario)


def test_a_master_that_takes_over_in_the_middle_of_many_orphans_says_the_rest_and_it_verifies():
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.say("a", *(held(f"req_{i:04}", i + 1) for i in range(2_000)))
        await scene.beat("a", "b", seconds=1)
        scene.recorder.restart("a")
        scene.ledger.faults.let_pass(1)
        scene.ledger.faults.lose(1000)
        await scene.say("a", registered())
        await scene.beat("a", "b", seconds=1)
        await scene.stop()
        scene.ledger.faults.clear()
        said = [d for made in await scene.commits() for d in made.decisions if isinstance(d, RequestOrphaned)]
        assert 0 < len(said) < 2_000
        scene.master()
        await scene.beat("a", "b", seconds=5)
        said = [d for made in await scene.commits() for d in made.decisions if isinstance(d, RequestOrphaned)]
        assert sorted(d.request for d in said) == [f"req_{i:04}" for i in range(2_000)]
        assert await scene.clean()

    play(scenario)


class Gated:
    """A stream of which one master reads nothing for a while, as if it slept."""

    def __init__(self, inner: MemoryStream) -> None:
        self.inner, self.open = inner, asyncio.Event()
        self.open.set()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def read(self, **where: int) -> AsyncIterator[Sequence[StoredMessage]]:
        async for batch in self.inner.read(**where):
            await self.open.wait()
            yield batch


def test_a_master_that_slept_through_the_reign_of_another_is_deposed_and_calls_nothing_lost():
    async def scenario(scene: Scene) -> None:
        asleep = Gated(scene.events)
        scene.streams = Streams(asleep, scene.control, scene.ledger)  # type: ignore[arg-type]
        sleeper = scene.master()
        scene.streams = Streams(scene.events, scene.control, scene.ledger)
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        asleep.open.clear()
        other = scene.master()
        scene.air.connected = False
        await scene.burst("x")
        await scene.beat("a", "b", seconds=6)
        assert (sleeper.mode, other.mode) == ("active", "active")
        assert other.history.position.version > sleeper.history.position.version
        last = await scene.feed.last()
        assert last is not None
        generation, version, _ = order_of(last.headers)
        seen = Witness(generation=Generation(generation), version=version, signed=last.body.decode())
        assert version > sleeper.history.position.version
        scene.recorder.restart("a")
        await scene.say("a", msgspec.structs.replace(registered(), witness=seen))
        scene.air.connected = True
        asleep.open.set()
        await scene.beat("a", "b", seconds=5)
        assert (sleeper.mode, sleeper.doubt, other.mode) == ("standby", "", "active")
        assert await scene.clean()

    play(scenario)


@pytest.mark.parametrize("lost", [False, True])
def test_a_server_clock_that_is_set_back_is_no_lost_history_and_messages_that_took_lost_ones_places_are(lost: bool):
    async def scenario(scene: Scene) -> None:
        scene.master()
        await scene.begin()
        await scene.beat("a", "b", seconds=3)
        await scene.burst("x")
        await scene.beat("a", "b", seconds=3)
        await scene.stop()
        if lost:
            bounds = await scene.events.bounds()
            scene.events.truncate(bounds.last - 3)
            await scene.say("a", *(held(f"req_y{i}", i + 1) for i in range(3)))
        last = await scene.ledger.last()
        assert last is not None
        stood_ns = (await scene.events.get(decode_commit(last.body).hi)).stamp_ns - 1  # type: ignore[union-attr]
        scene.ledger._messages[last.seq - 1] = msgspec.structs.replace(last, stamp_ns=stood_ns)
        loop = scene.master()
        await scene.beat("a", "b", seconds=5)
        assert loop.mode == ("safe_mode" if lost else "active")
        assert ("is newer than commit" in loop.doubt) == lost

    play(scenario)

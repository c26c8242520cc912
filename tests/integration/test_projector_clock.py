"""The projector's own clock is set back, or jumps ahead: what is kept, what is dropped and what is shown goes by stamps."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.log.public import Place
from adapters.memory.stream import MemoryStream
from domain.errors import BusError
from domain.ports import Bounds
from domain.subjects import CONTROL, DECISIONS, EVENTS
from services.projector.api_projections import STATUS
from services.projector.batches import BatchLimits
from services.projector.now import BusTime
from services.projector.projector import Projector, Setup
from services.projector.since import place_of
from tests.integration.test_projector_api import Client
from tests.support.facts import CLUSTER, Teller, finished, held, lent
from tests.support.projections import QUICK, Bus, caught_up, counts, running

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
HOUR_US = 3_600_000_000
JUMPS = (-HOUR_US, HOUR_US, 26 * HOUR_US)


_LAST_MINUTE: dict[str, Any] = {"from": "1m", "limit": 100}


class OffClock(SystemClock):
    """Is wrong by `off_us`."""

    def __init__(self, off_us: int = 0) -> None:
        self.off_us = off_us

    def wall_us(self) -> int:
        return super().wall_us() + self.off_us


def a_projector_by(clock: OffClock, bus: Bus, open_store: OpenStore, *, limits: BatchLimits = QUICK) -> Projector:
    """Return a projector that goes by another clock than the one that stamps the messages."""
    setup = Setup(
        cluster=CLUSTER, router="test", streams=bus.streams, open_store=open_store, clock=clock, limits=limits
    )
    return Projector(setup)


async def test_a_position_that_was_noted_after_the_clock_was_set_back_holds_when_the_rows_are_gone(database: OpenStore):
    bus, teller, clock = Bus(), Teller("n1"), OffClock()
    for life in range(2):
        await bus.tell(teller, *(lent(number) for number in range(10 * life, 10 * life + 10)))
        async with running(a_projector_by(clock, bus, database)) as projector:
            await caught_up(projector, await bus.ends())
        clock.off_us = -HOUR_US
    store = database()
    store.command("OPTIMIZE TABLE projector_state FINAL")  # of several notes the newest is kept
    for table in ("events", "decisions"):
        store.command(f"TRUNCATE TABLE {table}")  # as an age limit does in the end
    async with running(a_projector_by(clock, bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        assert projector.progress[EVENTS].rows == 0, "nothing is read again"


async def test_rows_and_their_days_are_the_same_whatever_the_clock_of_the_projector_says(database: OpenStore):
    bus, teller = Bus(), Teller("n1")
    clock = OffClock()
    async with running(a_projector_by(clock, bus, database)) as projector, Client(projector, bus) as client:
        for number, off_us in enumerate((0, *JUMPS)):
            clock.off_us = off_us
            await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
            await caught_up(projector, await bus.ends())
        store = database()
        assert counts(store, "requests", EVENTS) == (len(JUMPS) + 1, len(JUMPS) + 1)
        days = {message.stamp_ns // 86_400_000_000_000 for message in await _messages(bus[EVENTS])}
        found = store.query("SELECT DISTINCT toUInt32(day) AS day FROM events")
        assert {row["day"] for row in found} == days
        assert (await client.get("/health"))[1]["status"] == "ok"


async def _messages(stream: MemoryStream) -> list[Any]:
    return [message async for batch in stream.read(after=0, until=(await stream.bounds()).last) for message in batch]


@pytest.mark.parametrize("off_us", JUMPS)
async def test_so_long_ago_counts_back_from_the_time_of_the_stamps(off_us: int):
    stamps, own = OffClock(), OffClock(off_us)
    streams = {name: MemoryStream(name, stamps) for name in (EVENTS, CONTROL, DECISIONS)}
    for age_us in (2 * HOUR_US, HOUR_US // 2, 0):
        stamps.off_us = -age_us
        await streams[EVENTS].publish("lw.local.node.n1.queue.x.held", b"{}")
    assert await place_of(streams, own, "10m") == Place(events=2)
    assert await place_of(streams, own, "1h") == Place(events=1)
    assert await place_of(streams, own, "30d") == Place()


async def test_a_clock_that_jumps_while_the_projector_runs_changes_no_time_that_it_tells():
    stamps, own = OffClock(), OffClock()
    streams = {EVENTS: MemoryStream(EVENTS, stamps)}
    time = BusTime(streams, own)
    for off_us in JUMPS:
        own.off_us = off_us
        assert abs(await time.now_ns() - stamps.wall_us() * 1000) < 1_000_000_000


class SilentStream(MemoryStream):
    async def bounds(self) -> Bounds:
        raise BusError("bus: no answer")


async def test_a_bus_that_has_never_said_the_time_leaves_the_projectors_own():
    own = OffClock(HOUR_US)
    time = BusTime({EVENTS: SilentStream(EVENTS, own)}, own)
    assert abs(await time.now_ns() - own.wall_us() * 1000) < 1_000_000_000


@pytest.mark.parametrize("off_us", [-HOUR_US, HOUR_US])
async def test_how_far_behind_a_stream_is_goes_by_its_own_stamps(database: OpenStore, off_us: int):
    bus, teller = Bus(), Teller("n1")
    projector = a_projector_by(OffClock(off_us), bus, database)
    async with running(projector), Client(projector, bus, OffClock(off_us)) as client:
        await bus.tell(teller, *(lent(number) for number in range(10)))
        await caught_up(projector, await bus.ends())
        projector.progress[EVENTS] = told = msgspec.structs.replace(projector.progress[EVENTS], position=5)
        _, said, _ = await client.get(STATUS)
        stream = next(each for each in said["streams"] if each["stream"] == EVENTS)
        assert stream["lag"] == 5, told
        assert 0 <= stream["behind_us"] < 60_000_000, stream
        status, rows, _ = await client.get("/admin/v1/decisions", **_LAST_MINUTE)
        assert (status, len(rows["decisions"])) == (200, 10), "what was stored in the last minute"

"""What becomes of streams in the tables, on a real ClickHouse: every message once, whatever happens to either side."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.clickhouse.notes import Note, Notes
from adapters.clickhouse.store import Store, open_store
from adapters.clock import SystemClock
from adapters.memory.stream import MemoryStream
from domain.errors import BadConfigError, BusError
from domain.events import RequestOrphaned, SettingChanged, SettingCleared, SettingStated
from domain.ports import Bounds
from domain.subjects import CONTROL, EVENTS, LEDGER
from services.projector.batches import BatchLimits, batches
from services.projector.retain import RETENTION
from tests.support.clickhouse_http import HttpClickhouse
from tests.support.facts import MODEL, OWNER, Teller, control, finished, granted, held, lent, plan, request, verdict
from tests.support.projections import QUICK, Bus, a_projector, caught_up, counts, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
DAY_US = 86_400_000_000


async def test_rows_are_the_messages_of_the_streams_and_decisions_those_of_the_ledger(database: OpenStore):
    bus, teller = Bus(), Teller("n1")
    async with running(a_projector(bus, database)) as projector:
        for number in range(120):
            await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
            await bus.commit(plan(verdict(), verdict()), granted())
        await bus.commit(RequestOrphaned(node=OWNER, model=MODEL, request=request(500)))
        await caught_up(projector, await bus.ends())
        store = database()
        assert counts(store, "events", EVENTS) == (360, 360)
        assert counts(store, "events", LEDGER) == counts(store, "commits", LEDGER) == (121, 121)
        assert counts(store, "decisions", LEDGER) == (361, 121)
        assert store.query("SELECT uniqExact(seq, decision) AS n FROM decisions WHERE stream = 'LW_LEDGER'") == [
            {"n": 241}
        ]
        assert counts(store, "decisions", EVENTS) == (120, 120)
        assert store.query("SELECT count() AS n, uniqExact(request) AS r FROM requests") == [{"n": 121, "r": 121}]
        assert [projector.progress[name].error for name in bus.streams] == ["", "", ""]


async def test_a_projector_that_starts_again_goes_on_after_what_is_in_the_tables(database: OpenStore):
    bus, teller = Bus(), Teller("n1")
    for life in range(3):
        await bus.tell(teller, *(lent(number) for number in range(life * 10, life * 10 + 10)))
        async with running(a_projector(bus, database)) as projector:
            await caught_up(projector, await bus.ends())
            assert projector.progress[EVENTS].rows == 20, "nothing was read twice"
    assert counts(database(), "events", EVENTS) == (30, 30)


async def test_a_quiet_cluster_whose_rows_were_dropped_by_age_is_not_read_again(database: OpenStore):
    bus, teller = Bus(), Teller("n1")
    await bus.tell(teller, *(lent(number) for number in range(10)))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    store = database()
    store.command("TRUNCATE TABLE events")  # as an age limit does in the end
    store.command("TRUNCATE TABLE decisions")
    await bus.tell(teller, lent(10))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    assert counts(store, "events", EVENTS) == (1, 1)


@pytest.mark.parametrize("dropped", [False, True])
async def test_a_stream_that_was_made_anew_is_another_epoch_and_nothing_of_it_is_skipped(
    database: OpenStore, dropped: bool
):
    teller, store = Teller("n1"), database()
    for made in (1, 2):
        bus = Bus()
        await bus.tell(teller, *(lent(number) for number in range(10 * made)))
        async with running(a_projector(bus, database)) as projector:
            await caught_up(projector, await bus.ends())
            assert projector.progress[EVENTS].epoch == made
        if dropped and made == 1:
            store.command("TRUNCATE TABLE events")  # by age: no stamp is left to compare
    found = store.query("SELECT epoch, count() AS n FROM events WHERE stream = 'LW_EVENTS' GROUP BY 1 ORDER BY 1")
    assert found == [{"epoch": 1, "n": 10}, {"epoch": 2, "n": 20}][dropped:]


@pytest.mark.parametrize("told_again", [3, 20])
async def test_a_stream_that_lost_its_tail_begins_an_epoch_where_it_was_cut(database: OpenStore, told_again: int):
    bus, teller = Bus(), Teller("n1")
    await bus.tell(teller, *(lent(number) for number in range(20)))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    bus[EVENTS].truncate(12)  # a power cut took 13 to 20; then the numbers are used again
    await bus.tell(teller, *(finished(number) for number in range(told_again)))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        assert projector.progress[EVENTS].epoch == 2
    found = database().query(
        "SELECT epoch, min(seq) AS a, max(seq) AS z FROM events WHERE stream = 'LW_EVENTS' GROUP BY 1 ORDER BY 1"
    )
    assert found == [{"epoch": 1, "a": 1, "z": 20}, {"epoch": 2, "a": 13, "z": 12 + told_again}]


async def test_messages_that_are_gone_before_they_were_read_are_noted_and_the_rest_is_read(
    database: OpenStore, caplog: pytest.LogCaptureFixture
):
    bus, teller = Bus(), Teller("n1")
    await bus.tell(teller, *(lent(number) for number in range(20)))
    bus[EVENTS].expire(before=6)
    bus[EVENTS].remove(10)
    with caplog.at_level(logging.ERROR, "leaseway.projector"):
        async with running(a_projector(bus, database)) as projector:
            await caught_up(projector, await bus.ends())
            assert projector.notes is not None
            gaps = projector.notes.gaps()
    found = sorted((gap["first_seq"], gap["last_seq"]) for gap in gaps)
    assert found == [(1, 5), (10, 10)]
    assert counts(database(), "events", EVENTS) == (14, 14)
    assert errors(caplog) == ["messages_gone", "messages_gone"]


class FrailStream(MemoryStream):
    """Cannot be asked for a while, as a bus that is away."""

    away = True

    async def bounds(self) -> Bounds:
        if self.away:
            raise BusError("bus nats://127.0.0.1:4222: no answer")
        return await super().bounds()


async def test_a_bus_that_is_away_at_first_is_waited_for(database: OpenStore):
    bus = Bus()
    await bus.commit(plan())
    bus.streams[EVENTS] = FrailStream(EVENTS, bus.clock)
    await bus.tell(Teller("n1"), lent(1))
    async with running(a_projector(bus, database)) as projector:
        await until("an error that says so", lambda: "no answer" in projector.progress[EVENTS].error)
        bus.streams[EVENTS].away = False  # type: ignore[attr-defined]
        await caught_up(projector, {EVENTS: 1, LEDGER: 1})
        assert projector.progress[EVENTS].error == ""


async def test_a_commit_that_does_not_continue_the_ledger_is_told_and_so_after_a_restart(
    database: OpenStore, caplog: pytest.LogCaptureFixture
):
    bus = Bus()
    await bus.commit(granted())
    await bus.commit(granted())
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    await bus.commit(granted(), prev="11" * 16)
    with caplog.at_level(logging.ERROR, "leaseway.projector"):
        async with running(a_projector(bus, database)) as projector:
            await caught_up(projector, await bus.ends())
            assert projector.progress[LEDGER].void == 1
    assert errors(caplog) == ["commit_void"]
    assert counts(database(), "decisions", LEDGER) == (2, 2)


async def test_operators_set_the_retention_and_a_restart_keeps_it(database: OpenStore):
    asking = database()

    def retention(counts: bool = False) -> set[str]:
        found = asking.query(
            "SELECT extract(engine_full, 'toIntervalDay\\((\\d+)\\)') AS days FROM system.tables "
            "WHERE database = currentDatabase() AND engine_full LIKE '%toIntervalDay%' "
            "AND endsWith(name, '_by_minute') = {counts:Bool}",
            {"counts": counts},
        )
        return {row["days"] for row in found}

    bus = Bus()
    await bus[CONTROL].publish(*control(SettingChanged(name="offload_streams", value=0)))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        await bus[CONTROL].publish(*control(SettingChanged(name=RETENTION, value=7 * DAY_US)))
        await until("seven days", lambda: retention() == {"7"})
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        assert retention() == {"7"}
        await bus[CONTROL].publish(*control(SettingCleared(name=RETENTION)))
        await until("thirty days", lambda: retention() == {"30"})
        await bus[CONTROL].publish(*control(SettingStated(name=RETENTION, value=9 * DAY_US)))
        await until("nine days, as the file states", lambda: retention() == {"9"})
        assert retention(counts=True) == {"400"}, "counts outlive the rows"
        await bus[CONTROL].publish(*control(SettingStated(name=RETENTION, value=500 * DAY_US)))
        await until("500 days of rows, and of their counts", lambda: retention() | retention(counts=True) == {"500"})


async def test_tables_of_another_cluster_are_refused_for_good(store: Store, database: OpenStore):
    Notes(store, "elsewhere").write(Note(stream=EVENTS, epoch=1, created_ns=1, last_seq=0), now_ns=1)
    with pytest.raises(BadConfigError, match="must be of cluster local, it is of elsewhere"):
        await a_projector(Bus(), database).run()


def resident_kib() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def test_while_clickhouse_is_away_nothing_piles_up_and_afterwards_nothing_is_missing(tmp_path: Path):
    """Reports B.18."""
    bus, teller = Bus(), Teller("n1")
    async with HttpClickhouse(tmp_path) as server:
        projector = a_projector(bus, lambda: open_store(server.dsn), limits=BatchLimits(messages=500, wait_s=0.01))
        async with running(projector):
            await bus.tell(teller, *(lent(number) for number in range(500)))
            await caught_up(projector, {EVENTS: 500})
            await server.kill()
            await bus.tell(teller, *(lent(number) for number in range(500, 8000)))
            before_kib = resident_kib()
            await until("the outage to be known", lambda: projector.progress[EVENTS].error)
            await until("several attempts", _attempts(projector, 3))
            assert resident_kib() - before_kib < 16_000, "the backlog stays in the stream"
            assert projector.progress[EVENTS].position == 500
            await server.start()
            await caught_up(projector, await bus.ends(), timeout_s=30)
        store = await asyncio.to_thread(open_store, server.dsn)
        assert await asyncio.to_thread(counts, store, "events", EVENTS) == (8000, 8000)
        assert await asyncio.to_thread(counts, store, "decisions", EVENTS) == (8000, 8000)
        store.close()


def _attempts(projector: object, number: int) -> Callable[[], bool]:
    """Return what tells that `number` more errors were met: each attempt writes its own text."""
    seen: list[int] = []

    def met() -> bool:
        error = projector.progress[EVENTS].error  # type: ignore[attr-defined]
        if not seen or id(error) != seen[-1]:
            seen.append(id(error))
        return len(seen) > number

    return met


async def test_a_clickhouse_that_comes_back_empty_is_filled_from_the_beginning(tmp_path: Path):
    bus, teller = Bus(), Teller("n1")
    async with HttpClickhouse(tmp_path) as server:
        projector = a_projector(bus, lambda: open_store(server.dsn))
        async with running(projector):
            await bus.tell(teller, *(lent(number) for number in range(100)))
            await caught_up(projector, {EVENTS: 100})
            store = await asyncio.to_thread(open_store, server.dsn, database="default")
            await asyncio.to_thread(store.command, "DROP DATABASE leaseway SYNC")
            await bus.tell(teller, lent(100))
            await until("all of it again", lambda: _rows_of(store) == 101, timeout_s=20)
            store.close()


def _rows_of(store: Store) -> int:
    found = store.query(
        "SELECT toUInt64(sum(rows)) AS n FROM system.parts WHERE active AND database = 'leaseway' AND table = 'events'"
    )
    return int(found[0]["n"])


async def test_a_clickhouse_that_is_away_at_the_start_is_waited_for(tmp_path: Path):
    bus = Bus()
    await bus.tell(Teller("n1"), lent(1))
    server = HttpClickhouse(tmp_path)
    projector = a_projector(bus, lambda: open_store(server.dsn))
    async with running(projector):
        await projector.tried.wait()
        assert "does not answer" in projector.away
        async with server:
            await caught_up(projector, await bus.ends())
            assert projector.away == ""


async def test_a_batch_is_what_came_within_its_time_or_what_fills_it():
    stream = MemoryStream(EVENTS, SystemClock(), batch_max=40)
    for number in range(100):
        await stream.publish("lw.local.node.n1.queue.x.held", str(number).encode())
    seen = [len(batch) async for batch in batches(stream.read(after=0, until=100), BatchLimits(messages=80, wait_s=5))]
    assert seen == [80, 20]
    small = [len(batch) async for batch in batches(stream.read(after=0, until=100), BatchLimits(messages=80, bytes=60))]
    assert small == [40, 40, 20]
    pieces = batches(stream.read(after=90), QUICK)
    assert len(await anext(pieces)) == 10, "it does not wait for more than its time"
    await pieces.aclose()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the errors logged; what else is logged depends on the root's level, which other tests may have set."""
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]

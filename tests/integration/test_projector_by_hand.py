"""Tables that somebody has changed by hand, or that are somebody else's: nothing of them is lost, and what is wrong is said."""

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import pytest

from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.notes import Note, Notes
from adapters.clickhouse.store import Parameters, Store
from adapters.clock import SystemClock
from domain.errors import BadConfigError
from domain.subjects import EVENTS, LEDGER
from projections.tables import MIGRATIONS
from services.projector import rebuild as rebuild_module
from services.projector.projector import Projector
from tests.support.facts import Teller, finished, granted, held, lent, plan, verdict
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, counts, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
DAY_US = 86_400_000_000
NOON_US = SystemClock().wall_us() // DAY_US * DAY_US - DAY_US // 2
"""Noon of yesterday."""
EPOCH = date(1970, 1, 1)


async def come(bus: Bus, first: int, requests: int) -> None:
    teller = Teller("n1", pseq=3 * first)
    for number in range(first, first + requests):
        await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))


async def a_past(bus: Bus, days: int, requests: int) -> str:
    """Let requests come so many days ago, and return that day."""
    assert isinstance(bus.clock, SteppedClock)
    bus.clock.now_us = NOON_US - days * DAY_US
    await come(bus, 0, requests)
    bus.clock.now_us = NOON_US
    return a_day(days)


def a_day(ago: int) -> str:
    """Return yesterday, or a day so long before it, as SQL has it."""
    return f"'{EPOCH + timedelta(days=NOON_US // DAY_US - ago)}'"


def counted(store: Store, day: str) -> int:
    return int(store.query(f"SELECT toUInt64(sum(rows)) AS n FROM requests_by_minute WHERE day = {day}")[0]["n"])


async def rebuilt(projector: Projector, source: str = "archive") -> None:
    assert projector.rebuild(source)
    await until("the rebuild ends", lambda: not projector.rebuilt.busy, timeout_s=30)
    assert (projector.rebuilt.state, projector.rebuilt.error) == ("done", "")


async def test_tables_of_another_cluster_are_left_as_they_are(database: OpenStore):
    theirs = database()
    migrate(theirs, MIGRATIONS[:3])
    Notes(theirs, "away").write(Note(stream=EVENTS, epoch=1, created_ns=3, last_seq=9), now_ns=1)
    theirs.command("CREATE TABLE requests_new AS requests")
    with pytest.raises(BadConfigError, match="it is of away"):
        await a_projector(Bus(), database).run()
    assert theirs.query("SELECT toUInt32(max(number)) AS n FROM schema_migrations") == [{"n": 3}]
    assert theirs.query("SELECT count() AS n FROM requests_new") == [{"n": 0}], "what they rebuild is theirs"


async def test_a_table_that_lacks_a_column_is_named_and_filled_once_it_has_it_again(database: OpenStore):
    bus = Bus()
    await bus.commit(plan(verdict()), granted())
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    asking = database()
    asking.command("ALTER TABLE decisions DROP COLUMN job_us SETTINGS mutations_sync = 2")
    await bus.commit(plan(verdict()), granted())
    projector = a_projector(bus, database)
    async with running(projector):
        await until("it is named", lambda: "column job_us" in projector.progress[LEDGER].error)
        assert projector.causes == {"refused"}
        asking.command("ALTER TABLE decisions ADD COLUMN job_us Int64")
        await caught_up(projector, await bus.ends())
        assert counts(asking, "commits", LEDGER) == (2, 2)


async def test_notes_that_were_dropped_cost_no_life_of_a_stream_and_double_no_row(database: OpenStore):
    bus = Bus()
    for life, lost_after in enumerate((0, 12, 9), 1):
        bus[EVENTS].truncate(lost_after)
        await come(bus, 10 * life, 10)
        async with running(a_projector(bus, database)) as projector:
            await caught_up(projector, await bus.ends())
            assert projector.progress[EVENTS].epoch == life
    asking = database()
    before = counts(asking, "events", EVENTS)
    asking.command("DROP TABLE projector_state SYNC")
    await come(bus, 40, 1)
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        assert projector.progress[EVENTS].epoch == 3
        assert counts(asking, "events", EVENTS) == (before[0] + 3, before[1] + 3)


@pytest.mark.parametrize("source", ["archive", "stream"])
async def test_rows_whose_messages_are_gone_survive_a_rebuild(database: OpenStore, source: str):
    bus = Bus(SteppedClock(NOON_US))
    day = await a_past(bus, 5, 20)
    await come(bus, 20, 10)
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        assert projector.store is not None
        projector.store.command(f"ALTER TABLE events DROP PARTITION {day}")
        bus[EVENTS].expire(before=61)
        await rebuilt(projector, source)
        assert counts(projector.store, "requests", EVENTS) == (30, 30)
        assert counted(projector.store, day) == 20


class ExpiringStore(Store):
    """Lets go of a day of `events` while messages are taken from there page by page, as a retention does that is over."""

    day = ""
    pages = 0

    def query(
        self, statement: str, parameters: Parameters | None = None, *, raw: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        if ExpiringStore.day and "LIMIT 1 BY seq LIMIT" in statement:
            ExpiringStore.pages += 1
            if ExpiringStore.pages == 3:
                super().command(f"ALTER TABLE events DROP PARTITION {ExpiringStore.day}")
        return super().query(statement, parameters, raw=raw)


async def test_counts_of_a_day_that_is_dropped_while_it_is_made_again_stay_whole(
    database: OpenStore, monkeypatch: pytest.MonkeyPatch
):
    def open_it() -> Store:
        store = database()
        store.__class__ = ExpiringStore
        return store

    monkeypatch.setattr(rebuild_module, "_PAGE", 7)
    monkeypatch.setattr(ExpiringStore, "pages", 0)
    bus = Bus(SteppedClock(NOON_US))
    day = await a_past(bus, 28, 20)
    await come(bus, 20, 10)
    async with running(a_projector(bus, open_it)) as projector:
        await caught_up(projector, await bus.ends())
        monkeypatch.setattr(ExpiringStore, "day", day)
        await rebuilt(projector)
        assert ExpiringStore.pages > 3
        assert projector.store is not None
        assert counted(projector.store, day) == 20
        assert counted(projector.store, a_day(0)) == 10

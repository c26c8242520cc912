"""Counts by minute on a real ClickHouse: each insert is in them once, and a day they missed is counted again."""

import asyncio
from collections.abc import Callable

import pytest

from adapters.clickhouse.rollups import count_again, ensure_views, view_of, wrong_days
from adapters.clickhouse.sink import DAY_NS, Sink
from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from domain.subjects import EVENTS
from projections.project import LAST_TABLE, Context, project
from projections.rollups import ROLLUPS
from projections.rows import Rows
from projections.tables import RETAINED, TABLES
from services.projector.recount import Counted, keep_rollups
from tests.support.facts import Teller, finished, lent
from tests.support.projections import Bus, a_projector, caught_up, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
NOON_NS = SystemClock().wall_us() * 1000 // DAY_NS * DAY_NS - DAY_NS // 2
"""Noon of yesterday."""
DECISIONS, REQUESTS, LOADS = ROLLUPS


def facts(first: int, last: int, *, at_ns: int = NOON_NS) -> Rows:
    """Return the rows of `last - first + 1` lent requests that each end."""
    teller, seqs = Teller("n1", pseq=2 * first - 2), iter(range(2 * first - 1, 2 * last + 1))
    said = [fact for number in range(first, last + 1) for fact in (lent(number), finished(number, helper="n2"))]
    messages = [teller.tells(fact, seq, at_ns=at_ns + seq) for fact, seq in zip(said, seqs, strict=True)]
    return project(EVENTS, 1, messages, Context(router="test")).rows


def a_sink(store: Store) -> Sink:
    sink = Sink(store, RETAINED, last_table=LAST_TABLE)
    sink.reached(EVENTS, 1)
    return sink


def counted(store: Store, table: str) -> int:
    return int(store.query(f"SELECT toUInt64(sum(rows)) AS n FROM {table}")[0]["n"])


@pytest.fixture
def counting(store: Store) -> Store:
    ensure_views(store, ROLLUPS)
    return store


def test_every_insert_is_counted_and_one_that_is_repeated_once(counting: Store):
    rows = facts(1, 50)
    a_sink(counting).write(EVENTS, 1, rows)
    forgetful = a_sink(counting)
    forgetful._reached = dict.fromkeys(forgetful._reached, 0)  # the insert's token alone decides, for the view as well
    forgetful.write(EVENTS, 1, rows)
    assert (counted(counting, "decisions_by_minute"), counted(counting, "requests_by_minute")) == (50, 50)
    [sums] = counting.query("SELECT sum(wait_us) AS wait, sum(tokens_out) AS out FROM requests_by_minute")
    [raw] = counting.query("SELECT sum(wait_us) AS wait, sum(tokens_out) AS out FROM requests")
    assert sums == raw


def test_a_day_that_a_view_has_missed_is_found_and_counted_again(counting: Store):
    """A kill between a table and its view leaves the rows stored and uncounted."""
    sink = a_sink(counting)
    sink.write(EVENTS, 1, facts(1, 20))
    counting.command(f"DROP VIEW {REQUESTS.view}")
    sink.write(EVENTS, 1, facts(21, 30))
    sink.write(EVENTS, 1, facts(31, 35, at_ns=NOON_NS - DAY_NS))
    ensure_views(counting, ROLLUPS)
    wrong = wrong_days(counting, REQUESTS)
    assert [(day.stored, day.counted) for day in wrong] == [(5, 0), (30, 20)]
    assert [day.day for day in wrong_days(counting, REQUESTS, newest=1)] == [wrong[1].day]
    assert wrong_days(counting, DECISIONS) == []
    for day in wrong:
        count_again(counting, REQUESTS, day.day)
        count_again(counting, REQUESTS, day.day)  # as often as one likes
    assert wrong_days(counting, REQUESTS) == []
    sink.write(EVENTS, 1, facts(36, 40))
    assert counted(counting, "requests_by_minute") == 40, "the view goes on into the mended table"


def test_days_of_a_clock_that_was_ahead_do_not_keep_todays_counts_from_being_compared(counting: Store):
    sink = a_sink(counting)
    for first, days in ((1, 0), (11, 40), (21, 41)):
        sink.write(EVENTS, 1, facts(first, first + 9, at_ns=NOON_NS + days * DAY_NS))
    counting.command(f"TRUNCATE TABLE {REQUESTS.table}")
    [wrong] = wrong_days(counting, REQUESTS, newest=1)
    assert wrong.day == counting.query("SELECT toString(min(day)) AS day FROM requests")[0]["day"]
    assert len(wrong_days(counting, REQUESTS)) == 3, "at the start each of them is"


def test_a_row_that_is_stored_twice_is_counted_once_after_the_day_is_compared(counting: Store):
    counting.command("SYSTEM STOP MERGES requests")
    rows = facts(1, 10)
    a_sink(counting).write(EVENTS, 1, rows)
    columns = rows["requests"].columns
    counting.insert_columns("requests", columns, token="another")
    assert counted(counting, "requests_by_minute") == 20
    [day] = wrong_days(counting, REQUESTS)
    count_again(counting, REQUESTS, day.day)
    assert counted(counting, "requests_by_minute") == 10


def test_counts_outlive_the_rows_they_were_counted_from(counting: Store):
    """A day that is (about to be) dropped is not counted again as nothing."""
    a_sink(counting).write(EVENTS, 1, facts(1, 10))
    counting.command("ALTER TABLE requests MODIFY TTL day + INTERVAL 2 DAY DELETE")
    counting.command("ALTER TABLE requests DELETE WHERE seq < 9 SETTINGS mutations_sync = 2")
    assert wrong_days(counting, REQUESTS) == []
    counting.command("TRUNCATE TABLE requests")
    assert wrong_days(counting, REQUESTS) == []
    assert counted(counting, "requests_by_minute") == 10


async def test_a_projector_mends_what_its_last_life_left_uncounted_and_says_so(database: OpenStore):
    bus, teller = Bus(), Teller("n1")
    for number in range(30):
        await bus.tell(teller, lent(number), finished(number))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
        await until("the first comparison", lambda: projector.counted.looks == 1)
        assert projector.store is not None
        projector.store.command("TRUNCATE TABLE requests_by_minute")
    async with running(a_projector(bus, database)) as projector:
        await until("the first comparison", lambda: projector.counted.looks == 1)
        assert projector.store is not None
        assert (projector.counted.mended, counted(projector.store, "requests_by_minute")) == (1, 30)


async def test_days_are_compared_again_and_again_not_only_at_the_start(counting: Store):
    known = Counted()
    keeping = asyncio.ensure_future(keep_rollups(counting, asyncio.Lock(), known, every_s=0.05))
    try:
        await until("the first comparison", lambda: known.looks == 1)
        counting.command(f"DROP VIEW {DECISIONS.view}")
        a_sink(counting).write(EVENTS, 1, facts(1, 10))
        await until("the day is counted again", lambda: known.mended == 1)
        assert counted(counting, "decisions_by_minute") == 10
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


def test_a_view_gives_each_column_of_its_table_by_name():
    for rollup in ROLLUPS:
        columns = [column.name for column in TABLES[rollup.table].columns]
        select = view_of(rollup).partition("SELECT ")[2]
        named = [part.rpartition(" AS ")[2] for part in select.partition(" FROM ")[0].split(", ") if " AS " in part]
        assert named == columns, rollup.table

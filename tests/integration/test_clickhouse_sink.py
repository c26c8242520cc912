"""What the sink and its store promise, on a real ClickHouse engine."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.notes import Note, Notes
from adapters.clickhouse.retention import days_of, set_retention
from adapters.clickhouse.sink import DAY_NS, Sink, parts
from adapters.clickhouse.store import Store, open_store
from adapters.clock import SystemClock
from domain.errors import BadConfigError, BrokenSetupError, DataInUseError, StoreAwayError, StoreError
from domain.subjects import EVENTS, LEDGER
from projections.project import LAST_TABLE, Context, project
from projections.rows import Block, Rows
from projections.tables import EXPIRING, MIGRATIONS, RETAINED, SCHEMA_VERSION, TABLES, Migration, column_names
from tests.support.chdb import embedded_only
from tests.support.facts import Ledger, Teller, finished, granted, lent, plan, verdict
from tests.support.waiting import until

pytestmark = pytest.mark.real

NOW_NS = SystemClock().wall_us() * 1000
NOON_NS = NOW_NS // DAY_NS * DAY_NS - DAY_NS // 2
"""Noon of yesterday: far from a day's end on both sides, and never of a day that retention drops."""
ROOT = Path(__file__).parents[2]


def a_sink(store: Store, stream: str = EVENTS, epoch: int = 1) -> Sink:
    sink = Sink(store, RETAINED, last_table=LAST_TABLE)
    sink.reached(stream, epoch)
    return sink


def some_rows(first: int, last: int, *, at_ns: int = NOON_NS) -> Rows:
    """Return the rows of facts `first` to `last`; each is a lent and thus a row of two tables."""
    teller = Teller("n1", pseq=first - 1)
    messages = [teller.tells(lent(seq), seq, at_ns=at_ns + seq) for seq in range(first, last + 1)]
    return project(EVENTS, 1, messages, Context(router="test")).rows


def stop_merges(store: Store) -> None:
    """Let no merge hide a repetition."""
    for table in TABLES:
        store.command(f"SYSTEM STOP MERGES {table}")


def count(store: Store, table: str) -> int:
    """Return how many rows are stored, repetitions that are not merged yet included."""
    return int(store.query(f"SELECT count() AS n FROM {table}")[0]["n"])


def parts_of(store: Store, table: str) -> list[tuple[str, int]]:
    found = store.query(
        "SELECT partition, rows FROM system.parts WHERE active AND database = currentDatabase() AND table = {t:String} "
        "ORDER BY partition, min_block_number",
        {"t": table},
    )
    return [(row["partition"], row["rows"]) for row in found]


def test_a_batch_that_is_inserted_twice_is_there_once(store: Store):
    stop_merges(store)
    rows = some_rows(1, 50)
    a_sink(store).write(EVENTS, 1, rows)
    forgetful = Sink(store, RETAINED, last_table=LAST_TABLE)
    forgetful._reached = dict.fromkeys(a_sink(store)._reached, 0)  # as if nothing were known: the token alone decides
    assert forgetful.write(EVENTS, 1, rows) == 100
    assert (count(store, "events"), count(store, "decisions")) == (50, 50)


def test_the_token_of_an_insert_decides_whether_it_is_a_repetition(store: Store):
    stop_merges(store)
    row = (EVENTS, 1, 5, 6, 7)
    columns = ("stream", "epoch", "first_seq", "last_seq", "seen_ns")
    for token, seen in (("a", 1), ("a", 1), ("b", 2), ("a", 2)):
        store.insert("gaps", columns, [row], token=token)
        assert count(store, "gaps") == seen, token


def test_rows_that_a_table_holds_already_are_not_sent_again_whatever_the_batches(store: Store):
    stop_merges(store)
    rows = some_rows(1, 50)
    ahead = a_sink(store)
    ahead.write(EVENTS, 1, {"decisions": rows["decisions"]})  # killed before `events`: the checkpoint has not moved
    again = a_sink(store)
    assert again.reached(EVENTS, 1) == 0
    for first in (1, 31):
        again.write(EVENTS, 1, some_rows(first, first + 39))
    assert (count(store, "events"), count(store, "decisions")) == (70, 70)


def test_the_checkpoint_is_the_table_that_is_written_last(store: Store):
    sink = a_sink(store)
    sink.write(EVENTS, 1, some_rows(1, 7))
    assert a_sink(store).reached(EVENTS, 1) == 7
    assert sink.reached(EVENTS, 2) == 0, "another life of the stream has its own"
    assert sink.reached(LEDGER, 1) == 0


def test_a_batch_over_midnight_is_one_insert_for_each_day(store: Store):
    stop_merges(store)
    midnight_ns = NOON_NS + DAY_NS // 2
    teller = Teller("n1")
    messages = [teller.tells(lent(seq), seq, at_ns=midnight_ns + (seq - 5)) for seq in range(1, 11)]
    a_sink(store).write(EVENTS, 1, project(EVENTS, 1, messages, Context(router="test")).rows)
    assert [rows for _, rows in parts_of(store, "events")] == [4, 6]
    assert len({day for day, _ in parts_of(store, "events")}) == 2


def test_a_clock_that_steps_back_over_midnight_still_gives_inserts_in_order_of_sequence():
    midnight_ns = NOON_NS + DAY_NS // 2
    stamps = [midnight_ns - 1, midnight_ns, midnight_ns - 2, midnight_ns + 1]
    rows = Block("events", {"seq": [1, 2, 3, 4], "at_ns": stamps})
    assert [part.columns["seq"] for part in parts(rows)] == [[1], [2], [3], [4]]


def test_the_rows_of_one_insert_are_one_part_even_when_they_are_large(store: Store):
    stop_merges(store)
    ledger = Ledger()
    verdicts = [verdict(code="x" * 60) for _ in range(16)]
    messages = [ledger.commits(*[plan(*verdicts) for _ in range(60)], at_ns=NOON_NS + n) for n in range(60)]
    assert sum(len(message.body) for message in messages) > 8 * 1024 * 1024
    sink = a_sink(store, LEDGER)
    sink.write(LEDGER, 1, project(LEDGER, 1, messages, Context(router="test")).rows)
    assert [rows for _, rows in parts_of(store, "events")] == [60]
    assert count(store, "decisions") == 60 * 60 * 16


def test_every_row_comes_back_as_it_was_projected(store: Store):
    ledger, teller = Ledger(), Teller("n1")
    sink = a_sink(store)
    sink.reached(LEDGER, 1)
    facts = [teller.tells(fact, seq, at_ns=NOON_NS) for seq, fact in enumerate((lent(1), finished(1, helper="n2")), 1)]  # type: ignore[arg-type]
    written = project(EVENTS, 1, facts, Context(router="test")).rows
    commits = [ledger.commits(plan(verdict()), granted(), rejected=((2, "bad_mac"),), at_ns=NOON_NS)]
    decided = project(LEDGER, 1, commits, Context(router="test", events_epoch=1)).rows
    sink.write(EVENTS, 1, written)
    sink.write(LEDGER, 1, decided)
    for table in RETAINED:
        expected = [*decided.get(table, ()), *written.get(table, ())]
        names = column_names(table)
        raw = tuple(name for name in ("subject", "headers", "body") if name in names)
        order = "item" if "item" in names else "seq"
        stored = store.query(f"SELECT {', '.join(names)} FROM {table} ORDER BY stream DESC, seq, {order}", raw=raw)
        assert [tuple(row.values()) for row in stored] == expected, table


def test_what_clickhouse_holds_is_what_the_text_says(store: Store):
    for table in TABLES.values():
        found = store.query(
            "SELECT name, type, comment FROM system.columns WHERE database = currentDatabase() AND table = {t:String} "
            "ORDER BY position",
            {"t": table.name},
        )
        assert [(row["name"], row["type"], row["comment"]) for row in found] == [
            (column.name, column.type, column.about) for column in table.columns
        ], table.name


def test_migrating_again_changes_nothing_and_a_newer_schema_is_refused(database: Callable[[], Store]):
    store = database()
    assert migrate(store, MIGRATIONS) == migrate(store, MIGRATIONS) == MIGRATIONS[-1].number
    later = Migration(MIGRATIONS[-1].number + 1, "later", ("CREATE TABLE later (a UInt8) ENGINE = Memory",))
    assert migrate(store, (*MIGRATIONS, later)) == later.number
    with pytest.raises(BrokenSetupError, match="a newer release wrote it"):
        migrate(store, MIGRATIONS)


def test_a_step_whose_text_is_not_the_one_that_was_taken_is_refused(store: Store):
    other = Migration(1, "first tables", ("SELECT 1",))
    with pytest.raises(BrokenSetupError, match="must be this release's"):
        migrate(store, (other, *MIGRATIONS[1:]))


@pytest.mark.parametrize("step", MIGRATIONS, ids=lambda step: step.number)
def test_a_step_that_was_cut_off_before_its_entry_is_taken_again(database: Callable[[], Store], step: Migration):
    store = database()
    if step.number > 1:
        migrate(store, MIGRATIONS[: step.number - 1])
    for statement in step.statements:
        store.command(statement)
    assert migrate(store, MIGRATIONS) == SCHEMA_VERSION


def test_rows_that_were_written_before_a_step_are_read_with_its_columns_afterwards(database: Callable[[], Store]):
    store = database()
    migrate(store, MIGRATIONS[:1])
    store.command(
        "INSERT INTO decisions (stream, epoch, seq, at_ns, item, kind) "
        "SELECT 'LW_LEDGER', 1, 1, toUInt64(toUnixTimestamp(now())) * 1000000000, 0, 'plan'"
    )
    migrate(store, MIGRATIONS)
    assert store.query("SELECT kind, samples, probe_in_us, faster FROM decisions") == [
        {"kind": "plan", "samples": 0, "probe_in_us": -1, "faster": False}
    ]


def test_retention_is_whole_days_and_set_only_where_it_differs(store: Store):
    assert days_of(1) == 1
    assert days_of(86_400_000_001) == 2
    assert set_retention(store, EXPIRING, 30) == []
    assert set_retention(store, EXPIRING, 7) == sorted(EXPIRING)
    assert set_retention(store, EXPIRING, 7) == []


@pytest.mark.parametrize("days", [10, 60])
async def test_another_retention_holds_for_rows_that_are_there_already(store: Store, days: int):
    sink = a_sink(store)
    sink.write(EVENTS, 1, some_rows(1, 10, at_ns=NOON_NS - 20 * DAY_NS))
    sink.write(EVENTS, 1, some_rows(11, 20))
    for table in EXPIRING:
        store.command(f"ALTER TABLE {table} MODIFY SETTING merge_with_ttl_timeout = 0")
    set_retention(store, EXPIRING, days)
    noted = (
        "SELECT DISTINCT dateDiff('day', toDate(partition), toDate(delete_ttl_info_max)) AS days FROM system.parts "
        "WHERE active AND database = currentDatabase() AND table IN ('events', 'decisions')"
    )
    await until("it is noted with every part", lambda: store.query(noted) == [{"days": days}])
    left = 20 if days > 20 else 10
    await until(
        "days beyond it are dropped", lambda: (count(store, "events"), count(store, "decisions")) == (left, left)
    )
    assert set_retention(store, EXPIRING, days) == []


def test_notes_keep_the_newest_of_each_life_and_refuse_another_cluster(store: Store):
    notes = Notes(store, "home")
    notes.check_cluster()
    assert notes.newest(EVENTS) is None
    for now, last in ((10, 5), (11, 9)):
        notes.write(Note(stream=EVENTS, epoch=1, created_ns=3, last_seq=last), now_ns=now)
    assert notes.newest(EVENTS) == Note(stream=EVENTS, epoch=1, created_ns=3, last_seq=9)
    notes.check_cluster()
    with pytest.raises(BadConfigError, match="must be of cluster away, it is of home"):
        Notes(store, "away").check_cluster()


def test_the_head_of_the_ledger_is_the_newest_commit_that_counts(store: Store):
    ledger = Ledger()
    messages = [ledger.commits(plan(), at_ns=NOON_NS), ledger.commits(plan(), at_ns=NOON_NS)]
    digest = ledger.digest
    messages.append(ledger.commits(plan(), prev="11" * 16, at_ns=NOON_NS))
    notes = Notes(store, "local")
    assert notes.head(LEDGER, 1) is None
    a_sink(store, LEDGER).write(LEDGER, 1, project(LEDGER, 1, messages, Context(router="test")).rows)
    head = notes.head(LEDGER, 1)
    assert head is not None
    assert (head.seq, head.version, head.digest) == (3, 2, digest)


def test_a_statement_that_clickhouse_refuses_is_an_error_with_its_code(store: Store):
    with pytest.raises(StoreError, match="no_such_table") as caught:
        store.query("SELECT * FROM no_such_table")
    assert caught.value.code == 60
    assert store.query("SELECT 1 AS one") == [{"one": 1}], "the reader is fit for the next question"


def test_a_query_that_takes_too_long_or_too_much_is_given_up(store: Store):
    with pytest.raises(StoreError) as caught:
        store.query("SELECT groupArray(number) AS a FROM numbers(1000000000)")
    assert caught.value.code in {241, 159, 307}


def test_a_value_is_never_read_as_sql(store: Store):
    a_sink(store).write(EVENTS, 1, some_rows(1, 3))
    hostile = "n1' OR 1=1 --"
    assert store.query("SELECT * FROM decisions WHERE owner = {owner:String}", {"owner": hostile}) == []


@pytest.mark.parametrize(
    ("dsn", "rule"),
    [
        ("chdb://memory", "must name an absolute directory"),
        ("chdb:///", "must name an absolute directory"),
        ("mysql://u:hunter2@h/db", "must begin with chdb://, http:// or https://"),
        ("clickhouse", "must begin with"),
        ("http://u:hunter2@h:notaport/", "its host or port cannot be read"),
    ],
)
def test_a_dsn_that_is_none_is_refused_in_one_line_without_its_password(dsn: str, rule: str):
    with pytest.raises(BadConfigError, match=rule) as caught:
        open_store(dsn)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer_is_away_and_its_password_stays_secret():
    with pytest.raises(StoreAwayError) as caught:
        open_store("http://user:hunter2@127.0.0.1:9/leaseway")
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value)


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("missing", "dsn", "extra"),
    [
        ("clickhouse_connect", "http://127.0.0.1:8123/", "leaseway[clickhouse]"),
        ("chdb", "chdb:///nowhere/at/all", "leaseway[embedded]"),
    ],
)
def test_a_missing_driver_is_one_line_that_says_what_to_install(missing: str, dsn: str, extra: str):
    told = _python(
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from adapters.clickhouse.store import open_store\n"
        "import services.projector.main\n"
        "try: open_store(sys.argv[2])\n"
        "except Exception as error: print(type(error).__name__, error)",
        missing,
        dsn,
    )
    assert told.stdout.startswith("BadConfigError"), told.stderr
    assert f"needs the package {missing}" in told.stdout
    assert f"pip install '{extra}'" in told.stdout


@embedded_only
def test_a_directory_that_another_process_holds_is_refused(engine_dsn: str):
    told = _python(
        "import sys\nfrom adapters.clickhouse.store import open_store\n"
        "try: open_store(sys.argv[1])\nexcept Exception as error: print(type(error).__name__, error)",
        engine_dsn,
    )
    assert told.stdout.startswith(DataInUseError.__name__), told.stdout + told.stderr
    assert "another process holds this directory" in told.stdout

"""What questions cost on many rows: `make queries N=10000000`; prints figures beside those they are held to, and asserts nothing.

Rows are made by the engine itself: eight owners with five helpers each over 4.6 days, a fifth of the rows facts, the rest plans.
They are in a temporary directory, 1 GB for 10 million, and gone afterwards; or in `--directory`, which stays: then rows that are
there already are asked at once.
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from adapters.clickhouse import folds, queries, telemetry
from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.pages import Condition, Source, page
from adapters.clickhouse.rollups import ensure_views
from adapters.clickhouse.sink import highest
from adapters.clickhouse.sizes import sizes
from adapters.clickhouse.store import Store, open_store
from adapters.clock import SystemClock
from domain.subjects import LEDGER
from projections.folds import FOLDED_BY
from projections.rollups import ROLLUPS
from projections.tables import MIGRATIONS, column_names
from tests.bench.arguments import parser_of

SPAN_S: Final = int(4.6 * 86_400)
_PIECE: Final = 1_000_000
_ROWS: Final = """\
INSERT INTO decisions (stream, epoch, seq, at_ns, item, side, kind, generation, version, term, policy, router, producer,
  incarnation, pseq, owner, owner_model, helper, helper_model, link, lease, request, trigger, outcome, reason, source, repeats,
  held, lendable, in_engine, owner_out, drain_us, lent_drain_us, owner_job_us, slots, out, quota, first_answer_us, job_us,
  switch_us, back_us, gain_us, idle_us, ready_us, samples, work, wait_us, service_us, fold_id)
SELECT if(fact, 'LW_EVENTS', 'LW_LEDGER'), 1, intDiv(number, 5) + 1 AS place, {begin:UInt64} + number * {every:UInt64},
  if(fact, 0, number % 5), if(fact, 'owner', 'master'), if(fact, if(number % 2 = 0, 'lent', 'answered'), 'plan'),
  if(fact, '', '00010000'), if(fact, 0, place), 1, if(fact, '', '1'), '0.1.0', if(fact, node, ''),
  if(fact, hex(cityHash64(node)), ''), if(fact, place, 0), concat('n', toString(intDiv(number, 5) % 8)) AS node,
  concat('model-', toString(intDiv(number, 5) % 8)),
  concat('helper-', toString(cityHash64(intDiv(number, 5) % 8, cityHash64(number) % 5) % 40)), 'model-x',
  hex(cityHash64(number % 40)), if(fact, concat('00010000-', toString(place), '-1'), ''),
  if(fact, concat('req_', lower(hex(cityHash64(place))), lower(hex(cityHash64(place + 1)))), ''), 'enqueued',
  if(fact, '', if(number % 9 = 0, 'granted', 'skipped')),
  if(fact, '', arrayElement(['pays', 'cost_rejected', 'outranked'], 1 + number % 3)),
  'helper', 1, rand() % 100, rand(1) % 50, 4, 2, rand(2) % 100000000, rand(3) % 50000000, rand(4) % 9000000, rand(5) % 8, 2, 3,
  rand(6) % 9000000, rand(7) % 9000000, 0, 0, rand(8) % 90000000, rand(9) % 9000000, 1000, 40, rand(10) % 99000000,
  rand(11) % 30000000, rand(12) % 20000000, place - place % 20
FROM (SELECT number, number % 5 = 4 AS fact FROM numbers({first:UInt64}, {count:UInt64}))"""


def fill(store: Store, there: int, rows: int) -> None:
    """Make rows number `there` to before `rows`."""
    begin_ns = (SystemClock().wall_us() // 1_000_000 - SPAN_S) * 1_000_000_000
    for first in range(there, rows, _PIECE):
        values = {
            "begin": begin_ns,
            "every": SPAN_S * 1_000_000_000 // rows,
            "first": first,
            "count": min(_PIECE, rows - first),
        }
        statement = _ROWS
        for name, value in values.items():
            statement = statement.replace(f"{{{name}:UInt64}}", str(value))
        store.command(statement)


def best_ms(call: Callable[[], object], runs: int = 15) -> tuple[float, float]:
    """Return the least and the median milliseconds of one call."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return min(times), sorted(times)[runs // 2]


_FOLDED: Final = "SELECT helper, kind, reason, count(), max(at_ns) FROM decisions GROUP BY helper, kind, reason"
_FOLDED_BY_OWNER: Final = """\
SELECT helper, owner, kind, reason, count(), min(at_ns), max(at_ns), sumMap(map(toString(outcome), 1)) FROM decisions
GROUP BY helper, owner, kind, reason"""
_RUNS: Final = """\
SELECT run, count(), any(helper), any(reason), min(at_ns) FROM (
  SELECT helper, reason, at_ns, sum(new) OVER (ORDER BY seq, item) AS run FROM (
    SELECT seq, item, helper, reason, at_ns,
      (helper, reason) != lagInFrame((helper, reason)) OVER (ORDER BY seq, item) AS new
    FROM (
      SELECT seq, item, helper, reason, at_ns FROM decisions WHERE stream = 'LW_LEDGER'
      ORDER BY stream DESC, epoch DESC, seq DESC LIMIT 50000)))
GROUP BY run"""
_HELPER_MINUTES: Final = """\
SELECT helper, intDiv(at_ns, 60000000000) AS minute, countIf(outcome = 'granted') AS granted,
  countIf(outcome = 'skipped') AS skipped FROM decisions WHERE kind = 'plan'{more} GROUP BY helper, minute"""
_COUNTED: Final = """\
SELECT helper, minute, sumIf(candidates, outcome = 'granted'), sumIf(candidates, outcome = 'skipped')
FROM decisions_by_minute WHERE kind = 'plan' AND {more} GROUP BY helper, minute"""
_ONE_HELPER: Final = "helper = '{helper}'"
_P99: Final = "SELECT quantileTDigest(0.99)(wait_us) FROM decisions"
_BY_MODEL: Final = """\
SELECT owner_model, quantilesTDigest(0.5, 0.95, 0.99)(wait_us) FROM decisions WHERE kind = 'lent' GROUP BY owner_model"""
_HIGHEST: Final = """\
SELECT seq FROM decisions PREWHERE stream = 'LW_LEDGER' AND epoch = 1 AND seq >= {noted}
ORDER BY stream DESC, epoch DESC, seq DESC LIMIT 1"""
_NOTED_BEFORE: Final = 10_000
"""Messages since the projector last noted how far it was: a minute of a busy cluster's."""


def statements(now_ns: int, request: str, last: int, helper: str) -> dict[str, tuple[str, float]]:
    """Return the plain questions by name, each with the milliseconds that it is held to for 10 million rows, 0 if to none."""
    hour, six = now_ns - 3_600_000_000_000, now_ns - 6 * 3_600_000_000_000
    counted = _COUNTED.format(more=f"minute >= toDateTime({six // 10**9}, 'UTC')")
    return {
        "folded by helper, kind, reason": (_FOLDED, 418),
        "folded by helper, owner, kind, reason": (_FOLDED_BY_OWNER, 3098),
        "runs of the newest 50,000": (_RUNS, 27),
        "granted and skipped by helper and minute": (_HELPER_MINUTES.format(more=""), 374),
        "the same of the last hour": (_HELPER_MINUTES.format(more=f" AND at_ns >= {hour}"), 9),
        "the same from counts, last 6 h": (counted, 14.5),
        "the same from counts, one helper": (_COUNTED.format(more=_ONE_HELPER.format(helper=helper)), 14.1),
        "p99 of waiting": (_P99, 121),
        "p50, p95, p99 by model": (_BY_MODEL, 88),
        "the highest sequence of a stream": (_HIGHEST.format(noted=max(1, last - _NOTED_BEFORE)), 0),
        "the highest sequence of all": ("SELECT max(seq) FROM decisions", 1.6),
        "nothing": ("SELECT 1", 0),
        "one request": (f"SELECT * FROM decisions WHERE request = '{request}'", 21),
    }


def asked(store: Store, now_ns: int, request: str) -> dict[str, tuple[Callable[[], object], float]]:
    """Return what the read API asks by name, each with the milliseconds it is held to, 0 if to none."""
    names = column_names("decisions")
    hour = telemetry.Window(since_s=now_ns // 10**9 - 3600, until_s=now_ns // 10**9 + 1, step_s=60)
    whole = telemetry.Window(since_s=now_ns // 10**9 - SPAN_S, until_s=now_ns // 10**9 + 1, step_s=600)
    newest, owner = queries.Asked(limit=200), queries.Asked(limit=200, filters={"owner": "n1"})
    master = queries.Asked(limit=200, filters={"side": "master"})
    one = queries.Asked(limit=200, filters={"request": request})
    of_owner = [Condition("owner = {f_owner:String}", "f_owner", "n1")]
    narrow = Source(table="decisions", streams=("LW_LEDGER",), columns=queries.shown_columns(names[:40]))
    return {
        "newest 200, 40 columns": (lambda: page(store, narrow, [], limit=200, after=None), 6.3),
        "newest 200 of one owner, 40 columns": (lambda: page(store, narrow, of_owner, limit=200, after=None), 11),
        "API: newest 200 of both streams": (lambda: queries.decisions(store, names, newest), 0),
        "API: newest 200 of an owner": (lambda: queries.decisions(store, names, owner), 0),
        "API: newest 200 runs of both streams": (lambda: folds.folded(store, names, FOLDED_BY, newest), 0),
        "API: newest 200 runs of the master": (lambda: folds.folded(store, names, FOLDED_BY, master), 33),
        "API: one request": (lambda: queries.decisions(store, names, one), 0),
        "API: telemetry helpers, last hour": (lambda: telemetry.series(store, "helpers", hour), 0),
        "API: telemetry helpers, 4.6 days": (lambda: telemetry.series(store, "helpers", whole), 0),
        "API: telemetry lending, 4.6 days": (lambda: telemetry.series(store, "lending", whole), 0),
    }


def made(store: Store, rows: int) -> None:
    """Make the rows that are not there, and print what they take."""
    there = int(store.query("SELECT count() AS n FROM decisions")[0]["n"])
    if there < rows:
        began = time.perf_counter()
        fill(store, there, rows)
        print(f"{rows - there:,} rows made and counted by minute in {time.perf_counter() - began:.1f} s")
        # a live table is merged by the time it has so many rows
        for table in ("decisions", "decisions_by_minute"):
            store.command(f"OPTIMIZE TABLE {table} FINAL")
    for size in sizes(store, ("decisions", "decisions_by_minute")):
        print(f"{size['name']}: {size['rows']:,} rows, {size['bytes'] / 1e6:,.0f} MB in {size['parts']} parts")


def ask(store: Store) -> None:
    """Print what each question costs."""
    now_ns = int(store.query("SELECT max(at_ns) AS n FROM decisions")[0]["n"])
    request = str(store.query("SELECT request FROM decisions WHERE kind = 'lent' LIMIT 1 OFFSET 12345")[0]["request"])
    helper = str(store.query("SELECT any(helper) AS helper FROM decisions_by_minute")[0]["helper"])
    last = highest(store, "decisions", LEDGER, 1)
    calls = dict(asked(store, now_ns, request))
    for what, (statement, held) in statements(now_ns, request, last, helper).items():
        calls[what] = (partial(store.command, f"{statement} FORMAT Null"), held)
    print(f"{'':42}{'best':>9}{'median':>9}{'held to':>9}  ms")
    for what, (call, held) in calls.items():
        best, median = best_ms(call)
        print(
            f"{what:42}{best:9.1f}{median:9.1f}{held or '-':>9}  {f'{best / held:.1f} times' if held else ''}",
            flush=True,
        )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="(default: %(default)s)")
    parser.add_argument("--directory", default="")
    parser.add_argument("--fill-only", action="store_true")
    parsed = parser.parse_args()
    print(f"load average: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(f"chdb://{parsed.directory or directory}", memory_bytes=4 * 1024**3)
        migrate(store, MIGRATIONS)
        ensure_views(store, ROLLUPS)
        made(store, parsed.rows)
        if not parsed.fill_only:
            ask(store)
        store.close()
    print(f"load average: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

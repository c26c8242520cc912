"""What the projector carries: `python -m tests.bench.bench_projector`; it prints figures and asserts nothing.

Streams in memory, a real embedded ClickHouse in a temporary directory. Also says how soon a stored fact can be read back, and
what the read API's questions cost on the tables that were filled.
"""

import asyncio
import gc
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from adapters.clickhouse import folds, queries
from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.sink import Sink
from adapters.clickhouse.store import Store, open_store
from adapters.clock import SystemClock
from domain.events import Input
from domain.ports import StoredMessage
from domain.subjects import EVENTS, LEDGER
from projections.folds import FOLDED_BY
from projections.project import LAST_TABLE, Context, project
from projections.tables import MIGRATIONS, RETAINED, column_names
from services.projector.batches import BatchLimits
from tests.bench.arguments import parser_of
from tests.support.facts import Ledger, Teller, finished, granted, held, lent, plan, verdict
from tests.support.projections import Bus, a_projector, caught_up, running
from tests.support.waiting import until

BATCH, RATE = 5000, 5000
VERDICTS = [verdict(helper=f"n{n}", outcome="skipped", code="outranked") for n in range(2, 6)]


class Counts(NamedTuple):
    """How much is measured."""

    commits: int
    requests: int
    lag_s: int


def messages(now_ns: int, count: Counts) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """Return (commits of five decision rows each, facts of which a third makes a decision row and a third a request row)."""
    ledger, teller = Ledger(), Teller("n1")
    commits = [ledger.commits(plan(*VERDICTS), granted(), at_ns=now_ns + n * 1000) for n in range(count.commits)]
    told: list[Input] = []
    for number in range(count.requests):
        told += [held(number), lent(number), finished(number, helper="n2")]
    facts = [teller.tells(fact, seq, at_ns=now_ns + seq * 1000) for seq, fact in enumerate(told, 1)]
    return commits, facts


def carried(store: Store, stream: str, stored: list[StoredMessage]) -> None:
    """Project and insert batch by batch, and print both rates."""
    sink = Sink(store, RETAINED, last_table=LAST_TABLE)
    sink.reached(stream, 1)
    context = Context(router="bench")
    projecting = inserting = 0.0
    rows = decisions = 0
    for first in range(0, len(stored), BATCH):
        began = time.perf_counter()
        projected = project(stream, 1, stored[first : first + BATCH], context)
        projecting += time.perf_counter() - began
        context = Context(router="bench", chain=projected.chain)
        began = time.perf_counter()
        rows += sink.write(stream, 1, projected.rows)
        inserting += time.perf_counter() - began
        decisions += len(projected.rows.get("decisions", ()))
    whole = projecting + inserting
    print(f"{stream}: {len(stored):,} messages, {rows:,} rows, {decisions:,} of them decisions")
    print(f"  project              {rows / projecting:>10,.0f} rows/s")
    print(f"  insert               {rows / inserting:>10,.0f} rows/s")
    print(f"  both                 {rows / whole:>10,.0f} rows/s, {len(stored) / whole:,.0f} messages/s")
    print(f"  decision rows        {decisions / whole:>10,.0f} rows/s sustained")


def best_ms(call: Callable[[], object], runs: int = 7) -> float:
    """Return the least milliseconds of one call."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def asked(store: Store) -> None:
    """Print what the questions cost."""
    names, newest = column_names("decisions"), queries.Asked(limit=200)
    owners = queries.Asked(filters={"owner": "n1"}, limit=200)
    later = queries.Asked(limit=200, after="l1.9000.0-e1.60000.0")
    for what, call in {
        "newest 200 decisions": lambda: queries.decisions(store, names, newest),
        "newest 200 of an owner": lambda: queries.decisions(store, names, owners),
        "200 after a cursor": lambda: queries.decisions(store, names, later),
        "newest 200 runs": lambda: folds.folded(store, names, FOLDED_BY, newest),
        "newest 200 requests": lambda: queries.requests(store, column_names("requests"), newest),
        "stats of the last hour": lambda: queries.stats(store, since_ns=SystemClock().wall_us() * 1000 - 3600 * 10**9),
    }.items():
        print(f"  {what:<24}{best_ms(call):>8.1f} ms")


async def whole(directory: Path, count: Counts) -> None:
    """Print what the whole projector carries, and how soon a fact that is stored can be read while 5,000 come each second."""
    teller = Teller("n1")
    ledger = Bus()
    for _ in range(count.commits):
        await ledger.commit(plan(*VERDICTS), granted())
    gc.freeze()
    seconds = await carrying(directory, "ledger", ledger)
    rows_s, commits_s = 5 * count.commits / seconds, count.commits / seconds
    print(f"whole projector          {rows_s:>8,.0f} decision rows/s sustained, {commits_s:,.0f} commits/s")
    facts = Bus()
    for number in range(count.requests):
        await facts.tell(teller, held(number), lent(number), finished(number, helper="n2"))
    gc.freeze()
    seconds = await carrying(directory, "facts", facts)
    print(f"whole projector          {3 * count.requests / seconds:>8,.0f} facts/s")
    await lagging(directory, teller, count.lag_s)


async def carrying(directory: Path, database: str, bus: Bus) -> float:
    """Return in how many seconds a projector that begins carries everything that is on `bus`."""
    projector = a_projector(bus, lambda: open_store(f"chdb://{directory}", database=database), limits=BatchLimits())
    async with running(projector):
        await projector.tried.wait()
        began = time.perf_counter()
        await caught_up(projector, await bus.ends(), timeout_s=120)
        return time.perf_counter() - began


async def lagging(directory: Path, teller: Teller, lag_s: int) -> None:
    """Print how long facts take from being stored to being readable, at a steady rate."""
    bus = Bus()
    projector = a_projector(bus, lambda: open_store(f"chdb://{directory}", database="lag"), limits=BatchLimits())
    waiting: deque[tuple[int, float]] = deque()
    lags: list[float] = []

    def all_seen() -> bool:
        now = time.perf_counter()
        while waiting and waiting[0][0] <= projector.progress[EVENTS].position:
            lags.append(now - waiting.popleft()[1])
        return now > began + lag_s and not waiting

    async with running(projector):
        await projector.tried.wait()
        began = time.perf_counter()
        seeing = asyncio.ensure_future(until("all are readable", all_seen, timeout_s=10 * lag_s, every_s=0.002))
        for number in range(RATE * lag_s // 3):
            await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
            waiting.append((3 * number + 3, time.perf_counter()))
            due = began + (3 * number + 3) / RATE
            if due - time.perf_counter() > 0.005:
                await until("the next facts are due", partial(_is_past, due), every_s=0.002)
        rate = RATE * lag_s / (time.perf_counter() - began)
        await seeing
    lags.sort()
    p50, p99, worst = (lags[min(len(lags) - 1, int(len(lags) * part))] * 1000 for part in (0.5, 0.99, 1))
    print(f"stored -> readable       p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, most {worst:,.0f} ms at {rate:,.0f} facts/s")
    print("                         (a batch waits 300 ms for more)")


def _is_past(due: float) -> bool:
    return time.perf_counter() >= due


def main() -> None:
    parser = parser_of(__doc__)
    for flag, usual, what in (
        ("--commits", 20_000, "commits of five decision rows each"),
        ("--requests", 40_000, "requests of three facts each"),
        ("--lag-s", 20, f"seconds for which {RATE:,} facts come each second"),
    ):
        parser.add_argument(flag, type=int, default=usual, help=f"{what} (default: %(default)s)")
    count = Counts(**vars(parser.parse_args()))
    print(f"load average: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        store = open_store(f"chdb://{name}")
        migrate(store, MIGRATIONS)
        commits, facts = messages(SystemClock().wall_us() * 1000 - 10**12, count)
        gc.freeze()  # what stands for the bus is not the projector's to collect
        carried(store, LEDGER, commits)
        carried(store, EVENTS, facts)
        asked(store)
        asyncio.run(whole(Path(name), count))
        store.close()
    print(f"load average: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

"""What the projector carries: `python -m tests.bench.bench_projector`; it prints figures and asserts nothing.

Streams in memory, a real embedded ClickHouse in a temporary directory. Also says how soon a stored fact can be read back, and
what the read API's questions cost on the tables that were filled.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
from tests.support.facts import Ledger, Teller, finished, granted, held, lent, plan, verdict
from tests.support.projections import Bus, a_projector, caught_up, running

COMMITS, REQUESTS, BATCH = 20_000, 40_000, 5000
VERDICTS = [verdict(helper=f"n{n}", outcome="skipped", code="outranked") for n in range(2, 6)]


def messages(now_ns: int) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """Return (commits of five decision rows each, facts of which a third makes a decision row and a third a request row)."""
    ledger, teller = Ledger(), Teller("n1")
    commits = [ledger.commits(plan(*VERDICTS), granted(), at_ns=now_ns + n * 1000) for n in range(COMMITS)]
    told: list[Input] = []
    for number in range(REQUESTS):
        told += [held(number), lent(number), finished(number, helper="n2")]
    facts = [teller.tells(fact, seq, at_ns=now_ns + seq * 1000) for seq, fact in enumerate(told, 1)]
    return commits, facts


def carried(store: Store, stream: str, stored: list[StoredMessage]) -> None:
    """Project and insert batch by batch, and print both rates."""
    sink = Sink(store, {table: column_names(table) for table in RETAINED}, last_table=LAST_TABLE)
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


async def whole(directory: Path) -> None:
    """Print the rate of the whole projector, and how soon a fact that is stored can be read."""
    bus, teller = Bus(), Teller("n1")
    dsn = f"chdb://{directory}"
    projector = a_projector(bus, lambda: open_store(dsn, database="whole"), limits=BatchLimits())
    for number in range(10_000):
        await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
    async with running(projector):
        await projector.tried.wait()
        began = time.perf_counter()
        await caught_up(projector, await bus.ends(), timeout_s=120)
        print(f"whole projector          {30_000 / (time.perf_counter() - began):>8,.0f} facts/s")
        delays = []
        for number in range(20):
            await bus.tell(teller, lent(number))
            began = time.perf_counter()
            await caught_up(projector, await bus.ends())
            delays.append(time.perf_counter() - began)
        print(
            f"fact stored -> readable  {sorted(delays)[10] * 1000:>8,.0f} ms (median; 300 ms of it is the batch's wait)"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        store = open_store(f"chdb://{name}")
        migrate(store, MIGRATIONS)
        commits, facts = messages(SystemClock().wall_us() * 1000 - 10**12)
        carried(store, LEDGER, commits)
        carried(store, EVENTS, facts)
        asked(store)
        asyncio.run(whole(Path(name)))
        store.close()


if __name__ == "__main__":
    main()

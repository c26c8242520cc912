"""A projector in a process of its own, over streams that are the same in every run, that kills itself where it is told.

    python -m tests.support.projector_child DSN DATABASE MOMENT NUMBER DAY

MOMENT is before, after or during (insert NUMBER), or never: then it ends by itself and prints what is in the tables.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.store import Store, open_store
from domain.events import Checkpoint
from domain.subjects import EVENTS, LEDGER, observation_subject
from projections.rollups import ROLLUPS
from projections.tables import MIGRATIONS, RETAINED
from services.projector.batches import BatchLimits
from tests.support.facts import CLUSTER, DAY_NS, GENERATION, Teller, finished, granted, held, lent, plan, verdict
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, counts, running
from tests.support.waiting import until

REQUESTS, COMMITS, CHECKPOINTS = 400, 150, 20
FACTS = 3 * REQUESTS + CHECKPOINTS
DECISIONS = 2 * COMMITS
DECISION_ROWS = 3 * COMMITS


class DyingStore(Store):
    """Kills its process at an insert."""

    moment, number = "never", 0
    inserts = 0

    def insert_columns(self, table: str, columns: Mapping[str, Sequence[Any]], *, token: str) -> None:
        DyingStore.inserts += 1
        due = DyingStore.inserts == self.number
        if due and self.moment == "before":
            _die()
        if due and self.moment == "during":
            threading.Timer((self.number % 7) / 1000, _die).start()
        super().insert_columns(table, columns, token=token)
        if due and self.moment == "after":
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def the_same_bus(day: int) -> Bus:
    """Return streams that are the same in every process: made, stamped and filled alike, over the midnight after `day`."""
    midnight_us = (day + 1) * DAY_NS // 1000
    bus = Bus(SteppedClock(midnight_us - 1000 * FACTS, step_us=1500))
    teller, master = Teller("n1"), Teller("master")
    for number in range(REQUESTS):
        await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
        if number < COMMITS:
            await bus.commit(plan(verdict(), verdict(helper="n3", outcome="skipped", code="outranked")), granted())
        if number % (REQUESTS // CHECKPOINTS) == 0:
            said = _checkpoint(number)
            await bus[EVENTS].publish(observation_subject(CLUSTER, 1, said), master.body(said))
    return bus


def _checkpoint(version: int) -> Checkpoint:
    return Checkpoint(
        cluster=CLUSTER, generation=GENERATION, version=version, digest="ab" * 16, hi=version, chi=0, at_us=version
    )


async def main(dsn: str, database: str, moment: str, number: int, day: int) -> None:
    DyingStore.moment, DyingStore.number = moment, number

    def dying_store() -> Store:
        store = open_store(dsn, database=database, readers=1)
        migrate(store, MIGRATIONS)
        for table in RETAINED:
            store.command(f"SYSTEM STOP MERGES {table}")  # a merge would hide a repetition
        store.__class__ = DyingStore
        return store

    bus = await the_same_bus(day)
    for stream in bus.streams.values():
        stream.batch_max = 7
    # other batches in each life: what keeps rows from being doubled must not be that their inserts are alike
    limits = BatchLimits(messages=49 + 14 * (number % 5), wait_s=0.005)
    projector = a_projector(bus, dying_store, limits=limits)
    async with running(projector):
        await caught_up(projector, await bus.ends(), timeout_s=60)
        await until("the counts by minute are compared", lambda: projector.counted.looks > 0, timeout_s=60)
        store = projector.store
        assert store is not None
        sys.stdout.write(json.dumps(told(store) | {"inserts": DyingStore.inserts}) + "\n")
        sys.stdout.flush()


def told(store: Store) -> dict[str, Any]:
    [decided] = store.query(
        "SELECT uniqExact(seq, decision) AS n FROM decisions WHERE stream = {stream:String}", {"stream": LEDGER}
    )
    return {
        "events": counts(store, "events", EVENTS),
        "ledger": counts(store, "events", LEDGER),
        "commits": counts(store, "commits", LEDGER),
        "decision_rows": counts(store, "decisions", LEDGER),
        "decisions": decided["n"],
        "dispatches": counts(store, "decisions", EVENTS),
        "requests": counts(store, "requests", EVENTS),
        "checkpoints": counts(store, "checkpoints", EVENTS),
        "counted": {rollup.table: _counted(store, rollup.table) for rollup in ROLLUPS},
        "void": store.query("SELECT countIf(void) AS n FROM commits")[0]["n"],
        "days": store.query("SELECT uniqExact(day) AS n FROM events")[0]["n"],
    }


def _counted(store: Store, table: str) -> int:
    return int(store.query(f"SELECT toUInt64(sum(rows)) AS n FROM {table}")[0]["n"])


EXPECTED = {
    "events": [FACTS, FACTS],
    "ledger": [COMMITS, COMMITS],
    "commits": [COMMITS, COMMITS],
    "decision_rows": [DECISION_ROWS, COMMITS],
    "decisions": DECISIONS,
    "dispatches": [REQUESTS, REQUESTS],
    "requests": [REQUESTS, REQUESTS],
    "checkpoints": [CHECKPOINTS, CHECKPOINTS],
    "counted": {
        "decisions_by_minute": DECISION_ROWS + REQUESTS,
        "requests_by_minute": REQUESTS,
        "loads_by_minute": 0,
    },
    "void": 0,
    "days": 2,
}

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))

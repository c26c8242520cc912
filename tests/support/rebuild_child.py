"""A projector that makes all rows again while new ones come in and questions are asked, and kills itself where it is told.

    python -m tests.support.rebuild_child DSN DATABASE MOMENT NUMBER DAY

MOMENT is before or after statement NUMBER of the rebuild (inserts and others alike), or never: then it ends by itself and prints
what is in the tables, and how many statements the rebuild took.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.clickhouse.store import Store, open_store
from domain.subjects import EVENTS
from services.projector.batches import BatchLimits
from services.projector.projector import Projector
from tests.support.projections import a_projector, caught_up, counts, running
from tests.support.projector_child import REQUESTS, the_same_bus, told
from tests.support.waiting import until


class DyingStore(Store):
    """Kills its process at a statement that was begun while the rebuild ran."""

    moment, number = "never", 0
    statements = 0
    projector: Projector

    def command(self, statement: str) -> None:
        due = self._due()
        if due and self.moment == "before":
            _die()
        super().command(statement)
        if due and self.moment == "after":
            _die()

    def insert_columns(self, table: str, columns: Mapping[str, Sequence[Any]], *, token: str) -> None:
        due = self._due()
        if due and self.moment == "before":
            _die()
        super().insert_columns(table, columns, token=token)
        if due and self.moment == "after":
            _die()

    def _due(self) -> bool:
        if self.projector.rebuilt.state not in {"running", "changing_places"}:
            return False
        DyingStore.statements += 1
        return DyingStore.statements == self.number


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(dsn: str, database: str, moment: str, number: int, day: int) -> None:
    DyingStore.moment, DyingStore.number = moment, number

    def dying_store() -> Store:
        store = open_store(dsn, database=database, readers=2)
        store.__class__ = DyingStore
        return store

    bus = await the_same_bus(day)
    for stream in bus.streams.values():
        stream.batch_max = 7
    DyingStore.projector = projector = a_projector(bus, dying_store, limits=BatchLimits(messages=70, wait_s=0.005))
    async with running(projector):
        await until("some rows", lambda: projector.progress[EVENTS].position > REQUESTS // 2, timeout_s=60)
        assert projector.rebuild("archive")
        assert not projector.rebuild("archive"), "one at a time"
        asking = asyncio.create_task(_ask(projector))
        await until("the rebuild ends", lambda: not projector.rebuilt.busy, timeout_s=60)
        await caught_up(projector, await bus.ends(), timeout_s=60)
        await until("the counts by minute are compared", lambda: projector.counted.looks > 0, timeout_s=60)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled(), asking
        assert projector.store is not None
        said = told(projector.store) | {"statements": DyingStore.statements, "rebuild": projector.rebuilt.state}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


async def _ask(projector: Projector) -> None:
    """Ask on and on; no answer may lack what an earlier one had."""
    seen = 0
    while True:
        await until("a store to ask", lambda: projector.store is not None, timeout_s=60)
        if (store := projector.store) is not None:
            _, messages = await asyncio.to_thread(counts, store, "requests", EVENTS)
            assert messages >= seen, f"{messages} after {seen}"
            seen = messages


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))

"""A projector that is told to stop stops, also in the very moment in which something else ends what it does."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from adapters.clickhouse.store import Parameters, Store
from domain.errors import StoreError
from domain.subjects import EVENTS
from tests.support.facts import Teller, lent
from tests.support.projections import Bus, a_projector, caught_up
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
_STOP_S = 20


class GatedStore(Store):
    """Holds up what begins in a certain way until its gate is opened."""

    gate = threading.Event()
    held: list[str]
    query_with = ""
    refuses = False

    def query(
        self, statement: str, parameters: Parameters | None = None, *, raw: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        if self.query_with and self.query_with in statement:
            self.held.append("query")
            self.gate.wait(60)
        return super().query(statement, parameters, raw=raw)

    def insert_columns(self, table: str, columns: Mapping[str, Sequence[Any]], *, token: str) -> None:
        if self.refuses and table == "events":
            self.held.append("insert")
            self.gate.wait(60)
            raise StoreError("clickhouse: takes no writes", code=164)
        super().insert_columns(table, columns, token=token)


def gated(database: OpenStore, made: list[GatedStore], **how: Any) -> OpenStore:
    def open_it() -> Store:
        store = database()
        store.__class__ = GatedStore
        assert isinstance(store, GatedStore)
        store.gate, store.held = threading.Event(), []
        for name, value in how.items():
            setattr(store, name, value)
        made.append(store)
        return store

    return open_it


async def stops(task: "asyncio.Task[None]", store: GatedStore) -> None:
    """Tell it to stop while something is held up, let that go on, and check that it ends."""
    task.cancel()
    await asyncio.sleep(0)  # it hears of it before the gate opens
    store.gate.set()
    done, _ = await asyncio.wait({task}, timeout=_STOP_S)
    if not done:
        task.cancel()  # a second time, so that the test itself ends
        await asyncio.wait({task})
    assert done, "it was told to stop, and went on"
    assert task.cancelled()


async def test_one_that_is_told_to_stop_as_a_rebuild_ends_stops(database: OpenStore):
    bus, made = Bus(), list[GatedStore]()
    await bus.tell(Teller("n1"), *(lent(number) for number in range(10)))
    projector = a_projector(bus, gated(database, made, query_with="AS counted FROM"))
    task = asyncio.create_task(projector.run())
    await until("it compares counts", lambda: made and "query" in made[0].held, timeout_s=30)
    await caught_up(projector, await bus.ends())
    assert projector.rebuild("archive")
    await until("it is done", lambda: projector.rebuilt.state == "done", timeout_s=30)
    await stops(task, made[0])


async def test_one_that_is_told_to_stop_as_it_meets_a_gap_stops(database: OpenStore):
    """What it reads on ends with the gap while what it has read is being stored."""
    bus, made = Bus(), list[GatedStore]()
    await bus.tell(Teller("n1"), *(lent(number) for number in range(400)))
    bus[EVENTS].remove(120)
    projector = a_projector(bus, gated(database, made, refuses=True))
    task = asyncio.create_task(projector.run())
    await until("an insert that is held up", lambda: made and "insert" in made[0].held, timeout_s=30)
    reader = asyncio.current_task()
    await until("nobody reads on", lambda: _only_waits(reader), timeout_s=30)
    await stops(task, made[0])


def _only_waits(mine: "asyncio.Task[Any] | None") -> bool:
    """Tell whether no batch of the stream with the gap is being gathered any more."""
    return not any("batches" in repr(task) for task in asyncio.all_tasks() if task is not mine)


async def test_one_that_is_told_to_stop_as_its_tables_vanish_stops(database: OpenStore):
    bus, made = Bus(), list[GatedStore]()
    projector = a_projector(bus, gated(database, made, query_with="AS counted FROM"))
    task = asyncio.create_task(projector.run())
    await until("it compares counts", lambda: made and "query" in made[0].held, timeout_s=30)
    database().command("DROP TABLE events SYNC")
    await bus.tell(Teller("n1"), lent(1))
    await until("its follower has ended", lambda: not _followers(), timeout_s=30)
    await stops(task, made[0])


def _followers() -> int:
    return sum("Follower.run" in repr(task) for task in asyncio.all_tasks())

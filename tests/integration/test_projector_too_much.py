"""Rows that are too much for ClickHouse's memory at once, on a real one: they go in as halves, and what cannot is named."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from adapters.clickhouse.store import Store
from domain.subjects import LEDGER
from services.projector import backoff as backoff_module
from services.projector.batches import BatchLimits
from services.projector.metrics import ProjectorMetrics
from services.projector.projector import Projector
from tests.support.chdb import embedded_only
from tests.support.facts import plan, verdict
from tests.support.projections import Bus, a_projector, caught_up, counts, running
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120), embedded_only]
OpenStore = Callable[[], Store]
COMMITS, PLANS, VERDICTS = 16, 30, 16
ROWS = COMMITS * PLANS * VERDICTS
FOR_SOME, FOR_NONE = 18 * 1024 * 1024, 4 * 1024 * 1024
"""Memory for the rows of some of these commits, and for those of not even one."""


async def leave(store: Store, memory_bytes: int) -> None:
    """Let each insert have so much memory, by the engine's own limit."""
    for setting in (f"max_memory_usage = {memory_bytes}", "max_untracked_memory = 0"):
        await asyncio.to_thread(store.command, f"SET {setting}")


@contextlib.asynccontextmanager
async def with_memory(
    database: OpenStore, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> AsyncIterator[tuple[Bus, Projector, Store]]:
    """Have commits come that are many rows each, before a projector that takes all of them at once."""
    monkeypatch.setattr(backoff_module, "_MAX_S", 0.5)
    bus = Bus()
    projector = a_projector(bus, database, limits=BatchLimits(bytes=1 << 30, wait_s=0.5))
    async with running(projector):
        await until("it goes on", lambda: all(each.epoch for each in projector.progress.values()), timeout_s=60)
        assert projector.store is not None
        await leave(projector.store, memory_bytes)
        verdicts = [verdict(code="x" * 60) for _ in range(VERDICTS)]
        for _ in range(COMMITS):
            await bus.commit(*(plan(*verdicts) for _ in range(PLANS)))
        yield bus, projector, projector.store
        await caught_up(projector, await bus.ends(), timeout_s=60)
        assert await asyncio.to_thread(counts, projector.store, "commits", LEDGER) == (COMMITS, COMMITS)
        rows = "SELECT count() AS n, uniqExact(seq, item) AS once FROM decisions"
        assert await asyncio.to_thread(projector.store.query, rows) == [{"n": ROWS, "once": ROWS}]


async def test_what_is_too_much_for_its_memory_goes_in_as_halves_and_is_counted(
    database: OpenStore, monkeypatch: pytest.MonkeyPatch
):
    async with with_memory(database, monkeypatch, FOR_SOME) as (bus, projector, _):
        await caught_up(projector, await bus.ends(), timeout_s=60)
        assert (halved := projector.progress[LEDGER].halved) > 0
        text = ProjectorMetrics(projector, lambda: True).instruments.exposition("text/plain")[1].decode()
        assert f'leaseway_projector_halved_total{{stream="{LEDGER}"}} {halved}.0' in text


async def test_the_message_whose_rows_alone_are_too_much_is_named_and_goes_in_when_there_is_room(
    database: OpenStore, monkeypatch: pytest.MonkeyPatch
):
    async with with_memory(database, monkeypatch, FOR_NONE) as (_, projector, store):
        named = f"table decisions: message 1 of {LEDGER} alone is too much, {PLANS * VERDICTS} rows"
        await until("it is named", lambda: named in projector.progress[LEDGER].error, timeout_s=30)
        assert projector.causes == {"memory"}
        await leave(store, 0)

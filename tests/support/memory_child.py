"""A projector whose embedded engine may take only so much memory, for a while; then it says how it went.

    python -m tests.support.memory_child DIRECTORY BYTES REQUESTS SECONDS

It prints, as JSON: causes, met (those that it met on the way), lag, rows of LW_EVENTS and how many different ones, tracked (bytes
that the engine counts as its own).
It ends as soon as all is in the tables.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

from adapters.clickhouse.store import open_store
from domain.errors import StoreError
from domain.subjects import EVENTS
from services.projector.batches import BatchLimits
from services.projector.projector import Projector
from tests.support.projections import Bus, a_projector, counts, running
from tests.support.soak_child import Load, lag_of, looked_at
from tests.support.waiting import until


async def main(directory: str, memory_bytes: int, requests: int, seconds: float) -> None:
    bus = Bus()
    await Load(bus).come(requests)
    projector = a_projector(
        bus, lambda: open_store(f"chdb://{directory}", readers=3, memory_bytes=memory_bytes), limits=BatchLimits()
    )
    met: set[str] = set()
    async with running(projector):
        with contextlib.suppress(AssertionError):  # then it says how far it came
            await until("all of it", lambda: _is_done(projector, bus, met), timeout_s=seconds, every_s=0.1)
        assert projector.store is not None, projector.away
        epoch = projector.progress[EVENTS].epoch
        said = {
            "causes": sorted(projector.causes),
            "met": sorted(met),
            "lag": await lag_of(projector, bus),
            "epoch": epoch,
            "rows": await _answered(counts, projector.store, "events", EVENTS),
            **await _answered(looked_at, projector.store),
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


async def _is_done(projector: Projector, bus: Bus, met: set[str]) -> bool:
    met |= projector.causes
    return await lag_of(projector, bus) == 0


async def _answered(ask: Callable[..., Any], *about: Any) -> Any:
    """Return an answer; rows that go in just then may leave no memory for a question."""

    async def answer() -> Any:
        with contextlib.suppress(StoreError):
            return await asyncio.to_thread(ask, *about)

    return await until("an answer", answer, timeout_s=20, every_s=0.1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))

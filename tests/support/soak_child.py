"""A projector with the embedded engine that is busy for long, and says each second what it takes.

    python -m tests.support.soak_child DIRECTORY SECONDS RATE

Each line is JSON: at_s, rss_kib of the process, tracked (bytes that the engine counts as its own), parts, lag (messages).
What is in the tables leaves the streams, as an age limit would let it: what grows is not the bus. At the end: rows and
different messages.
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from adapters.clickhouse.store import Store, open_store
from domain.subjects import EVENTS, LEDGER
from services.projector.batches import BatchLimits
from services.projector.projector import Projector
from tests.support.facts import Teller, finished, granted, held, lent, plan, verdict
from tests.support.projections import Bus, a_projector, caught_up, counts, running
from tests.support.waiting import until

_TICK_S = 0.1
_LAG_MAX = 20_000


def resident_kib() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


class Load:
    """Four messages a request: three facts and a commit."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.teller, self.requests = bus, Teller("n1"), 0

    async def come(self, requests: int) -> None:
        for number in range(self.requests, self.requests + requests):
            await self.bus.tell(self.teller, held(number), lent(number), finished(number, helper="n2"))
            await self.bus.commit(plan(verdict(), verdict(helper="n3", outcome="skipped", code="outranked")), granted())
        self.requests += requests


async def keep_coming(load: Load, projector: Projector, seconds: float, rate: int) -> None:
    began = due = time.monotonic()
    while time.monotonic() - began < seconds:
        await load.come(int(rate * _TICK_S / 4))
        for name, stream in load.bus.streams.items():
            stream.expire(before=max(1, projector.progress[name].position - 1000))
        if await lag_of(projector, load.bus) > _LAG_MAX:  # a machine that is slower than that rate: as fast as it can
            await until("room", lambda: _has_room(projector, load.bus), timeout_s=60)
            due = time.monotonic()
        due += _TICK_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def lag_of(projector: Projector, bus: Bus) -> int:
    return sum(end - projector.progress[name].position for name, end in (await bus.ends()).items())


async def _has_room(projector: Projector, bus: Bus) -> bool:
    return await lag_of(projector, bus) <= _LAG_MAX


def looked_at(store: Store) -> dict[str, int]:
    [found] = store.query("SELECT toInt64(value) AS tracked FROM system.metrics WHERE metric = 'MemoryTracking'")
    [parts] = store.query("SELECT count() AS parts FROM system.parts WHERE active AND database = currentDatabase()")
    return {**found, **parts}


def say(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def main(directory: str, seconds: float, rate: int) -> None:
    bus = Bus()
    load = Load(bus)
    projector = a_projector(bus, lambda: open_store(f"chdb://{directory}", readers=3), limits=BatchLimits())
    async with running(projector):
        await load.come(10)
        await caught_up(projector, await bus.ends(), timeout_s=60)
        began = time.monotonic()
        coming = asyncio.create_task(keep_coming(load, projector, seconds, rate))
        while not coming.done():
            await asyncio.wait({coming}, timeout=1)
            assert projector.store is not None
            lag = await lag_of(projector, bus)
            looked = await asyncio.to_thread(looked_at, projector.store)
            say(at_s=round(time.monotonic() - began, 1), rss_kib=resident_kib(), lag=lag, **looked)
        await coming
        await caught_up(projector, await bus.ends(), timeout_s=120)
        store = projector.store
        assert store is not None
        say(
            requests=load.requests,
            events=await asyncio.to_thread(counts, store, "events", EVENTS),
            commits=await asyncio.to_thread(counts, store, "commits", LEDGER),
            cpu_s=round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 1),
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))

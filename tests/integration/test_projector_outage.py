"""ClickHouse away for an hour: nothing is kept in memory, and what came meanwhile is caught up with faster than it came.

The hour is one of stamps: its events are in the streams before ClickHouse is back. `LW_OUTAGE_RATE` is how many come a second.
"""

import gc
import os
import resource
import time
from pathlib import Path

import pytest

from adapters.clickhouse.store import open_store
from adapters.clock import SystemClock
from domain.subjects import EVENTS, LEDGER
from services.projector.batches import BatchLimits
from tests.support.clickhouse_http import HttpClickhouse
from tests.support.facts import Teller, finished, granted, held, lent, plan, verdict
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, counts, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

HOUR_S = 3600
RATE = int(os.environ.get("LW_OUTAGE_RATE", "100"))
"""Messages a second: three facts and a commit for each request."""
HELD_BYTES_MAX = 200 * 1024 * 1024
"""A batch that is made into rows and one behind it, at most; an hour of rows would be several times this."""


async def an_hour_comes(bus: Bus, clock: SteppedClock, first: int, requests: int) -> None:
    teller = Teller("n1", pseq=3 * first)
    begin_us = clock.now_us
    for number in range(requests):
        clock.now_us = begin_us + number * HOUR_S * 1_000_000 // requests
        await bus.tell(teller, held(first + number), lent(first + number), finished(first + number, helper="n2"))
        await bus.commit(plan(verdict(), verdict(helper="n3", outcome="skipped", code="outranked")), granted())


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_an_hour_without_clickhouse_is_caught_up_with_at_five_times_the_rate_and_nothing_is_kept_meanwhile(
    tmp_path: Path,
):
    clock = SteppedClock(SystemClock().wall_us() - 6 * HOUR_S * 1_000_000)
    bus = Bus(clock)
    requests = RATE * HOUR_S // 4
    async with HttpClickhouse(tmp_path / "clickhouse") as server:
        projector = a_projector(bus, lambda: open_store(server.dsn, readers=1), limits=BatchLimits())
        async with running(projector):
            await an_hour_comes(bus, clock, 0, 10)
            await caught_up(projector, await bus.ends())
            before = dict.fromkeys((EVENTS, LEDGER), 0) | {
                name: told.position for name, told in projector.progress.items()
            }
            await server.kill()
            await an_hour_comes(bus, clock, 10, requests)
            told = [projector.progress[name] for name in (EVENTS, LEDGER)]
            await until("it is known to be away", lambda: all(each.error for each in told), timeout_s=60)
            gc.collect()
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            due = time.monotonic() + 3  # it tries again and again: that must not pile up anything
            await until("three seconds of trying", lambda: time.monotonic() > due)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024
            assert grown < HELD_BYTES_MAX
            assert {name: projector.progress[name].position for name in before} == before
            began = time.perf_counter()
            await server.start()
            await caught_up(projector, await bus.ends(), timeout_s=900)
            took_s = time.perf_counter() - began
            speed = HOUR_S / took_s
            print(
                f"{4 * requests:,} messages of an hour ({RATE}/s): {took_s:.1f} s, {speed:.0f} times as fast as they came"
            )
            assert speed >= 5
            assert projector.store is not None
            assert counts(projector.store, "requests", EVENTS) == (requests + 10, requests + 10)
            assert counts(projector.store, "commits", LEDGER) == (requests + 10, requests + 10)

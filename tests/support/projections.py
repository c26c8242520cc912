"""A projector on memory streams and a real ClickHouse, for tests; and what to count afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.memory.stream import MemoryStream
from domain.events import Decision, Input
from domain.events.commit import encode_commit
from domain.ports import Clock
from domain.subjects import CONTROL, EVENTS, LEDGER, ledger_subject
from services.projector.batches import BatchLimits
from services.projector.projector import Projector, Setup
from tests.support.facts import CLUSTER, Ledger, Teller
from tests.support.waiting import until

QUICK = BatchLimits(messages=50, wait_s=0.01)


class SteppedClock:
    """A clock that goes on by `step_us` at each look at the wall: stamps that are the same in every run."""

    def __init__(self, start_us: int, *, step_us: int = 1) -> None:
        self.now_us, self.step_us = start_us, step_us

    def monotonic_us(self) -> int:
        return SystemClock().monotonic_us()

    def wall_us(self) -> int:
        self.now_us += self.step_us
        return self.now_us


class Bus:
    """The three streams that are projected, in memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.streams = {name: MemoryStream(name, self.clock, batch_max=200) for name in (EVENTS, CONTROL, LEDGER)}
        self.ledger = Ledger()

    def __getitem__(self, name: str) -> MemoryStream:
        return self.streams[name]

    async def tell(self, teller: Teller, *facts: Input) -> None:
        for fact in facts:
            await self[EVENTS].publish(teller.subject(fact), teller.body(fact))

    async def commit(self, *decisions: Decision, rejected: tuple[tuple[int, str], ...] = (), prev: str = "") -> None:
        read = (await self[EVENTS].bounds()).last
        body = encode_commit(self.ledger.commit(*decisions, rejected=rejected, prev=prev, hi=read))
        await self[LEDGER].publish(ledger_subject(CLUSTER), body)

    async def ends(self) -> dict[str, int]:
        return {name: (await stream.bounds()).last for name, stream in self.streams.items()}


def a_projector(bus: Bus, open_store: Callable[[], Store], *, limits: BatchLimits = QUICK) -> Projector:
    setup = Setup(
        cluster=CLUSTER,
        router="test",
        streams=bus.streams,
        open_store=open_store,
        clock=bus.clock,
        limits=limits,
    )
    return Projector(setup)


@asynccontextmanager
async def running(projector: Projector) -> AsyncIterator[Projector]:
    """Run `projector` for the length of the block; it must not have failed by then."""
    task = asyncio.create_task(projector.run())
    try:
        yield projector
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


async def caught_up(projector: Projector, ends: Mapping[str, int], *, timeout_s: float = 20) -> None:
    """Return once everything up to `ends` is in the tables."""

    def positions() -> bool:
        return all(projector.progress[name].position >= end for name, end in ends.items())

    await until(f"positions {dict(ends)}", positions, timeout_s=timeout_s)


def counts(store: Store, table: str, stream: str) -> tuple[int, int]:
    """Return (rows, different messages) of one stream in one table; repetitions that are not merged yet count as rows."""
    [found] = store.query(
        f"SELECT count() AS rows, uniqExact(epoch, seq) AS messages FROM {table} WHERE stream = {{stream:String}}",
        {"stream": stream},
    )
    return found["rows"], found["messages"]

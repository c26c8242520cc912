"""A master and speaking nodes on a real bus, in one process, for tests of the master."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from adapters.clock import SystemClock, new_generation, new_incarnation
from adapters.keys import Signer
from adapters.log import bundle
from adapters.log.checkpoints import CheckpointBook
from adapters.log.feed import Feed
from adapters.log.history import Streams
from adapters.log.ledger import Ledger
from adapters.log.producer import Producer
from adapters.log.reader import Reader
from adapters.log.renewal import begin_generation
from adapters.log.snapshots import Snapshots
from adapters.log.spool import Spool
from adapters.log.verify import Report, verify
from adapters.log.witness import FileWitnessBook
from adapters.nats.connection import Bus, connect
from domain.events import ControlEvent, Decision, Envelope, Input, codec
from domain.events.base import tag_of
from domain.events.commit import Commit, decode_commit
from domain.ids import NodeId
from domain.subjects import (
    CONTROL,
    DECISIONS,
    EVENTS,
    LEDGER,
    SNAPSHOTS,
    control_aggregate,
    control_subject,
    ledger_subject,
)
from services.master.checkpoints import Checkpoints
from services.master.loop import MasterLoop, Parts
from services.master.observer import Observer
from services.master.witnesses import clickhouse_at
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until


class Gate:
    """A ledger that can be stopped between deciding and publishing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.subject = ledger.subject
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Event()
        self.outcomes: list[bool] = []

    async def append(self, version: int, body: bytes, digest: str) -> bool:
        self.waiting.set()
        await self.open.wait()
        self.waiting.clear()
        outcome = await self._ledger.append(version, body, digest)
        self.outcomes.append(outcome)
        return outcome


class ClusterUnderTest:
    """Buses by name, masters, and producers of nodes."""

    def __init__(self, server: ServerUnderTest, stack: AsyncExitStack) -> None:
        self.server, self._stack = server, stack
        self.clock = SystemClock()
        self._buses: dict[str, Bus] = {}
        self._produced: dict[str, Producer] = {}
        self._masters: dict[str, list[asyncio.Task[None]]] = {}

    async def bus(self, name: str, credentials: str | None = None) -> Bus:
        """Return a connection of `name`, made once."""
        if name not in self._buses:
            bus = await connect(self.server.url, self.server.credentials(credentials or name), name=name)
            self._stack.push_async_callback(bus.close)
            self._buses[name] = bus
        return self._buses[name]

    def run(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        """End the task with the test."""

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self._stack.push_async_callback(end)
        return task

    async def master(
        self,
        name: str = "master",
        *,
        data: Path | None = None,
        relaxed: bool = False,
        archive: str = "",
        checkpoint_every_s: float = 60,
    ) -> tuple[MasterLoop, Gate]:
        """Start a master of its own connection and return its loop, with the gate before its ledger."""
        bus = await self.bus(name, "master")
        secrets = self.server.credentials("master")
        cluster = secrets.cluster
        gate = Gate(Ledger(bus.stream(LEDGER), ledger_subject(cluster)))
        parts = Parts(
            streams=Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER)),
            ledger=gate,  # type: ignore[arg-type]  # the same method
            feed=Feed(bus.stream(DECISIONS), cluster=cluster, signer=Signer(secrets.master_seed), clock=self.clock),
            snapshots=Snapshots(bus.stream(SNAPSHOTS), cluster=cluster),
            witness=FileWitnessBook((data or self.server.data) / f"checkpoint-{name}.json"),
            reader=Reader(cluster, secrets.cluster_mac_secret),
            observer=Observer(
                bus, bus.stream(EVENTS), cluster, secrets.cluster_mac_secret, new_incarnation(), self.clock
            ),
            clock=self.clock,
            new_generation=new_generation(1),
            signer=Signer(secrets.master_seed),
            operator_public=secrets.operator_public,
            relaxed=relaxed,
            ask_clickhouse=clickhouse_at(archive) if archive else None,
            checkpoints=Checkpoints(
                CheckpointBook((data or self.server.data) / f"checkpoints-{name}"),
                Signer(secrets.master_seed),
                cluster,
                self.clock,
                every_s=checkpoint_every_s,
            ),
        )
        loop = MasterLoop(parts)
        self._masters[name] = [
            self.run(asyncio.create_task(loop.run())),
            self.run(asyncio.create_task(parts.observer.listen())),
        ]
        return loop, gate

    async def end(self, name: str) -> None:
        """End a master as its process would: its loop first, then its connection."""
        for task in self._masters.pop(name):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await (await self.bus(name)).close()

    async def node(self, name: str) -> Producer:
        """Return the running producer of a node, which also beats."""
        if name not in self._produced:
            bus = await self.bus(name)
            producer = Producer(
                bus.stream(EVENTS),
                cluster=self.server.cluster,
                node=NodeId(name),
                incarnation=new_incarnation(),
                mac_key=bytes.fromhex(self.server.credentials(name).mac_key),
                clock=self.clock,
                spool=Spool(self.server.data / "spool" / name),
            )
            self.run(asyncio.create_task(producer.run()))
            self.run(asyncio.create_task(self._beat(bus, name)))
            self._produced[name] = producer
        return self._produced[name]

    async def _beat(self, bus: Bus, name: str) -> None:
        while True:
            bus.beat(f"lw.{self.server.cluster}.hb.{name}")
            await asyncio.sleep(0.3)

    async def state(self, name: str, *facts: Input) -> None:
        """State facts as a node and wait until they are stored."""
        producer = await self.node(name)
        for fact in facts:
            producer.state(fact)
        assert await producer.drained(10)

    async def decree(self, *events: ControlEvent) -> None:
        """Store control events as an operator."""
        stream = (await self.bus("operator")).stream(CONTROL)
        for event in events:
            envelope = Envelope(
                id="c",
                source="/c",
                type=tag_of(event),
                cluster=self.server.cluster,
                producer="operator",
                data=codec.raw(event),
            )
            subject = control_subject(self.server.cluster, control_aggregate(event))
            await stream.publish(subject, codec.encode(envelope))

    async def new_generation(self, reason: str) -> Commit:
        """Begin a new generation as an operator does."""
        bus = await self.bus("restarter", "master")
        streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))
        operator = Signer(self.server.credentials("operator").nkey_seed)
        return await begin_generation(streams, new_generation(2), reason, cluster=self.server.cluster, signer=operator)

    async def commits(self) -> list[Commit]:
        """Return the whole ledger."""
        stream = (await self.bus("projector")).stream(LEDGER)
        last = await stream.last()
        found: list[Commit] = []
        if last is not None:
            async for batch in stream.read(after=0, until=last.seq):
                found += [decode_commit(message.body) for message in batch]
        return found

    async def decisions(self, kind: type, *, count: int = 1, timeout_s: float = 10) -> list[Decision]:
        """Return the decisions of a kind once there are `count` of them."""

        async def look() -> list[Decision]:
            found = [d for made in await self.commits() for d in made.decisions if isinstance(d, kind)]
            return found if len(found) >= count else []

        return await until(f"{count} {kind.__name__}", look, timeout_s=timeout_s)  # type: ignore[no-any-return]

    async def feed(self) -> list[Envelope]:
        """Return the whole feed."""
        stream = (await self.bus("projector")).stream(DECISIONS)
        last = await stream.last()
        found: list[Envelope] = []
        if last is not None:
            async for batch in stream.read(after=0, until=last.seq):
                found += [codec.decode_envelope(message.body) for message in batch]
        return found

    async def streams(self) -> Streams:
        """Return the history's streams as an auditor with the projector's rights."""
        bus = await self.bus("projector")
        return Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))

    async def verify(self, **how: Any) -> Report:
        """Verify the whole history."""
        secret = self.server.credentials("master").cluster_mac_secret
        return await verify(await self.streams(), Reader(self.server.cluster, secret), **how)

    async def snapshot(self) -> tuple[int, bytes]:
        """Return the newest snapshot."""
        newest = await Snapshots((await self.bus("projector")).stream(SNAPSHOTS), cluster=self.server.cluster).newest()
        assert newest is not None
        return newest

    async def export(self, path: Path) -> None:
        """Copy the history to a file."""
        await bundle.export(await self.streams(), self.server.cluster, path)


@asynccontextmanager
async def cluster_on(server: ServerUnderTest) -> AsyncIterator[ClusterUnderTest]:
    """Yield a cluster on a running server."""
    async with AsyncExitStack() as stack:
        yield ClusterUnderTest(server, stack)


def renamed(body: Input, **fields: object) -> Input:
    """Return a fact with other fields."""
    return msgspec.structs.replace(body, **fields)

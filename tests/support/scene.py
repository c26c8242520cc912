"""Masters over streams in memory, in virtual time: a stage for what goes wrong beside the decisions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from adapters.keys import Signer, new_nkey
from adapters.log.feed import Feed
from adapters.log.history import Streams
from adapters.log.ledger import Ledger
from adapters.log.reader import Reader
from adapters.log.renewal import begin_generation
from adapters.log.scan import NO_AGES
from adapters.log.snapshots import Snapshots
from adapters.log.verify import verify
from adapters.memory.stream import MemoryStream
from domain.errors import HistoryError
from domain.events import (
    Input,
    codec,
)
from domain.events.commit import Commit, decode_commit
from domain.ids import Generation, Incarnation, NodeId
from domain.ports import Clock, StoredMessage, Witnessed
from domain.subjects import heartbeat_subject, ledger_subject
from services.master.loop import MasterLoop, Parts
from services.master.observer import Observer
from services.master.witnesses import NOTHING, Archived
from tests.support.history import CLUSTER, SECRET, Recorder, finished, held, link, registered, started
from tests.support.virtual_loop import pass_time, run_virtually


class Air:
    """What heartbeats go through, for the masters of one test."""

    def __init__(self) -> None:
        self.connected = True
        self._ears: list[asyncio.Queue[str]] = []

    def beat(self, subject: str) -> None:
        """Let everybody hear a heartbeat."""
        if self.connected:
            for ear in self._ears:
                ear.put_nowait(subject)

    async def beats(self, subject: str) -> AsyncIterator[str]:
        """Yield the heartbeats."""
        del subject
        ear: asyncio.Queue[str] = asyncio.Queue()
        self._ears.append(ear)
        while True:
            yield await ear.get()


class Book:
    """A witness book that may fail as a disk does."""

    def __init__(self) -> None:
        self.kept: Witnessed | None = None
        self.broken = self.torn = self.stuck = False

    async def read(self) -> Witnessed | None:
        """Return what is kept."""
        if self.torn:
            raise HistoryError("checkpoint: must be a witnessed commit, is not")
        return self.kept

    async def put_aside(self) -> str:
        """Put aside what cannot be read."""
        if self.torn and self.stuck:
            raise HistoryError("checkpoint: must be a witnessed commit, is not; nor can it be put aside")
        aside, self.torn = "aside" if self.torn else "", False
        return aside

    async def write(self, witnessed: Witnessed) -> None:
        """Keep it, if the disk does."""
        if self.broken:
            raise OSError(28, "No space left on device")
        self.kept = witnessed


SEED = new_nkey()[0]
OPERATOR = Signer(new_nkey()[0])


class Scene:
    """Streams, a node that says things, and masters."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.air, self.book = clock, Air(), Book()
        self.events, self.control, self.ledger, self.feed, self.snap = (
            MemoryStream(name, clock) for name in ("LW_EVENTS", "LW_CONTROL", "LW_LEDGER", "LW_DECISIONS", "LW_SNAP")
        )
        self.recorder = Recorder()
        self.streams = Streams(self.events, self.control, self.ledger)
        self.ages, self.archive = NO_AGES, NOTHING
        """After how long streams drop messages, and what ClickHouse has seen, as masters are told."""
        self.relaxed = False
        """Durability of the bus, as masters are told."""
        self._tasks: list[asyncio.Task[None]] = []
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._masters = 0

    def master(self, book: Book | None = None, *, generation: str = "00010000") -> MasterLoop:
        """Start a master that keeps what it has seen in `book`, and would begin a history of that name."""
        self._masters += 1
        number, air = self._masters, self.air
        observer = Observer(air, self.events, CLUSTER, SECRET, Incarnation(f"master{number}"), self.clock)  # type: ignore[arg-type]
        parts = Parts(
            streams=self.streams,
            ledger=Ledger(self.ledger, ledger_subject(CLUSTER)),
            feed=Feed(self.feed, cluster=CLUSTER, signer=Signer(SEED), clock=self.clock),
            snapshots=Snapshots(self.snap, cluster=CLUSTER),
            witness=book or self.book,
            reader=Reader(CLUSTER, SECRET),
            observer=observer,
            clock=self.clock,
            new_generation=Generation(generation),
            signer=Signer(SEED),
            operator_public=OPERATOR.public,
            relaxed=self.relaxed,
            ages=self.ages,
            ask_clickhouse=self._archived,
        )
        loop = MasterLoop(parts)
        self._tasks += [asyncio.create_task(loop.run()), asyncio.create_task(observer.listen())]
        self._runs[id(loop)] = self._tasks[-2]
        return loop

    async def _archived(self) -> Archived:
        return self.archive

    async def stop_one(self, loop: MasterLoop) -> None:
        """Stop one master."""
        task = self._runs.pop(id(loop))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def stop(self) -> None:
        """Stop every master."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def beat(self, *names: str, seconds: float) -> None:
        """Let time pass, with heartbeats of some nodes."""
        for _ in range(int(seconds * 2)):
            for name in names:
                self.air.beat(heartbeat_subject(CLUSTER, NodeId(name)))
            await pass_time(0.5)

    async def say(self, node: str, *facts: Input) -> None:
        """Store facts of a node."""
        for fact in facts:
            stored = self.recorder.state(node, fact)  # type: ignore[arg-type]
            await self.events.publish(stored.subject, stored.body)

    async def begin(self) -> None:
        """Let two nodes register, and link them."""
        await self.say("a", registered(), finished("req_fit"))
        await self.say("b", registered())
        stored = self.recorder.decree(link("a", "b"))
        await self.control.publish(stored.subject, stored.body)

    async def burst(self, name: str, count: int = 8) -> None:
        """Hold requests at once."""
        await self.say("a", started(f"req_{name}s"), *(held(f"req_{name}{i}", i + 1) for i in range(count)))

    async def renew(self, reason: str, generation: str = "0002abcd", *, signer: Signer = OPERATOR) -> Commit:
        """Begin a new generation, as an operator does."""
        return await begin_generation(self.streams, Generation(generation), reason, cluster=CLUSTER, signer=signer)

    async def commits(self) -> list[Commit]:
        """Return the ledger."""
        return [decode_commit(message.body) for message in await messages(self.ledger)]

    async def said(self, kind: type) -> list[Input]:
        """Return the observations of a kind."""
        facts = [codec.decode_input(codec.decode_envelope(m.body).data) for m in await messages(self.events)]
        return [fact for fact in facts if isinstance(fact, kind)]

    async def clean(self) -> bool:
        """Tell whether a verification finds nothing."""
        return (await verify(self.streams, Reader(CLUSTER, SECRET))).clean


async def messages(stream: MemoryStream) -> list[StoredMessage]:
    """Return what a stream holds."""
    bounds, found = await stream.bounds(), list[StoredMessage]()
    if bounds.last >= bounds.first:
        async for batch in stream.read(after=bounds.first - 1, until=bounds.last):
            found += batch
    return found


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    """Run a scenario in virtual time."""

    async def staged(clock: Clock) -> None:
        scene = Scene(clock)
        try:
            await scenario(scene)
        finally:
            await scene.stop()

    run_virtually(staged)

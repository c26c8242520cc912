"""What ties the simulated nodes to the real bus: a connection and a producer for each, heartbeats, and the ledger read along."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from adapters.clock import SystemClock
from adapters.log.history import Streams
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from adapters.nats.connection import Bus, connect
from domain.actions import OrderKey
from domain.errors import NoAnswerError, PublishUnknownError
from domain.events import ControlEvent, Decision, Envelope, Fact, codec
from domain.events.base import tag_of
from domain.events.commit import decode_commit
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Incarnation, NodeId
from domain.ports import Stream
from domain.subjects import CONTROL, EVENTS, LEDGER, control_aggregate, control_subject, heartbeat_subject
from tests.replay.million.world import Out, World
from tests.support.nats import ServerUnderTest

BEAT_EVERY_S: Final = 0.5
LOOK_EVERY_S: Final = 0.05
BEHIND: Final = 3_000
"""So many facts under way, or stored and not decided about, and the nodes' time stands still until there are fewer."""
_MOMENT_S: Final = 0.01
MASTER_GONE_S: Final = 0.7
"""A master that has stored nothing for so long is away: the nodes live on without it."""

Hear = Callable[[LeaseEvent | LinkWord, OrderKey], None]


class Line:
    """One node's way to the bus. A new life waits until all that the last one said is stored."""

    def __init__(self, bus: Bus, server: ServerUnderTest, name: NodeId, group: asyncio.TaskGroup) -> None:
        self.bus, self._server, self.name, self._group = bus, server, name, group
        self._producer: Producer | None = None
        self._sending: asyncio.Task[None] | None = None
        self._spool: Spool | None = None
        self._waiting: list[tuple[Incarnation, int, Fact]] = []
        self._turning: asyncio.Task[None] | None = None
        self._away = False
        """The bus was away, and it has not been said since what is open."""

    def state(self, incarnation: Incarnation, pseq: int, fact: Fact) -> None:
        """State a fact, now or once the life before is stored."""
        if self._turning is None and self._producer is not None and self._producer.incarnation == incarnation:
            self._say(self._producer, pseq, fact)
            return
        self._waiting.append((incarnation, pseq, fact))
        if self._turning is None:
            self._turning = self._group.create_task(self._turn())

    async def was_away(self) -> bool:
        """Tell, once, that the bus is back and has all that was stated without it: some of it came late."""
        producer = self._producer
        if producer is None or self._turning is not None:
            return False
        if producer.spoke_late or not producer.bus_ok:
            self._away, producer.spoke_late = True, False
            return False
        if not self._away or not await producer.drained(_MOMENT_S):
            return False
        self._away = False
        return True

    @staticmethod
    def _say(producer: Producer, pseq: int, fact: Fact) -> None:
        basis = producer.state(fact)
        assert basis.pseq == pseq, f"{fact}: must be fact {pseq} of its life, became {basis}"

    async def _turn(self) -> None:
        """Begin lives and say what waits until nothing does."""
        while self._waiting:
            incarnation, pseq, fact = self._waiting.pop(0)
            if self._producer is None or self._producer.incarnation != incarnation:
                await self.close()
                self._producer = self._begin(incarnation)
                self._sending = asyncio.create_task(self._producer.run())
            self._say(self._producer, pseq, fact)
        self._turning = None

    def _begin(self, incarnation: Incarnation) -> Producer:
        self._spool = Spool(self._server.data / "spool" / self.name)
        return Producer(
            self.bus.stream(EVENTS),
            cluster=self._server.cluster,
            node=self.name,
            incarnation=incarnation,
            mac_key=bytes.fromhex(self._server.credentials(self.name).mac_key),
            clock=SystemClock(),
            spool=self._spool,
        )

    async def close(self) -> None:
        """Have all stored, and end the life that said it."""
        if self._producer is not None and self._sending is not None and self._spool is not None:
            assert await self._producer.drained(60), f"{self.name}: its facts must be stored within a minute"
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
            self._spool.close()
            self._producer = None


class RealBus(Out):
    """The bus as the whole simulated cluster uses it."""

    def __init__(self, server: ServerUnderTest, stack: AsyncExitStack, group: asyncio.TaskGroup) -> None:
        self._server, self._stack, self._group = server, stack, group
        self._lines: dict[NodeId, Line] = {}
        self._auditor: Bus
        self._operator: Bus
        self._decrees: asyncio.Queue[ControlEvent] = asyncio.Queue()
        self.stated = 0
        self.stored = 0
        """Newest sequence of LW_EVENTS."""
        self.decided = 0
        """Up to which commits reach."""
        self.commits = 0
        self.kinds: dict[str, int] = {}
        """Decisions by kind."""
        self.heard = asyncio.Event()
        """Set whenever a commit was read."""
        self._moved_s = 0.0

    async def open(self, names: list[NodeId]) -> None:
        """Connect everybody."""
        for name in names:
            self._lines[name] = Line(await self._connect(name, name), self._server, name, self._group)
        self._auditor = await self._connect("projector", "auditor")
        self._operator = await self._connect("operator", "operator")

    async def _connect(self, credentials: str, name: str) -> Bus:
        bus = await connect(self._server.url, self._server.credentials(credentials), name=name)
        self._stack.push_async_callback(bus.close)
        return bus

    # -- what the world says

    def state(self, node: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        """Have a fact stored (Out.state); its stamp is the server's."""
        del now_us
        self.stated += 1
        self._lines[node].state(incarnation, pseq, fact)

    def decree(self, event: ControlEvent) -> None:
        """Have an operator's event stored (Out.decree)."""
        self._decrees.put_nowait(event)

    async def send_decrees(self) -> None:
        """Store what operators say, for ever."""
        stream = self._operator.stream(CONTROL)
        for number in range(1 << 62):
            event = await self._decrees.get()
            envelope = Envelope(
                id=f"operator/{number}",
                source=f"/{self._server.cluster}/operator",
                type=tag_of(event),
                cluster=self._server.cluster,
                producer="operator",
                data=codec.raw(event),
            )
            subject = control_subject(self._server.cluster, control_aggregate(event))
            stored = False
            while not stored:  # sent again under its name until it is known to be there
                with suppress(PublishUnknownError):
                    await stream.publish(subject, codec.encode(envelope), message_id=envelope.id)
                    stored = True

    async def beat(self, world: World) -> None:
        """Beat for the nodes that can, and let them say what is open once the bus is back."""
        while True:
            for node in world.nodes:
                line = self._lines[node.name]
                if node.alive and not node.hung:
                    line.bus.beat(heartbeat_subject(self._server.cluster, node.name))
                    if await line.was_away():
                        world.snapshot(node.name, "gap")
            await pause(BEAT_EVERY_S)

    # -- what the world hears

    @property
    def behind(self) -> bool:
        """Tell whether the bus or the master cannot follow, so that the nodes should wait."""
        away = asyncio.get_running_loop().time() - self._moved_s > MASTER_GONE_S
        return self.stated - self.stored > BEHIND or (self.stored - self.decided > BEHIND and not away)

    async def look(self) -> None:
        """See how far facts are stored, for ever."""
        events = self._auditor.stream(EVENTS)
        while True:
            with suppress(NoAnswerError):
                self.stored = (await events.bounds()).last
            await pause(LOOK_EVERY_S)

    async def listen(self, hear: Hear) -> None:
        """Read the ledger along and tell what concerns nodes."""
        async for batch in self._auditor.stream(LEDGER).read(after=0):
            for message in batch:
                commit = decode_commit(message.body)
                self.decided, self.commits = commit.hi, commit.version
                for index, decision in enumerate(commit.decisions):
                    self._count(decision)
                    if isinstance(decision, LeaseEvent | LinkWord):
                        hear(decision, (commit.generation, commit.version, index))
            self._moved_s = asyncio.get_running_loop().time()
            self.heard.set()

    def _count(self, decision: Decision) -> None:
        kind = type(decision).__name__
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    async def drained(self) -> None:
        """Return once every fact is stored."""
        for name in sorted(self._lines):
            await self._lines[name].close()

    def streams(self) -> Streams:
        """Return the history, as an auditor reads it."""
        bus = self._auditor
        return Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))

    def stream(self, name: str) -> Stream:
        """Return any stream of the bus, as an auditor reads it."""
        return self._auditor.stream(name)


async def pause(duration_s: float) -> None:
    """Wait: for the world's own pace, not for something to be true."""
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with suppress(TimeoutError):
        async with asyncio.timeout(duration_s):
            await never

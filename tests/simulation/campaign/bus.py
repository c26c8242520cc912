"""The bus: the product's in-memory streams behind a network that delays, loses, repeats and keeps things for later.

What a real broker does and this one does too: one order a stream; the expected last sequence; the window for duplicates. What a
network does to it: an answer that is lost (the publish is *unknown*), a publish that lands after its timeout, a stored message
that comes again, a process that is cut off, and a server that stands still.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec

from adapters.memory.stream import MemoryStream
from domain.errors import NoAnswerError, PublishUnknownError
from domain.ports import Bounds, Stored, StoredMessage
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS
from tests.simulation.campaign.loop import Process, SimLoop, SkewedClock, pass_time

ANSWER_US = 2_000_000
"""How long a publisher waits; after it, the publish is unknown."""
NOTICE_US = 4_000_000
"""After so long a process notices that it is cut off."""
WALL_US = 1_800_000_000_000_000


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """How often a publish or a core message meets what, in thousandths."""

    lost: int = 0
    late: int = 0
    ack_lost: int = 0
    twice: int = 0
    core_lost: int = 0
    core_slow: int = 0
    redelivered: int = 0


CALM = Weather()


class ServerClock(SkewedClock):
    """The server's clock, which an administrator may step."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop, 0, 1_000_000, WALL_US)

    def step(self, by_us: int) -> None:
        self._wall_us += by_us


class Server:
    """Every stream, and every port to it."""

    def __init__(self, loop: SimLoop, dice: random.Random) -> None:
        self.loop, self.dice = loop, dice
        self.clock = ServerClock(loop)
        names = (EVENTS, CONTROL, LEDGER, DECISIONS, SNAPSHOTS)
        self.streams = {name: MemoryStream(name, self.clock, duplicate_first=dice.random() < 0.5) for name in names}
        self.up = True
        self.weather = CALM
        self.ports: list[Port] = []
        self.stored: list[Callable[[str, StoredMessage], None]] = []
        """Called for each message that a stream takes."""
        self._waiting: list[Callable[[], None]] = []

    def reached(self, what: Callable[[], None]) -> None:
        """Let something from a port happen at the server, now or once it stands still no longer."""
        if self.up:
            what()
        else:
            self._waiting.append(what)

    def stop(self) -> None:
        self.up = False

    def go_on(self) -> None:
        self.up = True
        waiting, self._waiting = self._waiting, []
        for what in waiting:
            what()
        for port in self.ports:
            port.moved()

    def take(self, name: str, draft: "Draft", *, twice: bool) -> Stored | Exception:
        """Store a draft, and tell what the stream answers."""
        stream = self.streams[name]
        last = len(stream._messages)
        if twice and draft.expected_last is None:  # else the second copy is refused
            stream.faults.twice()
        answer = stream.publish_soon(
            draft.subject,
            draft.body,
            message_id=draft.message_id,
            expected_last=draft.expected_last,
            headers=draft.headers,
        )
        error = answer.exception()
        for message in stream._messages[last:]:
            for hook in self.stored:
                hook(name, cast("StoredMessage", message))
        if name == DECISIONS:  # core subscribers hear it even where the stream refuses it
            for port in self.ports:
                port.hear_core(draft)
        return cast("Exception", error) if error is not None else answer.result()


class Draft(msgspec.Struct, frozen=True):
    """A publish on its way."""

    subject: str
    body: bytes
    message_id: str
    expected_last: int | None
    headers: Mapping[str, str] | None


class Port:
    """One process' connection to the bus; it plays adapters.nats.connection.Bus for the observer."""

    def __init__(self, server: Server, process: Process) -> None:
        self._server, self.process = server, process
        self._loop, self._dice = server.loop, server.dice
        self.cut = False
        self._cut_us = 0
        self._arrives_us = 0
        self._pending: list[Callable[[], None]] = []
        self._moved = asyncio.Event()
        self._ears: list[asyncio.Queue[str]] = []
        self.core: Callable[[Draft], None] | None = None
        """Takes what comes past the decision stream."""
        self.wants: tuple[str, ...] = ()
        """Parts of subjects that this process follows."""
        server.ports.append(self)

    # -- the connection itself

    @property
    def connected(self) -> bool:
        return not self.cut or self._loop.now_us - self._cut_us < NOTICE_US

    def cut_off(self) -> None:
        if not self.cut:
            self.cut, self._cut_us = True, self._loop.now_us

    def join(self) -> None:
        """End a partition: what the client library kept back goes out now, also what its caller has given up."""
        self.cut = False
        pending, self._pending = self._pending, []
        for send in pending:
            self._send(send)
        self.moved()

    def moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def passable(self) -> None:
        while self.cut or not self._server.up:
            await self._moved.wait()

    def close(self) -> None:
        self._server.ports.remove(self)

    def delay_us(self) -> int:
        return self._dice.randint(150, 600)

    # -- publishing

    def publish_soon(self, name: str, draft: Draft) -> "asyncio.Future[Stored]":
        answer: asyncio.Future[Stored] = self._loop.create_future()
        fate = self._fate()
        arrive = partial(self._server.reached, partial(self._arrive, name, draft, answer, fate))
        self._loop.after(ANSWER_US, _give_up, answer, name, process=self.process)
        if fate == "lost":
            return answer
        if fate == "late":
            self._loop.after(ANSWER_US + self._dice.randint(100_000, 20_000_000), arrive)
        elif not self.cut:
            self._send(arrive)
        elif self._dice.random() < 0.5:
            self._pending.append(arrive)
        return answer

    def _fate(self) -> str:
        weather, throw = self._server.weather, self._dice.randrange(1000)
        for name in ("lost", "late", "ack_lost", "twice"):
            throw -= cast("int", getattr(weather, name))
            if throw < 0:
                return name
        return ""

    def _send(self, arrive: Callable[[], None]) -> None:
        """A connection keeps the order of what goes over it."""
        self._arrives_us = max(self._arrives_us, self._loop.now_us + self.delay_us())
        self._loop.after(self._arrives_us - self._loop.now_us, arrive)

    def _arrive(self, name: str, draft: Draft, answer: "asyncio.Future[Stored]", fate: str) -> None:
        outcome = self._server.take(name, draft, twice=fate == "twice")
        if fate != "ack_lost" and not self.cut:
            self._loop.after(self.delay_us(), _answer, answer, outcome, process=self.process)

    # -- asking and reading

    async def ask(self, what: Callable[[], Any]) -> Any:
        """Return what the server says to a question."""
        if self.cut or not self._server.up:
            await pass_time(ANSWER_US / 1e6)
            if self.cut or not self._server.up:
                raise NoAnswerError("bus: no answer")
        await pass_time(self.delay_us() / 1e6)
        return what()

    def stream(self, name: str) -> "PortStream":
        return PortStream(self, name, self._server.streams[name])

    # -- core messages

    def beat(self, subject: str) -> None:
        if self.cut or not self._server.up:
            return
        for port in self._server.ports:
            if port._ears and not port.cut and self._dice.randrange(1000) >= self._server.weather.core_lost:
                self._loop.after(self.delay_us(), port._hear_beat, subject, process=port.process)

    def _hear_beat(self, subject: str) -> None:
        for ear in self._ears:
            ear.put_nowait(subject)

    async def beats(self, subject: str) -> AsyncIterator[str]:
        del subject
        ear: asyncio.Queue[str] = asyncio.Queue()
        self._ears.append(ear)
        while True:
            yield await ear.get()

    def hear_core(self, draft: Draft) -> None:
        if self.core is None or self.cut or not any(part in draft.subject for part in self.wants):
            return
        weather = self._server.weather
        if self._dice.randrange(1000) < weather.core_lost:
            return
        slow = self._dice.randrange(1000) < weather.core_slow
        delay_us = self._dice.randint(10_000, 8_000_000) if slow else self.delay_us()
        self._loop.after(delay_us, self.core, draft, process=self.process)
        if slow:
            self._loop.after(delay_us + self._dice.randint(0, 40_000_000), self.core, draft, process=self.process)


class PortStream:
    """A stream as one process sees it (domain.ports.Stream, with `publish_soon`)."""

    def __init__(self, port: Port, name: str, memory: MemoryStream) -> None:
        self.name, self._port, self._memory = name, port, memory

    def publish_soon(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> "asyncio.Future[Stored]":
        return self._port.publish_soon(self.name, Draft(subject, body, message_id, expected_last, headers))

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        return await self.publish_soon(
            subject, body, message_id=message_id, expected_last=expected_last, headers=headers
        )

    async def last(self) -> StoredMessage | None:
        def newest() -> StoredMessage | None:
            return self._memory._messages[-1] if self._memory._messages else None

        return cast("StoredMessage | None", await self._port.ask(newest))

    async def get(self, seq: int) -> StoredMessage | None:
        def one() -> StoredMessage | None:
            messages = self._memory._messages
            return messages[seq - 1] if 1 <= seq <= len(messages) else None

        return cast("StoredMessage | None", await self._port.ask(one))

    async def bounds(self) -> Bounds:
        def ends() -> Bounds:
            return Bounds(first=1, last=len(self._memory._messages), created_ns=0)

        return cast("Bounds", await self._port.ask(ends))

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        async with aclosing(self._memory.read(after=after, until=until)) as batches:
            async for batch in batches:
                await self._port.passable()
                await pass_time(self._port.delay_us() / 1e6)
                yield batch


class Durable:
    """A durable consumer: keeps at the server how far its node has acknowledged, and sends some of it again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged = 0
        self._again: deque[StoredMessage] = deque(maxlen=4)

    async def messages(self, port: Port, dice: random.Random) -> AsyncGenerator[StoredMessage, None]:
        """Yield what is not acknowledged yet, for ever; on a new connection the last few come again."""
        start = max(0, self.acknowledged - dice.randrange(3))
        async with aclosing(port.stream(self.name).read(after=start)) as batches:
            async for batch in batches:
                for message in batch:
                    if self.name == CONTROL or any(part in message.subject for part in port.wants):
                        yield message
                        self._again.append(message)
                    self.acknowledged = max(self.acknowledged, message.seq)
                if self._again and dice.randrange(1000) < port._server.weather.redelivered:
                    for message in list(self._again):
                        yield message


def _give_up(answer: "asyncio.Future[Stored]", name: str) -> None:
    if not answer.done():
        answer.set_exception(PublishUnknownError(f"{name}: no answer"))


def _answer(answer: "asyncio.Future[Stored]", outcome: Stored | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)

"""The bus as one process sees it: one connection that comes back by itself, and what goes over it.

A publish is sent on a live connection or not at all: nothing is kept to be sent later, since whoever gave up waiting would
not know of it. Subscriptions live as long as the bus and are renewed on each new connection.
"""

import asyncio
import itertools
import logging
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from adapters.clock import random_fraction, random_token
from adapters.keys import Credentials, Signer
from adapters.nats.api import subject_text
from adapters.nats.wire import Gathered, Handler, Wire, WireError
from domain.errors import (
    BadConfigError,
    BusError,
    NoAnswerError,
    NotAllowedError,
    PublishRefusedError,
    PublishUnknownError,
)
from domain.subjects import CONTROL

if TYPE_CHECKING:
    from adapters.nats.follower import NatsFollower
    from adapters.nats.stream import NatsStream

ANSWER_S: Final = 2.0
"""How long a publish or a question waits for its answer."""
PING_S: Final = 5.0
PINGS_UNANSWERED_MAX: Final = 2
_CONNECT_S: Final = 3.0
_CLOSE_S: Final = 1.0
_RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_BEATS_KEPT: Final = 1024
_LOG: Final = logging.getLogger(__name__)

Interpret = Callable[[bytes, bytes], object]
"""Makes the result of (header block, body) of an answer, or raises a BusError."""


class _Call:
    """Something asked of the bus that waits for its answer."""

    __slots__ = ("answer", "due", "interpret", "publish", "subject")

    def __init__(
        self, subject: str, answer: "asyncio.Future[object]", interpret: Interpret, due: float, *, publish: bool
    ) -> None:
        self.subject, self.answer, self.interpret, self.due, self.publish = subject, answer, interpret, due, publish

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Bus:
    """The bus, connected or not; made by `connect`.

    Streams and followers made from it may be used while it is not connected: they wait, or say that the outcome is unknown.
    """

    def __init__(self, url: str, credentials: Credentials | None, *, name: str) -> None:
        self.name = name
        self.inbox = f"_INBOX_{credentials.name if credentials else name}.{random_token(8)}"
        self.connections = 0
        """How many connections there have been; a reader that sees it change begins anew."""
        self.error = ""
        """Why the last attempt to connect failed, or what the server said last."""
        self._servers = [_server(each) for each in url.split(",")]
        self._signer = Signer(credentials.nkey_seed) if credentials else None
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._changed = asyncio.Event()
        self._ids = itertools.count(1)
        self._subscriptions: dict[bytes, tuple[bytes, Handler | Gathered]] = {}
        self._denied: dict[str, Callable[[str], None]] = {}
        self._calls: dict[bytes, _Call] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._subscriptions[b"1"] = (f"{self.inbox}.*".encode(), self._answered)
        self._sids = itertools.count(2)
        self._keeper = asyncio.create_task(self._keep_connected(), name=f"bus {name}")

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection that, as far as is known, is alive."""
        return self._wire is not None

    async def wait_connected(self) -> None:
        """Return once there is a connection."""
        while self._wire is None:
            await self._changed.wait()

    def stream(self, name: str) -> "NatsStream":
        """Return the stream `name` (domain.ports.Stream)."""
        from adapters.nats.stream import NatsStream  # noqa: PLC0415  # it needs Bus; only this method needs it

        return NatsStream(self, name)

    def follower(
        self, stream_name: str, subjects: Sequence[str], durable: str | None, *, from_start: bool | None = None
    ) -> "NatsFollower":
        """Return what is published on `subjects`, with the durable consumer `durable` of the stream as repair.

        `from_start`: begin with the oldest message the consumer may have; None: only LW_CONTROL does, since each process
        needs all of it. Otherwise the durable goes on where it was.
        """
        from adapters.nats.follower import NatsFollower  # noqa: PLC0415  # it needs Bus; only this method needs it

        again = stream_name == CONTROL if from_start is None else from_start
        return NatsFollower(self, stream_name, subjects, durable, from_start=again)

    def beat(self, subject: str) -> None:
        """Say a heartbeat; it is lost if there is no connection."""
        self.send(subject.encode(), b"")

    async def beats(self, subject: str) -> AsyncGenerator[str, None]:
        """Yield the subject of each heartbeat on `subject` (which may hold wildcards), for ever."""
        heard: deque[str] = deque(maxlen=_BEATS_KEPT)
        wake = asyncio.Event()

        def hear(said_on: bytes, _reply: bytes, _headers: bytes, _body: bytes) -> None:
            heard.append(subject_text(said_on))
            wake.set()

        sid = self.subscribe(subject, hear)
        try:
            while True:
                while heard:
                    yield heard.popleft()
                wake.clear()
                await wake.wait()
        finally:
            self.unsubscribe(sid)

    async def close(self) -> None:
        """End the connection; what waits fails."""
        self._keeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeper
        if self._sweeper is not None:
            self._sweeper.cancel()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await wire.gone.wait()
            wire.abort()
        self._fail_calls("the bus was closed")

    # -- what streams and followers are made of

    def subscribe(
        self, subject: str, handler: Handler | Gathered, denied: Callable[[str], None] | None = None
    ) -> bytes:
        """Have `handler` called for each message on `subject` from now on, over all connections; return the subscription's id.

        `denied` is called with the server's words if this process may not listen there.
        """
        sid = str(next(self._sids)).encode()
        self._subscriptions[sid] = (subject.encode(), handler)
        if denied is not None:
            self._denied[subject] = denied
        if self._wire is not None:
            self._wire.subscribe(sid, subject.encode(), handler)
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription; nothing happens if it has ended already."""
        subject, _ = self._subscriptions.pop(sid, (b"", None))
        self._denied.pop(subject.decode(), None)
        if self._wire is not None:
            self._wire.unsubscribe(sid)

    def new_inbox(self) -> str:
        """Return a reply subject that nobody else uses, to be subscribed to: delivered messages keep their own subject."""
        return f"{self.inbox}.s.{next(self._ids)}"

    def send(self, subject: bytes, body: bytes, reply: bytes = b"", headers: bytes = b"") -> bool:
        """Send without an answer; False if there is no connection (nothing is sent then, nor later)."""
        if self._wire is None:
            return False
        self._wire.publish(subject, body, reply, headers)
        return True

    def call(
        self, subject: str, body: bytes, headers: bytes, interpret: Interpret, *, publish: bool
    ) -> "asyncio.Future[object]":
        """Send now, in the order of the calls, and return the answer to come.

        `publish`: a silent bus raises PublishUnknownError, otherwise NoAnswerError.
        """
        answer: asyncio.Future[object] = self._loop.create_future()
        call = _Call(subject, answer, interpret, self._loop.time() + ANSWER_S, publish=publish)
        wire = self._wire
        if wire is None or wire.congested:
            call.fail(_silent(call, "there is no connection" if wire is None else "the connection is congested"))
        elif len(headers) + len(body) > wire.info.max_payload:
            limit = wire.info.max_payload
            reason = f"{subject}: message must have at most {limit} bytes, got {len(headers) + len(body)}"
            call.fail(PublishRefusedError(reason, reason="too_large"))
        else:
            reply = b"%b.%d" % (self.inbox.encode(), next(self._ids))
            self._calls[reply] = call
            wire.publish(subject.encode(), body, reply, headers)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(ANSWER_S, self._sweep)
        return answer

    async def ask(self, subject: str, body: bytes, interpret: Interpret) -> object:
        """Return the answer to a question that may be asked twice; it is asked again while the bus is silent, for up to 10 s.

        Raises:
            NoAnswerError: the bus said nothing.
            NotAllowedError: this process may not ask that.
        """
        try:
            async with asyncio.timeout(5 * ANSWER_S):
                for pause_s in itertools.chain(_RETRY_S, itertools.repeat(_RETRY_S[-1])):
                    try:
                        await self.wait_connected()
                        return await self.call(subject, body, b"", interpret, publish=False)
                    except NoAnswerError:
                        await asyncio.sleep(pause_s)
        except TimeoutError:
            pass
        raise NoAnswerError(f"{subject}: no answer within {5 * ANSWER_S:g} s: {self.error or 'the bus is silent'}")

    # -- the connection

    async def _keep_connected(self) -> None:
        failures = 0
        for attempt in itertools.count():
            try:
                wire = await self._open(self._servers[attempt % len(self._servers)])
            except (OSError, WireError, TimeoutError) as error:
                self.error = str(error) or type(error).__name__
                pause_s = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
                failures += 1
                await asyncio.sleep(pause_s * (0.5 + random_fraction()))
                continue
            failures = 0
            self._begin(wire)
            why = await self._watch(wire)
            self._wire = None
            wire.abort()
            self._fail_calls(f"the connection was lost: {why}")
            _LOG.warning("bus_lost", extra={"bus": self.name, "why": why})

    async def _open(self, server: "_Server") -> Wire:
        async with asyncio.timeout(_CONNECT_S):
            return await Wire.open(
                server.host,
                server.port,
                name=self.name,
                signer=self._signer,
                user=server.user,
                tls=server.tls,
                on_error=self._refused,
            )

    def _begin(self, wire: Wire) -> None:
        for sid, (subject, handler) in self._subscriptions.items():
            wire.subscribe(sid, subject, handler)
        self._wire = wire
        self.connections += 1
        self.error = ""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, wire: Wire) -> str:
        """Return once `wire` has ended, or the server has been silent for too long: why."""
        unanswered, heard = 0, wire.data_count
        while unanswered <= PINGS_UNANSWERED_MAX:
            try:
                async with asyncio.timeout(PING_S):
                    await wire.gone.wait()
                    return wire.error or "the server closed it"
            except TimeoutError:
                unanswered, heard = (0 if wire.data_count != heard else unanswered + 1), wire.data_count
                wire.beat()
        return "the server is silent"

    def _fail_calls(self, why: str) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(_silent(call, why))

    def _answered(self, subject: bytes, _reply: bytes, headers: bytes, body: bytes) -> None:
        call = self._calls.pop(subject, None)
        if call is not None and not call.answer.done():
            try:
                if headers.startswith(b"NATS/1.0 503"):
                    raise _silent(call, "nobody takes it")
                call.answer.set_result(call.interpret(headers, body))
            except BusError as error:
                call.answer.set_exception(error)

    def _sweep(self) -> None:
        """Fail the calls whose time is over: all wait equally long, so the oldest come first."""
        self._sweeper = None
        now = self._loop.time()
        overdue = []
        for reply, call in self._calls.items():
            if call.due > now:
                self._sweeper = self._loop.call_later(call.due - now, self._sweep)
                break
            overdue.append(reply)
        for reply in overdue:
            call = self._calls.pop(reply)
            call.fail(_silent(call, f"no answer within {ANSWER_S:g} s"))

    def _refused(self, text: str) -> None:
        """Give the server's refusal to the one who asked for it: it names the subject only."""
        self.error = text
        _LOG.warning("bus_refused", extra={"bus": self.name, "why": text})
        kind, _, rest = text.partition('"')
        subject = rest.partition('"')[0]
        if "Subscription" in kind:
            denied = self._denied.get(subject)
            if denied is not None:
                denied(text)
            return
        for reply, call in self._calls.items():
            if call.subject == subject:
                del self._calls[reply]
                error = PublishRefusedError(text, reason="not_allowed") if call.publish else NotAllowedError(text)
                call.fail(error)
                return


async def connect(
    url: str, credentials: Credentials | None, *, name: str, wait_s: float = 5.0, required: bool = True
) -> Bus:
    """Return the bus at `url` (of one server, or of several, comma-separated).

    `required`: without it a bus that cannot be reached yet is returned after `wait_s`, and goes on trying.

    Raises:
        BadConfigError: `url` is none.
        BusError: `required`, and there was no connection within `wait_s`.
    """
    bus = Bus(url, credentials, name=name)
    try:
        async with asyncio.timeout(wait_s):
            await bus.wait_connected()
    except TimeoutError:
        if required:
            await bus.close()
            raise BusError(f"bus {url}: must be reachable within {wait_s:g} s: {bus.error or 'no answer'}") from None
    return bus


class _Server(msgspec.Struct, frozen=True):
    host: str
    port: int
    user: tuple[str, str] | None
    tls: ssl.SSLContext | None


def _server(url: str) -> _Server:
    parts = urlsplit(url.strip() if "//" in url else f"nats://{url.strip()}")
    if parts.scheme not in {"nats", "tls"} or not parts.hostname:
        raise BadConfigError(f"bus url {url!r}: must be nats://host:port or tls://host:port")
    user = (parts.username, parts.password or "") if parts.username else None
    context = ssl.create_default_context() if parts.scheme == "tls" else None
    return _Server(parts.hostname, parts.port or 4222, user, context)


def _silent(call: _Call, why: str) -> BusError:
    return PublishUnknownError(f"{call.subject}: {why}") if call.publish else NoAnswerError(f"{call.subject}: {why}")

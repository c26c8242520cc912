"""What a node or gateway follows: core messages as they are published, and its durable consumer as repair.

Everything stays within the rights of account NODES: subscribe to its own subjects, pull from, reset and acknowledge on the
one durable consumer that carries its name. A message usually comes twice; the reader believes signatures and order keys.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Final

from adapters.headers import decode_headers
from adapters.nats.api import place_of, read_outcome, subject_text
from domain.errors import BusError, NoAnswerError, NotAllowedError
from domain.ports import StoredMessage

if TYPE_CHECKING:
    from adapters.nats.connection import Bus

EXPIRES_S: Final = 5.0
SILENCE_S: Final = EXPIRES_S + 2.0
PER_PULL: Final = 256
WAITING_MAX: Final = 10_000
"""Core messages that wait for the reader; more are dropped: the durable brings them."""
_PAUSE_S: Final = 0.25


class NatsFollower:
    """Messages addressed to one node or gateway (domain.ports.Follower); `messages` may be iterated once."""

    def __init__(
        self, bus: "Bus", stream_name: str, subjects: Sequence[str], durable: str | None, *, from_start: bool
    ) -> None:
        self.caught_up = asyncio.Event()
        """Set once the durable consumer has nothing more that was not handed out."""
        self.started = asyncio.Event()
        """Set once the subscriptions are on their way to the server."""
        self._bus, self._stream, self._subjects, self._durable = bus, stream_name, subjects, durable
        self._from_start = from_start
        self._ready: deque[tuple[StoredMessage, bytes]] = deque()
        self._core_waiting = 0
        self._wake = asyncio.Event()
        self._inbox = b""
        self._sid = b""
        self._credit = 0
        self._drained = False
        self._heard_s = 0.0
        self._refusal = ""
        self._pulled: asyncio.Event | None = None

    async def messages(self) -> AsyncGenerator[StoredMessage, None]:
        """Yield messages as they come, for ever; one of the durable is acknowledged when the next one is asked for.

        Raises:
            NotAllowedError: the bus does not let this process follow that.
        """
        sids = [self._bus.subscribe(subject, self._hear, self._denied) for subject in self._subjects]
        self.started.set()
        puller = asyncio.create_task(self._pull_for_ever(), name=f"follow {self._stream}") if self._durable else None
        try:
            while True:
                while self._ready:
                    message, acknowledge = self._ready.popleft()
                    self._core_waiting -= not message.seq
                    yield message
                    if acknowledge:
                        self._bus.send(acknowledge, b"+ACK")
                if self._drained:
                    self.caught_up.set()
                self._check(puller)
                self._wake.clear()
                await self._wake.wait()
        finally:
            for sid in sids:
                self._bus.unsubscribe(sid)
            if puller is not None:
                puller.cancel()
            self._bus.unsubscribe(self._sid)

    def _check(self, puller: "asyncio.Task[None] | None") -> None:
        if self._refusal:
            raise NotAllowedError(self._refusal)
        if puller is not None and puller.done() and (error := puller.exception()):
            raise error

    def _hear(self, subject: bytes, _reply: bytes, headers: bytes, body: bytes) -> None:
        if self._core_waiting >= WAITING_MAX:
            return
        self._core_waiting += 1
        self._ready.append((StoredMessage(0, 0, subject_text(subject), headers, body), b""))
        self._wake.set()

    def _denied(self, text: str) -> None:
        self._refusal = text
        self._wake.set()

    async def _pull_for_ever(self) -> None:
        try:
            while True:
                await self._bus.wait_connected()
                try:
                    await self._begin()
                    await self._pull_on_one_connection()
                except NoAnswerError:
                    await asyncio.sleep(_PAUSE_S)
        except BusError:
            self._wake.set()
            raise

    async def _begin(self) -> None:
        self._bus.unsubscribe(self._sid)
        inbox = self._bus.new_inbox()
        self._inbox, self._sid = inbox.encode(), self._bus.subscribe(inbox, self._take)
        self._credit = 0
        # what went to a connection that died stays out for 30 s, unless the consumer begins again after what was acknowledged
        request = b'{"seq":1}' if self._from_start else b"{}"
        await self._bus.ask(f"$JS.API.CONSUMER.RESET.{self._stream}.{self._durable}", request, read_outcome)
        self._from_start = False

    async def _pull_on_one_connection(self) -> None:
        """Return when the connection has changed or the consumer has been silent for too long."""
        loop = asyncio.get_running_loop()
        connection, self._heard_s = self._bus.connections, loop.time()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}".encode()
        request = b'{"batch":%d,"expires":%d}' % (PER_PULL, int(EXPIRES_S * 1e9))
        pulled = asyncio.Event()
        while self._bus.connected and connection == self._bus.connections and loop.time() - self._heard_s < SILENCE_S:
            if self._credit <= 0 and len(self._ready) <= WAITING_MAX:
                self._bus.send(subject, request, self._inbox)
                self._credit = PER_PULL
            pulled.clear()
            self._pulled = pulled
            try:
                async with asyncio.timeout(1.0):
                    await pulled.wait()
            except TimeoutError:
                continue

    def _take(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if reply.startswith(b"$JS.ACK."):
            seq, stamp_ns, pending = place_of(reply)
            self._credit -= 1
            self._drained = pending == 0
            self._ready.append((StoredMessage(seq, stamp_ns, subject_text(subject), headers, body), reply))
        else:
            self._note_status(headers)
        if self._credit <= 0 and self._pulled is not None:
            self._pulled.set()
        self._wake.set()

    def _note_status(self, headers: bytes) -> None:
        status = headers[9:12]
        if status in {b"404", b"408"}:
            left = int(decode_headers(headers).get("Nats-Pending-Messages", "0"))
            # nothing came although all was asked for: the durable has nothing that is not out
            self._drained = self._drained or left == PER_PULL
            self._credit = 0
        elif status != b"100":
            self._credit = 0
            self._heard_s = float("-inf")  # the consumer or its leader is gone: look again

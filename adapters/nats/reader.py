"""Reads a stream in order through consumers that are made anew whenever anything is odd.

The consumer is disposable (ephemeral, in memory, no acknowledgements): the reader alone knows where it is, by stream
sequence. A gap, a new connection, a status that ends the consumer, or silence: make another after the last message taken.
"""

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from adapters.clock import random_token
from adapters.headers import decode_headers
from adapters.nats.api import StreamMissingError, place_of, read_outcome, subject_text
from adapters.nats.wire import Gathered, Message
from domain.errors import HistoryGapError, NoAnswerError
from domain.ports import Bounds, StoredMessage

if TYPE_CHECKING:
    from adapters.nats.connection import Bus

EXPIRES_S: Final = 1.0
"""A pull that found nothing ends with a status after this long: the server's sign of life."""
SILENCE_S: Final = 2.5
MISSING_S: Final = 10.0
"""How long a stream may seem not to exist (a server that starts) before that is believed."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_MIN, _BATCH_FIRST, _BATCH_MAX = 8, 256, 8192
_INACTIVE_NS: Final = 30_000_000_000
_PAUSE_S: Final = 0.1
_SUBJECTS_KEPT: Final = 65_536


class _Source(Protocol):
    name: str

    async def get(self, seq: int) -> StoredMessage | None: ...
    async def bounds(self) -> Bounds: ...


class Reader:
    """Reads (after, until] of one stream, or for ever; `given` is the last sequence handed out."""

    def __init__(self, bus: "Bus", stream: _Source, after: int, until: int | None) -> None:
        self.given = after
        self._bus, self._stream, self._until = bus, stream, until
        self._taken = after
        self._last: StoredMessage | None = None
        """The newest message taken: what the stream must still hold at its place."""
        self._created_ns = 0
        """When the stream was made that is being read; 0 before it was looked at."""
        self._buffer: list[StoredMessage] = []
        self._wake = asyncio.Event()
        self._inbox = b""
        self._sid = b""
        self._consumer = ""
        self._connection = 0
        self._credit = 0
        self._per_pull = _BATCH_FIRST
        self._broken = True
        self._gap = False
        self._empty = False
        """The server has found nothing to deliver since the newest message was taken."""
        self._fruitless = 0
        self._prefix = b""
        """Of the reply subjects of what this consumer delivers, in a server without domains."""
        self._subjects: dict[bytes, str] = {}

    async def batch(self) -> list[StoredMessage]:
        """Return the messages that have come since, at least one.

        Raises:
            HistoryGapError: the next message is gone, or what was read is no longer what the stream holds.
        """
        silent_s = 0.0
        while not self._buffer:
            self._wake.clear()
            if silent_s >= SILENCE_S or (self._until is not None and self._empty and await self._is_behind()):
                # a message at the end may be gone: nothing newer will show it
                self._broken = self._gap = True
            if self._broken or self._connection != self._bus.connections:
                await self._begin()
                silent_s = 0.0
            self._pull()
            try:
                async with asyncio.timeout(EXPIRES_S / 2):
                    await self._wake.wait()
                silent_s = 0.0
            except TimeoutError:
                silent_s += EXPIRES_S / 2
        batch, self._buffer = self._buffer, []
        self.given = batch[-1].seq
        self._fruitless = 0
        size = sum(len(message.body) + len(message.headers) for message in batch) // len(batch) + 1
        self._per_pull = max(_BATCH_MIN, min(_BATCH_MAX, _BATCH_BYTES // size))
        if not self._broken:
            self._pull()
        return batch

    async def _is_behind(self) -> bool:
        """Tell whether the stream is said to go on behind what was taken, although the server found nothing to deliver."""
        self._empty = False
        try:
            return (await self._stream.bounds()).last > self._taken
        except (NoAnswerError, StreamMissingError):
            return True  # whoever begins anew finds out

    def close(self) -> None:
        """Give the consumer back; the server forgets it by itself where that gets lost."""
        self._bus.unsubscribe(self._sid)
        if self._consumer:
            self._bus.send(f"$JS.API.CONSUMER.DELETE.{self._stream.name}.{self._consumer}".encode(), b"")
        self._consumer = ""

    def _pull(self) -> None:
        """Ask for more when half of what was asked for has come; what waits in the buffer bounds it."""
        if self._credit > self._per_pull // 2:
            return
        count = self._per_pull
        if self._until is not None:
            count = min(count, self._until - self._taken - self._credit)
        if count <= 0:
            return
        request = b'{"batch":%d,"expires":%d}' % (count, int(EXPIRES_S * 1e9))
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream.name}.{self._consumer}".encode()
        if self._bus.send(subject, request, self._inbox):
            self._credit += count

    def _take(self, messages: list[Message]) -> None:
        """Take what came at once, as far as it is what comes next."""
        taken, broken, add, subjects = self._taken, self._broken, self._buffer.append, self._subjects
        last, delivered = self._last, 0
        prefix = self._prefix
        for subject, reply, headers, body in messages:
            if reply.startswith(prefix):  # see place_of; all five tokens that follow are numbers
                _, seq_said, _, stamp_said, _ = reply.rsplit(b".", 4)
                seq, stamp_ns = int(seq_said), int(stamp_said)
            elif reply.startswith(b"$JS.ACK."):
                seq, stamp_ns, _ = place_of(reply)
            else:
                self._taken, self._last, self._broken = taken, last, broken
                self._credit -= delivered
                self._note_status(headers)
                broken, delivered = self._broken, 0
                continue
            delivered += 1
            if seq == taken + 1 and not broken:
                taken = seq
                last = StoredMessage(seq, stamp_ns, subjects.get(subject) or self._name(subject), headers, body)
                add(last)
                self._empty = False
            elif seq > taken:
                broken = self._gap = True
        self._taken, self._last, self._broken = taken, last, broken
        self._credit -= delivered
        self._wake.set()

    def _name(self, subject: bytes) -> str:
        """Return a subject as text; a stream has few, and each comes many times."""
        if len(self._subjects) >= _SUBJECTS_KEPT:
            self._subjects.clear()
        name = self._subjects[subject] = subject_text(subject)
        return name

    def _note_status(self, headers: bytes) -> None:
        status = headers[9:12]
        if status in {b"404", b"408"} or b"MaxBytes" in headers or b"Batch Completed" in headers:
            self._empty = status in {b"404", b"408"}
            self._credit -= int(decode_headers(headers).get("Nats-Pending-Messages", self._credit))
        elif status != b"100":  # the consumer or its leader is gone
            self._broken = True

    async def _begin(self) -> None:
        """Make a consumer that starts after the last message taken."""
        self.close()
        if self._fruitless:
            await asyncio.sleep(min(self._fruitless * _PAUSE_S / 4, 1.0))
        self._fruitless += 1
        loop = asyncio.get_running_loop()
        give_up = loop.time() + MISSING_S
        while True:
            await self._bus.wait_connected()
            try:
                await self._check_history()
                await self._create()
            except (NoAnswerError, StreamMissingError) as error:
                if isinstance(error, StreamMissingError) and loop.time() > give_up:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _check_history(self) -> None:
        bounds = await self._stream.bounds()
        name, following = self._stream.name, self._taken + 1
        if bounds.last < self._taken:
            raise HistoryGapError(name, f"must reach sequence {self._taken}, which was read, but ends at {bounds.last}")
        if self._last is not None and not await self._still_holds(self._last):
            raise HistoryGapError(name, f"message {self._taken} must be the one that was read, another is there now")
        if self._created_ns not in {0, bounds.created_ns}:
            # it may have come further since, and nothing may have been read yet
            raise HistoryGapError(name, "must be the stream that was read, but was made anew")
        self._created_ns = bounds.created_ns
        if bounds.first > following:
            raise HistoryGapError(name, f"message {following} must be there, but the first one is {bounds.first}")
        if self._gap and bounds.last >= following and await self._stream.get(following) is None:
            raise HistoryGapError(name, f"message {following} must be there, it is not")

    async def _still_holds(self, read: StoredMessage) -> bool:
        """Tell whether the stream holds `read` at its place, or has dropped it for its age.

        A server that acknowledges before it writes, and is killed in between, gives the place to another message.
        """
        stored = await self._stream.get(read.seq)
        return stored is None or (stored.stamp_ns, stored.body) == (read.stamp_ns, read.body)

    async def _create(self) -> None:
        self._connection = self._bus.connections
        self._consumer = f"r{random_token(8)}"
        self._prefix = f"$JS.ACK.{self._stream.name}.{self._consumer}.".encode()
        inbox = self._bus.new_inbox()
        self._inbox, self._sid = inbox.encode(), self._bus.subscribe(inbox, Gathered(self._take))
        self._credit, self._broken, self._gap, self._empty = 0, False, False, False
        config = {
            "name": self._consumer,
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._taken + 1,
            "replay_policy": "instant",
            "inactive_threshold": _INACTIVE_NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        body = msgspec.json.encode({"stream_name": self._stream.name, "config": config})
        subject = f"$JS.API.CONSUMER.CREATE.{self._stream.name}.{self._consumer}"
        await self._bus.ask(subject, body, read_outcome)

"""A stream in this process' memory: the same promises as the real one, and faults on demand.

For tests, the simulator and the demo. It passes the same contract suite as the real server (tests/contract).
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Final

from adapters.headers import encode_headers
from adapters.memory import faults as fault
from adapters.memory.faults import Faults
from domain.errors import HistoryGapError, PublishRefusedError, PublishUnknownError, WrongLastSequenceError
from domain.ports import Bounds, Clock, Stored, StoredMessage

DEDUP_WINDOW_US: Final = 120_000_000


class MemoryStream:
    """One append-only stream with one total order (domain.ports.Stream), in memory.

    Args:
        name: as of the real stream.
        clock: stamps the messages.
        batch_max: most messages that `read` yields at once.
        message_bytes_max: a larger body is refused.
        duplicate_first: a replicated server looks for a known message id before it checks the expected sequence,
            a single one after; both happen in practice.
        timeout_s: how long a publish to a paused stream waits for its answer.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        batch_max: int = 1000,
        message_bytes_max: int = 1024 * 1024,
        duplicate_first: bool = False,
        timeout_s: float = 2.0,
    ) -> None:
        self.name = name
        self.faults = Faults()
        self.batch_max = batch_max
        self._clock = clock
        self._message_bytes_max = message_bytes_max
        self._duplicate_first = duplicate_first
        self._timeout_s = timeout_s
        self._created_ns = clock.wall_us() * 1000
        self._messages: list[StoredMessage | None] = []
        self._first = 1
        self._ids: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._late: list[_Draft] = []
        self._frozen: list[tuple[_Draft, asyncio.Future[Stored]]] = []
        self._grown = asyncio.Event()

    def publish_soon(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Future[Stored]:
        """Start a publish now, in the order of the calls, and return its answer to come; errors are as of `publish`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Stored] = loop.create_future()
        draft = _Draft(
            subject,
            body,
            encode_headers(headers, message_id=message_id, expected_last=expected_last),
            message_id,
            expected_last,
        )
        if self.faults.paused:
            self._frozen.append((draft, answer))
            loop.call_later(
                self._timeout_s, partial(_fail, answer, PublishUnknownError(f"{self.name}: no answer: paused"))
            )
        else:
            self._answer(draft, answer)
        return answer

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        """Store `body` at the end (domain.ports.Stream.publish)."""
        return await self.publish_soon(
            subject, body, message_id=message_id, expected_last=expected_last, headers=headers
        )

    async def last(self) -> StoredMessage | None:
        """Return the newest message; None if the stream is empty."""
        return next((message for message in reversed(self._messages) if message is not None), None)

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`; None if it is not there."""
        return self._messages[seq - 1] if self._first <= seq <= len(self._messages) else None

    async def bounds(self) -> Bounds:
        """Return what the stream holds now."""
        return Bounds(
            first=self._first,
            last=len(self._messages),
            created_ns=self._created_ns,
            now_ns=self._clock.wall_us() * 1000,
        )

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches in order, without gaps (domain.ports.Stream.read)."""
        while until is None or after < until:
            grown = self._grown
            batch = [] if self.faults.paused else self._batch(after, until)
            if batch:
                after = batch[-1].seq
                yield batch
            else:
                await grown.wait()

    def deliver_late(self) -> int:
        """Store what `faults.late` kept back, as far as expectations still hold; return how many were stored."""
        late, self._late = self._late, []
        stored = 0
        for draft in late:
            try:
                stored += not self._store(draft).duplicate
            except WrongLastSequenceError:
                continue
        return stored

    def resume(self) -> None:
        """End a pause: what was published meanwhile is stored now, also where its publisher gave up waiting."""
        self.faults.paused = False
        frozen, self._frozen = self._frozen, []
        for draft, answer in frozen:
            self._answer(draft, answer)
        self._wake()

    def remove(self, seq: int) -> None:
        """Lose one message: readers meet a gap."""
        self._messages[seq - 1] = None

    def expire(self, before: int) -> None:
        """Drop the messages before sequence `before`, as an age limit does."""
        for seq in range(self._first, before):
            self._messages[seq - 1] = None
        self._first = max(self._first, before)

    def truncate(self, last: int) -> None:
        """Lose the tail after sequence `last`; new messages use its numbers again, as a damaged real stream does."""
        del self._messages[last:]
        for known in [key for key, (seq, _) in self._ids.items() if seq > last]:
            del self._ids[known]

    def replace(self, message: StoredMessage) -> None:
        """Alter a stored message in place."""
        self._messages[message.seq - 1] = message

    def _batch(self, after: int, until: int | None) -> list[StoredMessage]:
        if after > len(self._messages):
            raise HistoryGapError(self.name, f"must reach sequence {after}, but ends at {len(self._messages)}")
        end = min(after + self.batch_max, len(self._messages), len(self._messages) if until is None else until)
        batch: list[StoredMessage] = []
        for seq in range(after + 1, end + 1):
            message = self._messages[seq - 1]
            if message is None:
                if batch:  # what is whole is given first
                    break
                raise HistoryGapError(self.name, f"message {seq} must follow {after}, it is not there")
            batch.append(message)
        return batch

    def _answer(self, draft: "_Draft", answer: asyncio.Future[Stored]) -> None:
        what, detail = self.faults.take()
        try:
            if what == fault.REFUSE:
                raise PublishRefusedError(f"{self.name}: refused: {detail}", reason=detail)  # noqa: TRY301  # one place answers
            if len(draft.body) > self._message_bytes_max:
                raise PublishRefusedError(  # noqa: TRY301  # one place answers
                    f"{self.name}: body must have at most {self._message_bytes_max} bytes, got {len(draft.body)}",
                    reason="too_large",
                )
            if what == fault.LATE:
                self._late.append(draft)
            stored = None if what in {fault.LATE, fault.LOSE} else self._store(draft)
            if what == fault.TWICE:
                self._append(draft)
            if stored is None or what == fault.LOSE_ACK:
                raise PublishUnknownError(f"{self.name}: no answer")  # noqa: TRY301  # one place answers
        except (PublishRefusedError, PublishUnknownError, WrongLastSequenceError) as error:
            _fail(answer, error)
        else:
            if not answer.done():
                answer.set_result(stored)

    def _store(self, draft: "_Draft") -> Stored:
        known = self._known(draft.message_id)
        if known and (self._duplicate_first or draft.expected_last is None):
            return Stored(seq=known, duplicate=True)
        if draft.expected_last is not None and draft.expected_last != len(self._messages):
            raise WrongLastSequenceError(
                f"{self.name}: last sequence must be {draft.expected_last}, it is {len(self._messages)}"
            )
        if known:
            return Stored(seq=known, duplicate=True)
        return Stored(seq=self._append(draft))

    def _append(self, draft: "_Draft") -> int:
        stamp_ns = self._clock.wall_us() * 1000
        seq = len(self._messages) + 1
        self._messages.append(StoredMessage(seq, stamp_ns, draft.subject, draft.headers, draft.body))
        if draft.message_id:
            self._ids[draft.message_id] = (seq, stamp_ns)
        self._wake()
        return seq

    def _known(self, message_id: str) -> int:
        horizon_ns = (self._clock.wall_us() - DEDUP_WINDOW_US) * 1000
        while self._ids:
            oldest = next(iter(self._ids))
            if self._ids[oldest][1] >= horizon_ns:
                break
            del self._ids[oldest]
        return self._ids.get(message_id, (0, 0))[0] if message_id else 0

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


class _Draft:
    """A message on its way into the stream."""

    __slots__ = ("body", "expected_last", "headers", "message_id", "subject")

    def __init__(self, subject: str, body: bytes, headers: bytes, message_id: str, expected_last: int | None) -> None:
        self.subject, self.body, self.headers = subject, body, headers
        self.message_id, self.expected_last = message_id, expected_last


def _fail(answer: asyncio.Future[Stored], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)

"""One JetStream stream as the recorders see it: made, appended to with expectations, read in ranges.

Only subjects are asked that an operator's rights allow. No direct get: on a cluster its answers may be stale.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from eventsourcing.persistence import DataError, IntegrityError, OperationalError, ProgrammingError

from adapters.nats.eventsourcing.feed import Entry, Feed
from adapters.nats.eventsourcing.link import REQUEST_S, Incoming, NatsLink

EXPECTED_LAST: Final = "Nats-Expected-Last-Subject-Sequence"
BATCH_MAX: Final = 1000
"""Messages in one atomic batch: the server's limit."""
_EXISTS: Final = 10058
_NO_MESSAGE: Final = 10037
_CONFLICTS: Final = frozenset({10071, 10164})
"""Wrong last sequence; and: another message with the same expectation is on its way."""


class Outgoing(msgspec.Struct, frozen=True):
    """One message to store."""

    subject: str
    body: bytes
    headers: Mapping[str, str]


class _Refusal(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class _Found(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    hdrs: bytes = b""
    data: bytes = b""


class _Answer(msgspec.Struct, frozen=True):
    seq: int = 0
    error: _Refusal | None = None
    message: _Found | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class EventStream:
    """One stream over one link. Its coroutines run on the link's loop."""

    def __init__(self, link: NatsLink, name: str) -> None:
        self.link, self.name = link, name

    async def create(self, subjects: Sequence[str], *, replicas: int, storage: str) -> None:
        """Make the stream. One that is there already, made otherwise, stays as its operator wanted it."""
        wanted = {
            "name": self.name,
            "subjects": list(subjects),
            "retention": "limits",
            "discard": "new",
            "storage": storage,
            "num_replicas": replicas,
            "max_msgs": -1,
            "allow_atomic": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }
        await self._ask(f"$JS.API.STREAM.CREATE.{self.name}", wanted, tolerated=_EXISTS)

    async def append(self, messages: Sequence[Outgoing]) -> int:
        """Store all of `messages` with none of others between, or nothing; return the last one's sequence.

        Raises:
            IntegrityError: an expectation in their headers does not hold.
            OperationalError: no answer in time: they are stored, or not, or will be.
            ProgrammingError: they are more than `BATCH_MAX`.
            DataError: one of them is larger than the server takes.
        """
        if len(messages) > BATCH_MAX:
            raise ProgrammingError(f"stream {self.name}: at most {BATCH_MAX} events at once, got {len(messages)}")
        for message in messages:
            self._require_fits(message)
        *before, last = messages
        headers = dict(last.headers)
        if before:
            batch = self.link.unique()
            for number, message in enumerate(before, 1):
                await self.link.publish(message.subject, message.body, headers=_in_batch(message, batch, number))
            headers = {**_in_batch(last, batch, len(messages)), "Nats-Batch-Commit": "1"}
        return self._checked(await self.link.request(last.subject, last.body, headers=headers)).seq

    def _require_fits(self, message: Outgoing) -> None:
        headers_bytes = sum(len(name) + len(value) + 4 for name, value in message.headers.items()) + 256
        if len(message.body) + headers_bytes > self.link.max_payload_bytes:
            raise DataError(
                f"{message.subject}: an event must fit {self.link.max_payload_bytes} bytes with its headers, "
                f"this one has {len(message.body)} without"
            )

    async def last(self, subject: str) -> Entry | None:
        """Return the newest message of `subject` (wildcards allowed) from the stream's leader; None if there is none."""
        question = {"last_by_subj": subject}
        answer = await self._ask(f"$JS.API.STREAM.MSG.GET.{self.name}", question, tolerated=_NO_MESSAGE)
        found = answer.message
        return None if found is None else Entry(found.seq, found.subject, _parse_headers(found.hdrs), found.data)

    async def read(self, subject: str, *, start: int, stop: int) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield batches of the messages of `subject` from sequence `start` to `stop`; there is one at `stop` or later.

        Raises:
            OperationalError: the next one did not come in time.
        """
        if start > stop:
            return
        async with self.follow(subject, start=start) as feed:
            while True:
                try:
                    async with asyncio.timeout(REQUEST_S):
                        entries = await feed.pull()
                except TimeoutError:
                    raise OperationalError(f"stream {self.name}: no message within {REQUEST_S:g} s") from None
                yield [entry for entry in entries if entry.seq <= stop]
                if entries[-1].seq >= stop:
                    return

    @asynccontextmanager
    async def follow(self, subject: str, *, start: int) -> AsyncIterator[Feed]:
        """Yield the feed of the messages of `subject` from sequence `start` on."""
        feed = Feed(self.link, self.name, subject, start)
        async with self.link.listening(feed.take) as inbox:
            feed.inbox = inbox
            try:
                yield feed
            finally:
                await feed.drop_consumer()

    async def _ask(self, subject: str, question: Mapping[str, Any], *, tolerated: int) -> _Answer:
        return self._checked(await self.link.request(subject, msgspec.json.encode(question)), tolerated)

    def _checked(self, message: Incoming, tolerated: int = 0) -> _Answer:
        """Return what the server answered unless it refused; the refusal with code `tolerated` is an answer too."""
        answer = _ANSWER.decode(message.body)
        if answer.error is None or answer.error.err_code == tolerated:
            return answer
        said = f"stream {self.name}: {answer.error.description} ({answer.error.err_code})"
        raise IntegrityError(said) if answer.error.err_code in _CONFLICTS else OperationalError(said)


def _in_batch(message: Outgoing, batch: str, number: int) -> dict[str, str]:
    return {**message.headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}


def _parse_headers(block: bytes) -> dict[str, str]:
    """Return the fields of a raw header block."""
    lines = block.decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines if ": " in line)

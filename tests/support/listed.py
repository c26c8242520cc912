"""Stored messages as a stream that takes nothing: for tests that begin with a history that is there already."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from adapters.log.history import Streams
from domain.errors import HistoryGapError, PublishRefusedError
from domain.events.commit import Commit, encode_commit
from domain.ports import Bounds, Stored, StoredMessage
from tests.support.history import Recorder


class ListedStream:
    """The messages of a list (domain.ports.Stream); a piece of its beginning may be gone."""

    def __init__(self, name: str, messages: Sequence[StoredMessage], *, batch: int = 50) -> None:
        self.name, self.batch = name, batch
        self._messages = {message.seq: message for message in messages}

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        del subject, body, message_id, expected_last, headers
        raise PublishRefusedError(f"{self.name}: takes no messages")

    async def last(self) -> StoredMessage | None:
        return self._messages[max(self._messages)] if self._messages else None

    async def get(self, seq: int) -> StoredMessage | None:
        return self._messages.get(seq)

    async def bounds(self) -> Bounds:
        return Bounds(min(self._messages, default=1), max(self._messages, default=0), 0)

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        end = max(self._messages, default=0) if until is None else until
        for at in range(after + 1, end + 1, self.batch):
            span = range(at, min(at + self.batch, end + 1))
            missing = next((seq for seq in span if seq not in self._messages), None)
            if missing is not None:
                raise HistoryGapError(self.name, f"message {missing} is not there")
            yield [self._messages[seq] for seq in span]
        if until is None:
            await asyncio.Event().wait()  # nothing more ever comes


def stamp_ns(recorder: Recorder, made: Commit) -> int:
    """Return a stamp for a commit: just after its newest input."""
    return recorder.facts[made.hi - 1].stamp_ns + 1 if made.hi else recorder.control[made.chi - 1].stamp_ns + 1


def ledger_of(recorder: Recorder, commits: Sequence[Commit]) -> list[StoredMessage]:
    """Return commits as LW_LEDGER holds them."""
    return [
        StoredMessage(made.version, stamp_ns(recorder, made), "lw.test.ledger", b"", encode_commit(made))
        for made in commits
    ]


def stored(recorder: Recorder, commits: Sequence[Commit]) -> Streams:
    """Return a recorded history as streams."""
    return Streams(
        ListedStream("LW_EVENTS", recorder.facts),
        ListedStream("LW_CONTROL", recorder.control),
        ListedStream("LW_LEDGER", ledger_of(recorder, commits)),
    )


def with_other_tag(body: bytes) -> bytes:
    """Return a stored body whose authentication tag is another one: a forged fact."""
    digit = b"0" if body[-3:-2] != b"0" else b"1"
    return body[:-3] + digit + body[-2:]

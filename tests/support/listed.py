"""Stored messages as a stream that takes nothing: for tests that begin with a history that is there already."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from domain.errors import HistoryGapError
from domain.events.commit import Commit, encode_commit
from domain.ports import StoredMessage
from tests.support.history import Recorder


class ListedStream(CopiedStream):
    """The messages of a list, in small batches and without an end, as a live stream has none; a piece of it may be gone."""

    def __init__(self, name: str, messages: Sequence[StoredMessage], *, batch: int = 50) -> None:
        super().__init__(name, list(messages))
        self.batch = batch

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

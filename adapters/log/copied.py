"""A stream that takes nothing: the messages of a copy, read piece by piece so that a large history needs no more memory."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import msgspec

from adapters.log.read_only import ReadOnly
from domain.errors import HistoryGapError
from domain.ports import Bounds, StoredMessage, Stream

_BATCH: Final = 1000
_KEPT: Final = 8
"""Pieces kept in memory; a reader goes forward, and a bisection jumps about in few of them."""


class Piece(msgspec.Struct, frozen=True):
    """A run of messages that is read at once."""

    first: int
    """The least sequence in it; pieces are in order."""
    load: Callable[[], Sequence[StoredMessage]]


class PiecedStream(ReadOnly):
    """Pieces as a stream (domain.ports.Stream)."""

    def __init__(self, name: str, pieces: Sequence[Piece], bounds: Bounds) -> None:
        self.name = name
        self._pieces, self._bounds = sorted(pieces, key=lambda piece: piece.first), bounds
        self._firsts = [piece.first for piece in self._pieces]
        self._kept: OrderedDict[int, dict[int, StoredMessage]] = OrderedDict()

    async def last(self) -> StoredMessage | None:
        """Return the newest message; None if there is none."""
        for at in range(len(self._pieces) - 1, -1, -1):
            held = self._messages(at)
            if held:
                return held[max(held)]
        return None

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, or None."""
        at = bisect_right(self._firsts, seq) - 1
        return self._messages(at).get(seq) if at >= 0 else None

    async def bounds(self) -> Bounds:
        """Return what the copy holds."""
        return self._bounds

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches from `after` + 1 to `until` or the end.

        Raises:
            HistoryGapError: a message in between is not in the copy.
        """
        end = self._bounds.last if until is None else until
        following = after + 1
        for at in range(max(0, bisect_right(self._firsts, following) - 1), len(self._pieces)):
            held = self._messages(at)
            batch: list[StoredMessage] = []
            while following <= end and (message := held.get(following)) is not None:
                batch.append(message)
                following += 1
            if batch:
                yield batch
            if following > end:
                return
        if following <= end:
            raise HistoryGapError(self.name, f"message {following} is not there")

    def _messages(self, at: int) -> dict[int, StoredMessage]:
        held = self._kept.get(at)
        if held is None:
            held = self._kept[at] = {message.seq: message for message in self._pieces[at].load()}
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return held


class CopiedStream(ReadOnly):
    """Messages in memory as a stream (domain.ports.Stream) that takes nothing."""

    def __init__(self, name: str, messages: list[StoredMessage]) -> None:
        self.name = name
        self._messages = {message.seq: message for message in messages}

    async def last(self) -> StoredMessage | None:
        """Return the newest message; None if there is none."""
        return self._messages[max(self._messages)] if self._messages else None

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, or None."""
        return self._messages.get(seq)

    async def bounds(self) -> Bounds:
        """Return what the copy holds."""
        return Bounds(min(self._messages, default=1), max(self._messages, default=0), 0)

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches from `after` + 1 to `until` or the end.

        Raises:
            HistoryGapError: a message in between is not in the copy.
        """
        end = max(self._messages, default=0) if until is None else until
        for at in range(after + 1, end + 1, _BATCH):
            span = range(at, min(at + _BATCH, end + 1))
            missing = next((seq for seq in span if seq not in self._messages), span.stop)
            if missing > at:
                yield [self._messages[seq] for seq in range(at, missing)]
            if missing < span.stop:
                raise HistoryGapError(self.name, f"message {missing} is not there")


def _are_streams(copy: CopiedStream, pieced: PiecedStream) -> tuple[Stream, Stream]:
    return copy, pieced  # the type checker's proof that both are a Stream

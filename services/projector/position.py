"""Where to go on reading a stream, found from the tables and from the stream itself.

A stream may have been made anew, or have lost its tail (a power cut on a bus with relaxed durability): then its sequences name
other messages than the tables hold. Each such life of a stream is an epoch of its own in the tables.
"""

import logging
from typing import Final

import msgspec

from adapters.clickhouse.notes import Note, Notes
from adapters.clickhouse.sink import Sink
from domain.ports import Bounds, Clock, Stream
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
_HOLE_MAX: Final = 10_000
"""A hole in the middle of a stream longer than this is looked for no further: somebody works on the stream."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Everything up to `after` of this life of the stream is in the tables, or is known to be gone."""

    epoch: int
    after: int
    created_ns: int


class Finder:
    """Finds positions, and notes what they mean."""

    def __init__(self, notes: Notes, sink: Sink, clock: Clock) -> None:
        self._notes, self._sink, self._clock = notes, sink, clock
        self.gone = 0
        """Messages that were gone when they were to be read."""

    async def find(self, stream: Stream) -> Position:
        """Return where to go on.

        Raises:
            BusError: the stream cannot be asked.
            StoreError: the tables cannot.
        """
        bounds = await stream.bounds()
        note = await in_thread(self._notes.newest, stream.name)
        if note is None:  # nothing was ever read, or somebody has taken the notes away: then the rows still tell
            epoch = await in_thread(self._notes.held, stream.name) or 1
            note = Note(stream=stream.name, epoch=epoch, created_ns=bounds.created_ns, last_seq=0)
            position = await self._go_on(stream, note, bounds)
            await self.note(stream.name, position)
        elif note.created_ns != bounds.created_ns:
            position = await self._begin_epoch(stream.name, note.epoch + 1, 0, bounds)
        else:
            position = await self._go_on(stream, note, bounds)
        await in_thread(self._sink.reached, stream.name, position.epoch, noted=position.after)
        return await self._past_what_is_gone(stream, position, bounds)

    async def note(self, stream: str, position: Position) -> None:
        """Keep `position` beside the rows: it outlives them."""
        note = Note(stream=stream, epoch=position.epoch, created_ns=position.created_ns, last_seq=position.after)
        await in_thread(self._notes.write, note, now_ns=self._clock.wall_us() * 1000)

    async def _go_on(self, stream: Stream, note: Note, bounds: Bounds) -> Position:
        reached = await in_thread(self._sink.reached, stream.name, note.epoch, noted=note.last_seq)
        after = max(note.last_seq, reached)
        kept = await self._common(stream, note.epoch, after, bounds)
        if kept < after:
            return await self._begin_epoch(stream.name, note.epoch + 1, kept, bounds)
        return Position(epoch=note.epoch, after=after, created_ns=note.created_ns)

    async def _begin_epoch(self, stream: str, epoch: int, after: int, bounds: Bounds) -> Position:
        position = Position(epoch=epoch, after=after, created_ns=bounds.created_ns)
        _LOG.warning("stream_begins_epoch", extra={"stream": stream, "epoch": epoch, "after": after})
        await self.note(stream, position)
        return position

    async def _common(self, stream: Stream, epoch: int, after: int, bounds: Bounds) -> int:
        """Return the highest sequence up to which the stream is still what the tables hold: `after` if nothing was lost."""
        if after == 0 or (after <= bounds.last and await self._is_same(stream, epoch, after)):
            return after
        low, high = min(bounds.first - 1, after, bounds.last), min(after, bounds.last)
        while low < high:
            middle = (low + high + 1) // 2
            if await self._is_same(stream, epoch, middle):
                low = middle
            else:
                high = middle - 1
        return low

    async def _is_same(self, stream: Stream, epoch: int, seq: int) -> bool:
        """Tell whether message `seq` is the one in the tables, as far as both still have it."""
        held = await in_thread(self._notes.stamp_of, stream.name, epoch, seq)
        message = await stream.get(seq) if held is not None else None
        return held is None or message is None or message.stamp_ns == held

    async def _past_what_is_gone(self, stream: Stream, position: Position, bounds: Bounds) -> Position:
        """Return the position before the next message that is there, after noting what is not."""
        following = position.after + 1
        if bounds.first > following:
            there = bounds.first
        elif bounds.last >= following and await stream.get(following) is None:
            there = await _next_message(stream, following, bounds.last)
        else:
            return position
        lost = {"stream": stream.name, "first": following, "last": there - 1}
        _LOG.error("messages_gone", extra=lost)
        now_ns = self._clock.wall_us() * 1000
        await in_thread(self._notes.add_gap, stream.name, position.epoch, following, there - 1, now_ns=now_ns)
        position = msgspec.structs.replace(position, after=there - 1)
        await self.note(stream.name, position)
        self.gone += there - following
        return position


async def _next_message(stream: Stream, gone: int, last: int) -> int:
    """Return the sequence of the first message after `gone`, or of the one that is still to come."""
    for seq in range(gone + 1, min(last, gone + _HOLE_MAX) + 1):
        if await stream.get(seq) is not None:
            return seq
    return min(last, gone + _HOLE_MAX) + 1

"""What a bus of relaxed durability may lose with a power cut: the newest facts, and nothing before one that is still there."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from adapters.log.renewal import end_of_hole
from domain.errors import HistoryGapError
from domain.ports import StoredMessage, Stream


async def first_lost(stream: Stream, after: int, until: int, seen_ns: int) -> int:
    """Return from which sequence on messages (after, until] are gone, or others took their places since; 0 if none is gone.

    `seen_ns`: a moment (nanoseconds since the epoch, by the server's clock) at which all of them stood there.

    Raises:
        HistoryGapError: one is gone before another that is still there: that is no end that was lost.
    """
    lost, following = 0, after + 1
    last = min(until, (await stream.bounds()).last)
    async for message in standing(stream, after, last):
        if message.seq > following or message.stamp_ns > seen_ns:
            lost = lost or following
        if lost and message.stamp_ns <= seen_ns:
            raise HistoryGapError(
                stream.name,
                f"message {lost} is gone, though message {message.seq} behind it is still there: "
                f"no power cut takes that, the newest facts alone may be lost",
            )
        following = message.seq + 1
    return lost or (following if following <= until else 0)


async def standing(stream: Stream, after: int, until: int) -> AsyncGenerator[StoredMessage, None]:
    """Yield what is there of messages (after, until]; holes are passed over."""
    while after < until:
        read = cast("AsyncGenerator[Sequence[StoredMessage], None]", stream.read(after=after, until=until))
        try:
            async with aclosing(read):
                async for batch in read:
                    for message in batch:
                        after = message.seq
                        yield message
        except HistoryGapError:
            after = await end_of_hole(stream, after + 1, until) - 1

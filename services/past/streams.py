"""Stored messages from the streams themselves: found by bisection over their stamps, then read one after the other."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

from adapters.log.history import Streams
from adapters.log.travel import last_until
from domain.errors import HistoryGapError
from domain.events.codec import encode
from domain.ports import StoredMessage, Stream
from domain.subjects import EVENTS, LEDGER, event_of, speaker
from services.past.source import Found, Kept, Last, Sought, Span

SCANNED_MAX: Final = 1_000_000
"""Messages that are looked at for one question."""
LOOKED_BACK: Final = 3_000
"""Newest commits that are looked at for a plan."""
GRACE_NS: Final = 3_000_000_000
"""What is said of a thing after its end, by others, comes within this time."""


class StreamsPast:
    """Asks the streams (services.past.source.Past)."""

    name = "NATS"

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def kept(self, stream: str) -> Kept:
        """Return how far back a stream reaches."""
        asked = {EVENTS: self._streams.events, LEDGER: self._streams.ledger}.get(stream, self._streams.control)
        bounds = await asked.bounds()
        oldest = await asked.get(bounds.first) if bounds.first <= bounds.last else None
        return Kept(first=bounds.first, last=bounds.last, first_ns=oldest.stamp_ns if oldest is not None else 0)

    async def span(self, column: str, value: str, guess: Span) -> Span | None:
        """Return `guess`: a stream has no index."""
        del column, value
        return guess

    async def facts(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_EVENTS."""
        return await _scan(self._streams.events, sought, last)

    async def commits(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_LEDGER."""
        return await _scan(self._streams.ledger, sought, last)

    async def commit(self, version: int) -> StoredMessage | None:
        """Return one commit; None if it is not kept."""
        return await self._streams.ledger.get(version) if version > 0 else None

    async def last_planned(self, node: str, model: str) -> StoredMessage | None:
        """Return the newest commit that planned an owner's queue, if it is among the last LOOKED_BACK."""
        ledger = self._streams.ledger
        bounds = await ledger.bounds()
        needles = (b'"plan.planned"', f'"owner":"{node}"'.encode(), encode(model))
        newest = None
        if bounds.first <= bounds.last:
            async for batch in ledger.read(after=max(bounds.first - 1, bounds.last - LOOKED_BACK), until=bounds.last):
                newest = next((each for each in reversed(batch) if all(one in each.body for one in needles)), newest)
        return newest


async def _scan(stream: Stream, sought: Sought, last: Last | None) -> Found:
    bounds = await stream.bounds()
    after = max(bounds.first - 1, await last_until(stream, sought.since_ns - 1) if sought.since_ns else 0)
    found = Found()
    if bounds.last <= after:
        return found
    until = min(bounds.last, after + SCANNED_MAX)
    stop_ns = sought.until_ns
    needles = tuple(needle.encode() for needle in sought.needles)
    try:
        batches = cast("AsyncGenerator[Sequence[StoredMessage], None]", stream.read(after=after, until=until))
        async with aclosing(batches):
            async for batch in batches:
                for message in batch:
                    if stop_ns and message.stamp_ns > stop_ns:
                        return found
                    if not _fits(message, sought, needles):
                        continue
                    if len(found.messages) >= sought.limit:
                        found.incomplete = f"only the first {sought.limit} messages of {stream.name} are told of"
                        return found
                    found.messages.append(message)
                    if last is not None and last(message):
                        end_ns = message.stamp_ns + GRACE_NS
                        stop_ns = min(stop_ns, end_ns) if stop_ns else end_ns
    except HistoryGapError as error:
        found.incomplete = str(error)
    else:
        if until < bounds.last:
            found.incomplete = f"only {SCANNED_MAX} messages of {stream.name} were looked at"
    return found


def _fits(message: StoredMessage, sought: Sought, needles: Sequence[bytes]) -> bool:
    if sought.tags and event_of(message.subject) not in sought.tags:
        return False
    if sought.who and speaker(message.subject)[1] not in sought.who:
        return False
    return all(needle in message.body for needle in needles)

"""Stored messages from the streams themselves: found by bisection over their stamps, then read one after the other."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Final, cast

from adapters.log.history import Streams
from adapters.log.travel import last_until
from domain.errors import HistoryGapError
from domain.events.codec import encode
from domain.ports import StoredMessage, Stream
from domain.subjects import EVENTS, LEDGER, event_of, speaker
from projections.why.said import committed_of
from services.past.source import Found, Kept, Last, Sought, Span

SCANNED_MAX: Final = 1_000_000
"""Messages that are looked at for one question."""
LOOKED_BACK: Final = 3_000
"""Newest commits that are looked at for a plan."""
GRACE_NS: Final = 3_000_000_000
"""What is said of a thing after its end, by others, comes within this time."""
_REFUSES: Final = b'"rejected":[['
_HIGH: Final = re.compile(rb'"hi":([0-9]{1,19})')
"""The last fact that a commit had read, which stands before its decisions."""


class StreamsPast:
    """Asks the streams (services.past.source.Past)."""

    name = "NATS"

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def kept(self, stream: str) -> Kept:
        """Return how far back a stream reaches."""
        asked = self.stream(stream)
        bounds = await asked.bounds()
        oldest = await asked.get(bounds.first) if bounds.first <= bounds.last else None
        return Kept(first=bounds.first, last=bounds.last, first_ns=oldest.stamp_ns if oldest is not None else 0)

    async def span(self, column: str, value: str, guess: Span) -> Span | None:
        """Return `guess`: a stream has no index."""
        del column, value
        return guess

    async def facts(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_EVENTS, without facts that the master did not believe."""
        found = await _scan(self._streams.events, sought, last)
        if found.messages:
            refused = await self._refused(found.messages[0].stamp_ns, found.messages[-1].seq)
            found.messages = [message for message in found.messages if message.seq not in refused]
        return found

    async def commits(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_LEDGER."""
        return await _scan(self._streams.ledger, sought, last)

    async def commit(self, version: int) -> StoredMessage | None:
        """Return one commit; None if it is not kept."""
        return await self._streams.ledger.get(version) if version > 0 else None

    def stream(self, name: str) -> Stream:
        """Return one of the streams."""
        return {EVENTS: self._streams.events, LEDGER: self._streams.ledger}.get(name, self._streams.control)

    async def _refused(self, since_ns: int, upto: int) -> set[int]:
        """Return which facts commits refused that were stored from a moment on, up to sequence `upto` at least."""
        refused: set[int] = set()
        ledger = self._streams.ledger
        bounds = await ledger.bounds()
        after = max(bounds.first - 1, await last_until(ledger, since_ns - GRACE_NS))
        if bounds.last <= after:
            return refused
        batches = cast("AsyncGenerator[Sequence[StoredMessage], None]", ledger.read(after=after, until=bounds.last))
        with suppress(HistoryGapError):
            async with aclosing(batches):
                async for batch in batches:
                    for message in batch:
                        if _REFUSES in message.body and (made := committed_of(message)) is not None:
                            refused |= {seq for seq, _ in made.commit.rejected}
                    high = _HIGH.search(batch[-1].body)
                    if high is not None and int(high[1]) >= upto:
                        break
        return refused

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

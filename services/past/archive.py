"""Stored messages from ClickHouse, which finds them by time and by its indexes, and keeps them for longer than the streams."""

from typing import Final

from adapters.clickhouse import past
from domain.ports import StoredMessage, Stream
from domain.subjects import EVENTS, LEDGER
from services.past.source import Found, Kept, Last, Sought, Span
from services.past.stored import Ask, StoredStream
from services.past.streams import GRACE_NS

_EARLY_NS: Final = 2_000_000_000
"""A fact about a request may have been stored so much before the row that says how long it had waited."""


class ArchivePast:
    """Asks ClickHouse (services.past.source.Past)."""

    name = "ClickHouse"

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def kept(self, stream: str) -> Kept:
        """Return how far back the table of messages reaches."""
        first, last, first_ns = await self._ask(past.kept, stream)
        return Kept(first=first, last=last, first_ns=first_ns)

    async def span(self, column: str, value: str, guess: Span) -> Span | None:
        """Return when rows speak of it; None if none does: then no row of it has come yet, or none is kept any more."""
        since_ns = (
            guess.since_ns if column == "lease" else 0
        )  # an index finds requests; their node's clock may be ahead
        found = await self._ask(past.span, column, value, since_ns=since_ns)
        if found is None:
            return None if column == "lease" else guess
        first_ns, last_ns, waited_ns, ended = found
        since_ns = first_ns - waited_ns - _EARLY_NS
        since_ns = min(guess.since_ns, since_ns) if column == "request" and guess.since_ns else since_ns
        return Span(since_ns, last_ns + GRACE_NS if ended else 0)

    async def facts(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_EVENTS."""
        del last
        return await self._messages(EVENTS, sought)

    async def commits(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_LEDGER."""
        del last
        return await self._messages(LEDGER, sought)

    async def commit(self, version: int) -> StoredMessage | None:
        """Return one commit; None if it is not kept."""
        found: StoredMessage | None = await self._ask(past.commit, version)
        return found

    def stream(self, name: str) -> Stream:
        """Return a stream as the table of messages has its newest life."""
        return StoredStream(self._ask, name)

    async def last_planned(self, node: str, model: str) -> StoredMessage | None:
        """Return the newest commit that planned an owner's queue; None if none is kept."""
        version = await self._ask(past.last_plan, node, model)
        return await self.commit(version) if version is not None else None

    async def _messages(self, stream: str, sought: Sought) -> Found:
        rows: list[StoredMessage] = await self._ask(
            past.messages,
            stream,
            since_ns=sought.since_ns,
            until_ns=sought.until_ns,
            needles=sought.needles,
            tags=sought.tags,
            who=sought.who,
            limit=sought.limit + 1,
        )
        if len(rows) <= sought.limit:
            return Found(messages=rows)
        return Found(
            messages=rows[: sought.limit],
            incomplete=f"only the first {sought.limit} messages of {stream} are told of",
        )

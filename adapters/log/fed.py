"""Whether the public feed says what the ledger decided: each decision once, in order, signed, and nothing else.

LW_DECISIONS is derived, so nothing of it changes a decision; but nodes and outside tools read it, and what was changed in it,
taken out of it or put into it is named here by its sequence.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, cast

import msgspec

from adapters.decisions import DecisionReader, SignedDecision
from adapters.headers import encode_headers
from adapters.log.feed import BEFORE_ALL, ORDER, Order, order_of
from adapters.log.history import stored_commit
from adapters.log.report import Difference
from adapters.log.scan import AGE_SLACK_NS
from domain.errors import HistoryError, HistoryGapError
from domain.events import Decision, OwnerPlanned, SafeModeEntered, codec
from domain.ports import StoredMessage, Stream
from domain.subjects import decision_subject

DIFFERENCES_MAX: Final = 20
"""Named one by one; of more there is only the count."""
PLACE: Final = "feed"


class Fed(msgspec.Struct, kw_only=True):
    """What a comparison of the feed with the ledger found."""

    messages: int = 0
    differences: list[Difference] = []
    more: int = 0
    """Differences beyond those that are named."""
    behind: int = 0
    """Decisions of the ledger that the feed does not have yet: a master publishes them."""
    unchecked: int = 0
    """Messages whose commit the ledger has dropped for its age."""

    def differs(self, version: int, what: str, stored: str = "", decided: str = "") -> None:
        """Note a difference."""
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences = [*self.differences, Difference(version, PLACE, what, stored, decided)]
        else:
            self.more += 1


async def compare_feed(
    feed: Stream, ledger: Stream, reader: DecisionReader, cluster: str, *, dropped_before_ns: int = 0
) -> Fed:
    """Compare every message of the feed with the decision that it publishes.

    The ledger is taken at its word: verify it first. `dropped_before_ns`: what the feed has stored before that moment
    (nanoseconds since the epoch) may be gone for its age; 0: nothing is known of that, and any beginning is as good.

    Raises:
        HistoryError, HistoryGapError: the ledger cannot be read.
    """
    return await _Comparison(feed, ledger, reader, cluster).run(dropped_before_ns)


class _Comparison:
    def __init__(self, feed: Stream, ledger: Stream, reader: DecisionReader, cluster: str) -> None:
        self._feed, self._ledger, self._reader, self._cluster = feed, ledger, reader, cluster
        self._found = Fed()
        self._decided: AsyncGenerator[tuple[Order, Decision], None]
        self._next: tuple[Order, Decision] | None = None
        self._at: Order = BEFORE_ALL
        """The newest place that the feed has reached."""

    async def run(self, dropped_before_ns: int) -> Fed:
        bounds = await self._feed.bounds()
        whole = bounds.first <= 1 or (dropped_before_ns > 0 and bounds.created_ns > dropped_before_ns + AGE_SLACK_NS)
        if whole and bounds.first > 1:
            gone = f"{self._feed.name}: message 1 must be there, but the first one is {bounds.first}"
            self._found.differs(0, gone)
        self._decided = _decided(self._ledger)
        async with aclosing(self._decided):
            await self._advance()
            first = True
            async for message in self._messages(bounds.first, bounds.last):
                self._found.messages += 1
                await self._one(message, begins=first and not whole)
                first = False
            while self._next is not None:
                self._found.behind += 1
                await self._advance()
        return self._found

    async def _messages(self, first: int, last: int) -> AsyncIterator[StoredMessage]:
        """Yield what is there; a hole is named, and read past."""
        after = first - 1
        while after < last:
            read = cast("AsyncGenerator[list[StoredMessage], None]", self._feed.read(after=after, until=last))
            try:
                async with aclosing(read):
                    async for batch in read:
                        for message in batch:
                            after = message.seq
                            yield message
            except HistoryGapError:
                gone = after + 1
                self._found.differs(0, f"{self._feed.name}: message {gone} must be there, it is not")
                after = gone
                while after < last and await self._feed.get(after + 1) is None:
                    after += 1

    async def _advance(self) -> None:
        self._next = await anext(self._decided, None)

    async def _one(self, message: StoredMessage, *, begins: bool) -> None:
        name = f"{self._feed.name} message {message.seq}"
        signed = self._reader.read(message.body)
        try:
            order = order_of(message.headers)
        except HistoryError as error:
            self._found.differs(0, f"{name}: {error}")
            return
        if signed is None:
            self._found.differs(order[1], f"{name}: is not signed by the master, or is no decision")
        elif isinstance(signed.decision, SafeModeEntered):  # a word of the master about itself, of no commit
            self._alarm(message, name, order, signed)
            return
        await self._reach(name, order, begins=begins)
        if self._next is None or order != self._next[0]:
            return
        if signed is not None:
            self._same(message, name, signed)
        await self._advance()

    def _alarm(self, message: StoredMessage, name: str, order: Order, signed: SignedDecision) -> None:
        place = (signed.order[0], signed.order[1], signed.order[2])
        if place != order or message.subject != decision_subject(self._cluster, signed.decision):
            self._found.differs(order[1], f"{name}: its subject and header are not those of {_told(place)}")
        elif self._at not in {order, BEFORE_ALL}:
            self._found.differs(order[1], f"{name}: was said at {_told(order)}, but stands at {_told(self._at)}")

    async def _reach(self, name: str, order: Order, *, begins: bool) -> None:
        """Go on in the ledger to where a message says that it belongs."""
        if self._next is None or order < self._next[0]:
            oldest = (await self._ledger.bounds()).first
            if self._at == BEFORE_ALL and order[1] < oldest:
                self._found.unchecked += 1
            elif order <= self._at:
                self._found.differs(order[1], f"{name}: {_told(order)} stands behind {_told(self._at)}")
            else:
                self._found.differs(order[1], f"{name}: the ledger has no decision {_told(order)}")
            return
        while (place := self._place()) is not None and place < order:
            # what is left of an older generation is void, and is not published any more
            if place[0] == order[0] and not begins:
                self._found.differs(place[1], f"{name}: {_told(place)} must stand before it, it does not")
            await self._advance()
        if self._place() != order:
            self._found.differs(order[1], f"{name}: the ledger has no decision {_told(order)}")
        self._at = max(self._at, order)

    def _place(self) -> Order | None:
        """Return the place of the next decision of the ledger."""
        return self._next[0] if self._next is not None else None

    def _same(self, message: StoredMessage, name: str, signed: SignedDecision) -> None:
        """Check what a message says, and under which subject and headers, against what was decided."""
        assert self._next is not None
        order, decision = self._next
        self._at = max(self._at, order)
        stored, decided = codec.encode(signed.decision).decode(), codec.encode(decision).decode()
        if stored != decided:
            self._found.differs(order[1], f"{name}: is not what {_told(order)} decided", stored, decided)
        elif tuple(signed.order) != order:
            self._found.differs(order[1], f"{name}: names another place inside than in its header")
        elif message.subject != (subject := decision_subject(self._cluster, decision)):
            self._found.differs(order[1], f"{name}: stands under another subject", message.subject, subject)
        elif message.headers not in {b"", _headers(message, order)}:
            self._found.differs(order[1], f"{name}: its headers are not those of {_told(order)}")


def _headers(message: StoredMessage, order: Order) -> bytes:
    """Return the headers with which a decision is published: it expects the message before it."""
    generation, version, index = order
    said = {ORDER: f"{generation}-{version}.{index}"}
    return encode_headers(said, message_id=f"{generation}-{version}-{index}", expected_last=message.seq - 1)


async def _decided(ledger: Stream) -> AsyncGenerator[tuple[Order, Decision], None]:
    """Yield the decisions that are published, with their places."""
    bounds = await ledger.bounds()
    if bounds.last < bounds.first:
        return
    read = cast("AsyncGenerator[list[StoredMessage], None]", ledger.read(after=bounds.first - 1, until=bounds.last))
    async with aclosing(read):
        async for batch in read:
            for message in batch:
                commit = stored_commit(message)
                for index, decision in enumerate(commit.decisions):
                    if not isinstance(decision, OwnerPlanned):
                        yield (commit.generation, commit.version, index), decision


def _told(order: Order) -> str:
    generation, version, index = order
    return f"decision {index} of version {version} ({generation})" if version else "no decision"

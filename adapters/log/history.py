"""From stored history to a state: snapshot, then every commit after it; and the checks that must hold before anyone decides."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from adapters.log.reader import Reader
from domain.errors import ChainBrokenError, HistoryError, HistoryGapError
from domain.events.commit import Commit, commit_digest, decode_commit
from domain.ids import Generation
from domain.master.state import State, decode_state
from domain.master.step import Position, Range, after, check_chain, fold_into, follow
from domain.ports import StoredMessage, Stream, Witnessed


class Streams(msgspec.Struct, frozen=True):
    """The streams that the master's history stands in."""

    events: Stream
    control: Stream
    ledger: Stream


class Cursor:
    """Reads one stream forward, in the pieces that commits name, with one subscription for all of them."""

    def __init__(self, stream: Stream, *, after: int, until: int) -> None:
        self._stream, self._at, self._until = stream, after, until
        self._batches: AsyncGenerator[Sequence[StoredMessage], None] | None = None
        self._ahead: list[StoredMessage] = []

    async def take(self, high: int) -> list[StoredMessage]:
        """Return the messages from where the last call ended up to `high`.

        Raises:
            HistoryGapError: the stream does not hold them all.
        """
        while self._at + len(self._ahead) < high:
            if self._batches is None:
                batches = self._stream.read(after=self._at, until=self._until)
                self._batches = cast("AsyncGenerator[Sequence[StoredMessage], None]", batches)
            batch = await anext(self._batches, None)
            if batch is None:
                raise HistoryGapError(f"{self._stream.name}: ends before message {high}")
            self._ahead += batch
        count = high - self._at
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        self._at = high
        return taken

    async def close(self) -> None:
        """End the subscription."""
        if self._batches is not None:
            await self._batches.aclose()


class History:
    """A state at a position, and the way to move it on along stored commits."""

    def __init__(self, streams: Streams, reader: Reader, generation: Generation) -> None:
        self.streams, self.reader = streams, reader
        self.state = State()
        self.position = Position(generation)

    def restore(self, snapshot: bytes, at: Commit) -> bool:
        """Take a snapshot if commit `at` vouches for its bytes; tell whether it did."""
        if not at.state or hashlib.blake2b(snapshot, digest_size=16).hexdigest() != at.state:
            return False
        self.state = decode_state(snapshot)
        self.position = after(at)
        return True

    async def catch_up(self, head: Commit) -> None:
        """Apply stored commits up to `head`, checking the chain and every digest on the way.

        Raises:
            HistoryError: the chain is broken, or an input is changed.
            HistoryGapError: an input is gone.
        """
        if head.version <= self.position.version:
            return
        facts = Cursor(self.streams.events, after=self.position.hi, until=head.hi)
        control = Cursor(self.streams.control, after=self.position.chi, until=head.chi)
        try:
            commits = self.streams.ledger.read(after=self.position.version, until=head.version)
            async with aclosing(cast("AsyncGenerator[Sequence[StoredMessage], None]", commits)):
                async for batch in commits:
                    for message in batch:
                        await self._apply(stored_commit(message), facts, control)
        finally:
            await facts.close()
            await control.close()

    async def _apply(self, stored: Commit, facts: Cursor, control: Cursor) -> None:
        check_chain(self.position, stored)
        span = await self.fold(stored, facts, control)
        if commit_digest(stored.prev, span.messages(), stored) != stored.digest:
            raise ChainBrokenError(f"commit {stored.version}: its digest does not match its inputs and decisions")
        follow(self.state, stored)
        self.position = after(stored)

    async def fold(self, stored: Commit, facts: Cursor, control: Cursor) -> Range:
        """Fold the inputs of a stored commit and return them."""
        self.state.term = stored.term
        span = Range()
        decreed = [(self.reader.control(message), message) for message in await control.take(stored.chi)]
        fold_into(self.state, span, decreed, self.reader.facts(await facts.take(stored.hi)))
        return span


def stored_commit(message: StoredMessage) -> Commit:
    """Return the commit in a message of the ledger.

    Raises:
        ChainBrokenError: it is no commit, or its version is not its sequence.
    """
    try:
        stored = decode_commit(message.body)
    except msgspec.DecodeError as error:
        raise ChainBrokenError(f"ledger message {message.seq}: not a commit: {error}") from None
    if stored.version != message.seq:
        raise ChainBrokenError(f"ledger message {message.seq}: holds version {stored.version}")
    return stored


async def last_commit(ledger: Stream) -> Commit | None:
    """Return the newest commit, read from the leader; None if there is none."""
    message = await ledger.last()
    return stored_commit(message) if message is not None else None


def check_witness(witnessed: Witnessed | None, head: Commit | None, *, who: str = "the data directory") -> None:
    """Check that the ledger is not behind what a witness saw of it.

    Raises:
        HistoryError: it is, or it is an older history.
    """
    if witnessed is None:
        return
    seen = f"{who} has seen version {witnessed.version} of generation {witnessed.generation}"
    if head is None:
        raise HistoryError(f"ledger: it is empty, but {seen}")
    if head.generation < witnessed.generation:
        raise HistoryError(f"ledger: it is of generation {head.generation}, but {seen}")
    if head.generation > witnessed.generation:
        return
    if head.version < witnessed.version:
        raise HistoryError(f"ledger: it ends at version {head.version}, but {seen}")
    if head.version == witnessed.version and witnessed.digest and head.digest != witnessed.digest:
        raise HistoryError(
            f"ledger: version {head.version} has digest {head.digest}, but {seen} with {witnessed.digest}"
        )


async def check_inputs(streams: Streams, head: Commit | None) -> None:
    """Check that the inputs that the last commit folded are still there.

    Raises:
        HistoryError: a stream ends before the last commit's range does.
    """
    if head is None:
        return
    for stream, high in ((streams.events, head.hi), (streams.control, head.chi)):
        last = (await stream.bounds()).last
        if last < high:
            raise HistoryError(f"{stream.name}: ends at {last}, but commit {head.version} folded up to {high}")

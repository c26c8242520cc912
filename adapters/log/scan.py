"""Before a master decides: every stored commit is still the one that was digested, over the very inputs that it names.

Nothing is decided again and no MAC is checked: whatever changed a stored byte since its commit was made has broken a digest.
What an audit finds besides, the rules' own mistakes, a master cannot find by itself.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, cast

import msgspec

from adapters.log.checkpoints import Kept, check_agrees, tail_digest
from adapters.log.generations import check_begins, safe_mode_left
from adapters.log.history import Cursors, Streams, check_frame, first_of_generation, stored_commit
from adapters.log.lost import first_lost
from domain.errors import ChainBrokenError, FactsLostError, HistoryError, HistoryGapError
from domain.events.commit import Commit, is_sealed
from domain.master.step import Position, after, check_chain
from domain.ports import StoredMessage, Stream

AGE_SLACK_NS: Final = 3_600_000_000_000
"""A message that is gone for its age may be this much younger than the limit: clocks differ."""


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """After how long the streams drop a message; 0: never."""

    events_ns: int = 0
    ledger_ns: int = 0
    now_ns: int = 0
    """The wall clock of whoever asks, since the epoch."""


NO_AGES: Final = Ages()


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    commits: int = 0
    messages: int = 0
    unchecked: int = 0
    """Commits whose inputs the stream has dropped for their age, or lost: their chain alone was checked."""
    lost_from: int = 0
    """Sequence of LW_EVENTS from which on facts are lost, where that was allowed; 0 if none are."""


async def scan(
    streams: Streams,
    first: Commit,
    head: Commit,
    *,
    subject: str,
    checkpoints: Sequence[Kept] = (),
    ages: Ages = NO_AGES,
    tail_lost: bool = False,
) -> Scanned:
    """Check every commit from `first`, the first of its generation or the oldest kept, to `head` against its inputs.

    `subject`: of the ledger. `tail_lost`: the newest facts may be gone, as a bus of relaxed durability may lose them; all else is
    checked as ever, but for the digests of the commits that had folded them.

    Raises:
        HistoryError: a commit is not what was digested or signed.
        FactsLostError: the facts that no commit has folded yet are not those that a checkpoint saw.
        HistoryGapError: a message that no age limit explains is gone.
    """
    signed: dict[int, list[Kept]] = {}
    for kept in checkpoints:
        signed.setdefault(kept.checkpoint.version, []).append(kept)
    await check_begins(streams.ledger, first)
    lost_from = await check_end(streams, head, checkpoints, tail_lost=tail_lost)
    events = await streams.events.bounds()
    begins = _Begins(streams, events.first, ages)
    await begins.check_whole(first)
    await _check_gone_since(begins, streams.ledger, first, checkpoints)
    found = await _scan_commits(streams, first, head, _Known(subject, signed, begins, tail_lost=tail_lost))
    return found if found.lost_from else msgspec.structs.replace(found, lost_from=lost_from)


async def _check_gone_since(begins: "_Begins", ledger: Stream, first: Commit, checkpoints: Sequence[Kept]) -> None:
    """Check that the commits before `first`, the oldest kept, are gone for their age, by the newest of what was signed of them.

    The newest is that of the highest version. One that is dated after the commit behind it was signed by a clock that had
    jumped ahead, and says nothing about when.
    """
    older = [kept.checkpoint for kept in checkpoints if kept.checkpoint.version < first.version - 1]
    message = await ledger.get(first.version)
    if older and message is not None:
        newest = max(older, key=lambda each: (each.version, each.tail_hi))
        if newest.at_us * 1000 <= message.stamp_ns:
            begins.check_gone(ledger, first.version - 1, newest.at_us * 1000)


async def scan_left_out(streams: Streams, upto: Commit, *, subject: str, checkpoints: Sequence[Kept] = ()) -> Scanned:
    """Check the commits of a generation up to `upto`, of which an audit decides none again: chain, signatures, and digests.

    Raises:
        HistoryError: a commit is not what was digested or signed.
        HistoryGapError: a commit is gone.
    """
    first = await first_of_generation(streams.ledger, upto)
    await check_begins(streams.ledger, first)
    signed: dict[int, list[Kept]] = {}
    for kept in checkpoints:
        if kept.checkpoint.generation == upto.generation:
            signed.setdefault(kept.checkpoint.version, []).append(kept)
    begins = _Begins(streams, (await streams.events.bounds()).first, NO_AGES)
    return await _scan_commits(streams, first, upto, _Known(subject, signed, begins))


async def check_young(streams: Streams, ages: Ages, first: Commit | None = None) -> None:
    """Check that nothing is gone at the beginning of a stream that is younger than its age limit.

    `first`: the first commit of the generation that is looked at; None: all that there ever was.

    Raises:
        HistoryGapError: something is.
    """
    await _Begins(streams, 0, ages).check_whole(first)


async def check_end(
    streams: Streams, head: Commit | None, checkpoints: Sequence[Kept], *, tail_lost: bool = False
) -> int:
    """Check that neither the ledger nor what no commit has folded yet ends before what was signed.

    `tail_lost`: the newest of these facts may be gone. Return from which one on they are; 0 if none is.

    Raises:
        HistoryError: the ledger does, or control events that a checkpoint has seen are gone.
        FactsLostError: facts that a checkpoint has seen are gone, or one of what it has seen is another.
    """
    newest = max(
        checkpoints,
        key=lambda kept: (kept.checkpoint.generation, kept.checkpoint.version, kept.checkpoint.tail_hi),
        default=None,
    )
    if newest is None:
        return 0
    signed = newest.checkpoint
    if head is None:
        raise HistoryError(
            f"ledger: it is empty, but a checkpoint in {newest.source} was signed for version {signed.version}"
        )
    if (signed.generation, signed.version) > (head.generation, head.version):
        raise HistoryError(
            f"ledger: it ends at version {head.version} of generation {head.generation}, but a checkpoint in "
            f"{newest.source} was signed for version {signed.version} of generation {signed.generation}"
        )
    if signed.generation < head.generation:
        first = await first_of_generation(streams.ledger, head)
        if first.version == 1 and safe_mode_left(first) is None:
            raise HistoryError(
                f"ledger: generation {head.generation} begins without an operator's word, though a checkpoint in "
                f"{newest.source} was signed in generation {signed.generation}"
            )
    lost_from = 0
    for kept in checkpoints:
        if (kept.checkpoint.generation, kept.checkpoint.version) == (head.generation, head.version):
            lost_from = await _check_tail(streams, kept, tail_lost=tail_lost) or lost_from
    return lost_from


class _Begins:
    """Judges whether what a stream lacks at its beginning is explained by its age limit."""

    def __init__(self, streams: Streams, events_first: int, ages: Ages) -> None:
        self._streams, self.events_first, self._ages = streams, events_first, ages

    async def check_whole(self, first: Commit | None) -> None:
        """Check the beginnings of streams that are younger than their age limit: nothing of them may be gone.

        An operator's word in `first` says from where on: what is gone before that was looked at.
        """
        lo = clo = before = 0
        if first is not None and safe_mode_left(first) is not None:
            lo, clo, before = first.lo, first.clo, first.version - 1
        ages = self._ages
        limits = ((self._streams.control, 0, clo), (self._streams.events, ages.events_ns, lo))
        for stream, age_ns, given_up in (*limits, (self._streams.ledger, ages.ledger_ns, before)):
            bounds = await stream.bounds()
            young = not age_ns or (bounds.created_ns and bounds.created_ns + age_ns > ages.now_ns + AGE_SLACK_NS)
            if young and bounds.first > given_up + 1:
                behind = bounds.created_ns > ages.now_ns > 0
                clock = "; this machine's clock is behind: by it the stream was not made yet" if behind else ""
                what = f"message {given_up + 1} must be there, but the first one is {bounds.first}{clock}"
                raise HistoryGapError(stream.name, what)

    def check_gone(self, stream: Stream, seq: int, stored_after_ns: int) -> None:
        """Check that message `seq`, which is gone and was stored after that moment, is gone for its age."""
        limit_ns = self._ages.ledger_ns if stream is self._streams.ledger else self._ages.events_ns
        if self._ages.now_ns and stored_after_ns > self._ages.now_ns - limit_ns + AGE_SLACK_NS:
            raise HistoryGapError(
                stream.name, f"message {seq} must be there: it is too young to be dropped for its age"
            )


class _Known(NamedTuple):
    subject: str
    signed: dict[int, list[Kept]]
    begins: _Begins
    tail_lost: bool = False


async def _scan_commits(streams: Streams, first: Commit, head: Commit, known: "_Known") -> Scanned:
    position, commits, inputs = _before(first), 0, _Inputs(streams, head, known)
    read = streams.ledger.read(after=first.version - 1, until=head.version)
    try:
        async with aclosing(cast("AsyncGenerator[Sequence[StoredMessage], None]", read)):
            async for batch in read:
                for message in batch:
                    stored = stored_commit(message)
                    check_frame(message, stored, known.subject)
                    check_chain(position, stored)
                    for kept in known.signed.get(stored.version, ()):
                        check_agrees(kept, stored)
                    await inputs.check(position, stored, message)
                    position, commits = after(stored), commits + 1
    finally:
        await inputs.close()
    return msgspec.structs.replace(inputs.found, commits=commits)


class _Inputs:
    """What commits have folded, in step with the ledger, as far as it is still there."""

    def __init__(self, streams: Streams, head: Commit, known: _Known) -> None:
        self._streams, self._head, self._known = streams, head, known
        self._cursors: Cursors | None = None
        self._stamp_ns = 0
        """Of the commit before."""
        self.found = Scanned()

    async def check(self, position: Position, stored: Commit, message: StoredMessage) -> None:
        """Check the inputs of a commit, which continues `position`, against its digest."""
        begins = self._known.begins
        if self.found.lost_from:
            self._add(unchecked=1)
        elif stored.hi > stored.lo and stored.lo + 1 < begins.events_first:
            self._add(unchecked=1)
            await self.close()  # a commit over no fact opened them; what follows is read from there
            if stored.lo < begins.events_first - 1 <= stored.hi:  # its range holds the newest that is gone
                begins.check_gone(self._streams.events, begins.events_first - 1, self._stamp_ns)
        else:
            self._cursors = self._cursors or Cursors(self._streams, position)
            try:
                self._add(messages=await _check_digest(stored, message.body, self._cursors))
            except (ChainBrokenError, HistoryGapError) as error:
                lost_from = await self._lost_from(stored, error)
                if not lost_from:
                    raise
                self._add(unchecked=1, lost_from=lost_from)
        self._stamp_ns = message.stamp_ns

    async def _lost_from(self, stored: Commit, error: ChainBrokenError | HistoryGapError) -> int:
        """Return from which fact on the newest are lost, if that is allowed and why a commit has not its digest; else 0."""
        events, control = self._streams.events, await self._streams.control.bounds()
        elsewhere = isinstance(error, HistoryGapError) and error.stream != events.name
        newest = await self._streams.ledger.get(self._head.version)
        if not self._known.tail_lost or elsewhere or newest is None or control.last < self._head.chi:
            return 0
        lost_from = await first_lost(events, stored.lo, self._head.hi, newest.stamp_ns)
        return lost_from if lost_from <= stored.hi else 0

    def _add(self, *, messages: int = 0, unchecked: int = 0, lost_from: int = 0) -> None:
        was = self.found
        self.found = Scanned(
            messages=was.messages + messages,
            unchecked=was.unchecked + unchecked,
            lost_from=was.lost_from or lost_from,
        )

    async def close(self) -> None:
        """End the subscriptions."""
        if self._cursors is not None:
            cursors, self._cursors = self._cursors, None
            await cursors.close()


def _before(first: Commit) -> Position:
    """Return the position that `first` continues, on its own word: it is where the scan begins."""
    return Position(first.generation, first.version - 1, first.term, first.prev, first.lo, first.clo)


async def _check_digest(stored: Commit, body: bytes, cursors: Cursors) -> int:
    control = await cursors.control.take(stored.chi)
    facts = await cursors.facts.take(stored.hi)
    if not is_sealed(stored, [*control, *facts], body):
        ranges = f"LW_EVENTS ({stored.lo}, {stored.hi}], LW_CONTROL ({stored.clo}, {stored.chi}]"
        raise ChainBrokenError(
            f"commit {stored.version}: its digest does not match: one of {ranges} or ledger message {stored.version} is not "
            f"what it was"
        )
    return len(control) + len(facts)


async def _check_tail(streams: Streams, kept: Kept, *, tail_lost: bool) -> int:
    """Check what no commit has folded yet against the newest checkpoint, if that saw any of it (see `check_end`)."""
    signed = kept.checkpoint
    if not signed.tail:
        return 0
    seen = f"which a checkpoint in {kept.source} has seen"
    if (await streams.control.bounds()).last < signed.tail_chi:
        raise HistoryError(f"{streams.control.name}: ends before message {signed.tail_chi}, {seen}")
    if tail_lost:
        lost_from = await first_lost(streams.events, signed.hi, signed.tail_hi, signed.at_us * 1000)
        if lost_from:
            return lost_from
    if (await streams.events.bounds()).last < signed.tail_hi:
        raise FactsLostError(f"{streams.events.name}: ends before message {signed.tail_hi}, {seen}")
    inputs: list[StoredMessage] = []
    for stream, begin, end in (
        (streams.control, signed.chi, signed.tail_chi),
        (streams.events, signed.hi, signed.tail_hi),
    ):
        if end > begin:
            read = cast("AsyncGenerator[Sequence[StoredMessage], None]", stream.read(after=begin, until=end))
            async with aclosing(read):
                async for batch in read:
                    inputs += batch
    if tail_digest(inputs) != signed.tail:
        raise FactsLostError(
            f"LW_EVENTS ({signed.hi}, {signed.tail_hi}], LW_CONTROL ({signed.chi}, {signed.tail_chi}]: one of these is not "
            f"what a checkpoint in {kept.source} has seen"
        )
    return 0

"""Verify: decide every commit again from the stored inputs and compare bytes; name the first place that differs."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec

from adapters.log.chains import ProducerChains
from adapters.log.checkpoints import Kept, compared
from adapters.log.history import (
    Cursors,
    History,
    Streams,
    check_frame,
    first_of_generation,
    last_commit,
    stored_commit,
)
from adapters.log.reader import Reader
from adapters.log.report import Difference, Report
from adapters.log.scan import check_end
from adapters.log.snapshots import content_digest
from adapters.log.tail import check_inputs
from domain.errors import HistoryError, HistoryGapError, ReplayDiffersError, UnknownPolicyError
from domain.events.commit import Commit, is_sealed
from domain.master.step import Range, after, check_chain
from domain.policies import KNOWN, Policy
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, ledger_subject

__all__ = ["Difference", "Part", "Report", "difference", "verify", "verify_part"]
_PLACES: Final = {EVENTS: "events", CONTROL: "control"}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Which commits are decided again, and from which state on."""

    first: int = 0
    """Version of the first; 0: where the history begins. Commits before it, after the snapshot, are only applied."""
    last: int = 0
    """Version of the last; 0: the newest."""
    whole: bool = False
    """Begin at the first commit there is: older generations, whose history was in doubt, are verified too."""
    snapshot: tuple[int, bytes] | None = None
    """(version, state bytes) to begin at, if the commit of that version vouches for the bytes."""
    state_digest: str = ""
    """The digest that these bytes must have where no commit states one: an earlier part has made them."""
    checkpoints: Sequence[Kept] = ()
    """What the master signed of the ledger, kept elsewhere."""
    signatures_hold: bool = False
    """Whoever gives these checkpoints has checked their signatures: that is a second for 8,000 of them."""
    with_state: bool = False
    """Report the digest of the state at the end: the next part begins there."""


async def verify(
    streams: Streams,
    reader: Reader,
    *,
    whole: bool = False,
    snapshot: tuple[int, bytes] | None = None,
    fold_max: int = 1 << 30,
    progress: Callable[[int, int], None] | None = None,
    part: Part | None = None,
    policies: Mapping[str, Policy] = KNOWN,
) -> Report:
    """Decide every commit of the ledger's newest generation again, from its beginning or from a snapshot, and report.

    An older generation ended because its history was in doubt: `whole` verifies from the first commit there is.

    A difference ends it, since all that follows hangs on it. `progress(version, last)` is called as it goes.

    `part`: only these commits, instead of `whole` and `snapshot`.
    """
    asked = part or Part(whole=whole, snapshot=snapshot)
    history = History(streams, reader, fold_max=fold_max, policies=policies)
    report, chains = await verify_part(history, asked, progress)
    report.producers, report.versions = chains.finish(), chains.versions
    return report


async def verify_part(
    history: History, asked: Part, progress: Callable[[int, int], None] | None = None
) -> tuple[Report, ProducerChains]:
    """Verify a part with a fresh `history`; return what was found, and how far each producer's numbering went."""
    report, chains = Report(), ProducerChains()
    try:
        head = await _head(history.streams, asked)
        if head is None:
            await check_end(history.streams, None, asked.checkpoints)
            return report, chains
        report.generation = head.generation
        if not await _begin(history, head, asked, report):
            return report, chains
        history.chains = chains
        signed = compared(asked.checkpoints, report, signatures_hold=asked.signatures_hold)
        if not asked.last:
            await check_end(history.streams, head, asked.checkpoints)
        await _replay_all(history, head, report, progress, signed)
        if asked.with_state:
            report.state = state_digest(history)
    except UnknownPolicyError as error:
        report.stopped = str(error)
    except (HistoryError, HistoryGapError) as error:
        version = report.last_version + 1
        report.differences.append(difference(version, error))
    return report, chains


def difference(version: int, error: HistoryError | HistoryGapError) -> Difference:
    """Return what an error says of stored history as a report has it."""
    place = _PLACES.get(error.stream, "ledger") if isinstance(error, HistoryGapError) else "ledger"
    sides = (error.stored, error.decided) if isinstance(error, ReplayDiffersError) else ("", "")
    return Difference(version, place, str(error), *sides)


def state_digest(history: History) -> str:
    """Return blake2b-16 over the bytes of a history's state, in hex."""
    return content_digest(history.rules.encode_state(history.state))


async def _head(streams: Streams, asked: Part) -> Commit | None:
    """Return the commit to end with."""
    head = await last_commit(streams.ledger)
    if head is None or not asked.last or asked.last >= head.version:
        await check_inputs(streams, head)
        return head
    message = await streams.ledger.get(asked.last)
    if message is None:
        raise HistoryGapError(streams.ledger.name, f"message {asked.last} is not there")
    return stored_commit(message)


async def _begin(history: History, head: Commit, asked: Part, report: Report) -> bool:
    """Bring the history to where deciding begins; tell whether it could."""
    report.begin = "the first commit"
    if not asked.whole:
        first = await first_of_generation(history.streams.ledger, head)
        history.begin_before(first)
        report.begin = f"the first commit of generation {first.generation}"
    if asked.snapshot is not None:
        version, content = asked.snapshot
        message = await history.streams.ledger.get(version)
        at = stored_commit(message) if message is not None else None
        if at is None or not history.restore(content, at, digest=asked.state_digest):
            wrong = "its bytes do not have the digest that its commit states"
            report.differences.append(Difference(version, "snapshot", f"snapshot of version {version}: {wrong}"))
            return False
        report.begin = f"a snapshot of version {version}, for which commit {at.digest} vouches"
    begun = history.position.version
    if asked.first > begun + 1:
        message = await history.streams.ledger.get(asked.first - 1)
        if message is None:
            raise HistoryGapError(history.streams.ledger.name, f"message {asked.first - 1} is not there")
        await history.catch_up(stored_commit(message))
        report.followed = history.position.version - begun
    report.first_version = history.position.version + 1
    report.last_version = history.position.version
    return True


async def _replay_all(
    history: History,
    head: Commit,
    report: Report,
    progress: Callable[[int, int], None] | None,
    signed: Callable[[Commit], None],
) -> None:
    begin, subject = history.position, ledger_subject(history.reader.cluster)
    cursors = Cursors(history.streams, begin)
    commits = history.streams.ledger.read(after=begin.version, until=head.version)
    try:
        async with aclosing(cast("AsyncGenerator[Sequence[StoredMessage], None]", commits)):
            async for batch in commits:
                for message in batch:
                    stored = stored_commit(message)
                    encoded = check_frame(message, stored, subject)
                    await _replay_one(history, stored, message.body, encoded, cursors, report)
                    report.count(stored, message.stamp_ns)
                    signed(stored)
                if progress is not None:
                    progress(report.last_version, head.version)
    finally:
        await cursors.close()


async def _replay_one(
    history: History, stored: Commit, body: bytes, encoded: bytes, cursors: Cursors, report: Report
) -> None:
    if await history.began_anew(stored, body, cursors):
        report.generations.append(stored.generation)
        return
    check_chain(history.position, stored)
    span = await history.fold(stored, cursors)
    if not is_sealed(stored, span.messages(), body):
        raise HistoryError(f"commit {stored.version}: its digest does not match: {_suspects(stored, span)}")
    history.rules.replay(history.state, history.position, stored, span, sealed=True, encoded=encoded)
    history.position = after(stored)


def _suspects(stored: Commit, span: Range) -> str:
    """Return what may have changed: an input that the reader refuses now and did not then is named, else the whole range."""
    then = dict(stored.rejected)
    named = [f"LW_EVENTS message {seq} ({code})" for seq, code in span.rejected if then.get(seq) != code]
    if named:
        return "changed since: " + ", ".join(named)
    ranges = f"LW_EVENTS ({stored.lo}, {stored.hi}], LW_CONTROL ({stored.clo}, {stored.chi}]"
    return f"one of {ranges} or ledger message {stored.version} is not what it was"

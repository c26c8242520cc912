"""Verify: decide every commit again from the stored inputs and compare bytes; name the first place that differs."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from adapters.log.history import (
    Cursors,
    History,
    Streams,
    check_inputs,
    first_of_generation,
    last_commit,
    stored_commit,
)
from adapters.log.reader import Reader
from domain.errors import HistoryError, HistoryGapError
from domain.events.commit import Commit, commit_digest
from domain.master.step import Range, after, check_chain, replay
from domain.ports import StoredMessage


class Difference(msgspec.Struct, frozen=True):
    """One place where stored history is not what deciding again gives."""

    version: int
    """Of the commit; 0 if it concerns no commit."""
    place: str
    """ledger, events or snapshot."""
    detail: str


class Report(msgspec.Struct, kw_only=True):
    """What a verification found."""

    generation: str = ""
    commits: int = 0
    """Commits decided again."""
    facts: int = 0
    control: int = 0
    first_version: int = 0
    last_version: int = 0
    generations: list[str] = []
    """Generations that an operator began within what was verified."""
    policies: dict[str, int] = {}
    """Commits by policy."""
    decisions: dict[str, int] = {}
    """Decisions by kind."""
    rejected: dict[str, int] = {}
    """Inputs that the reader refused, by code."""
    differences: list[Difference] = []
    digest: str = ""
    """Of the last commit verified."""

    @property
    def clean(self) -> bool:
        """Tell whether stored history is exactly what its inputs give."""
        return not self.differences

    def line(self) -> str:
        """Return the one line for people."""
        return f"audit verify: {self.commits} commits, {len(self.differences)} differences"


async def verify(
    streams: Streams,
    reader: Reader,
    *,
    whole: bool = False,
    snapshot: tuple[int, bytes] | None = None,
    fold_max: int = 1 << 30,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Decide every commit of the ledger's newest generation again, from its beginning or from a snapshot, and report.

    An older generation ended because its history was in doubt: `whole` verifies from the first commit there is.

    A difference ends it, since all that follows hangs on it. `progress(version, last)` is called as it goes.

    `snapshot`: (version, state bytes) to begin at, if the commit of that version vouches for the bytes.
    """
    report = Report()
    try:
        head = await last_commit(streams.ledger)
        if head is None:
            return report
        report.generation = head.generation
        await check_inputs(streams, head)
        history = History(streams, reader, fold_max=fold_max)
        if not whole:
            history.begin_at(await first_of_generation(streams.ledger, head))
        if snapshot is not None and not await _begin_at_snapshot(history, *snapshot):
            wrong = "its bytes do not have the digest that its commit states"
            report.differences.append(
                Difference(snapshot[0], "snapshot", f"snapshot of version {snapshot[0]}: {wrong}")
            )
            return report
        await _replay_all(history, head, report, progress)
    except (HistoryError, HistoryGapError) as error:
        version = report.last_version + 1
        place = "events" if isinstance(error, HistoryGapError) else "ledger"
        report.differences.append(Difference(version, place, str(error)))
    return report


async def _begin_at_snapshot(history: History, version: int, content: bytes) -> bool:
    message = await history.streams.ledger.get(version)
    return message is not None and history.restore(content, stored_commit(message))


async def _replay_all(
    history: History, head: Commit, report: Report, progress: Callable[[int, int], None] | None
) -> None:
    begin = history.position
    report.first_version = begin.version + 1
    report.last_version = begin.version
    cursors = Cursors(history.streams, begin)
    commits = history.streams.ledger.read(after=begin.version, until=head.version)
    try:
        async with aclosing(cast("AsyncGenerator[Sequence[StoredMessage], None]", commits)):
            async for batch in commits:
                for message in batch:
                    await _replay_one(history, stored_commit(message), cursors, report)
                if progress is not None:
                    progress(report.last_version, head.version)
    finally:
        await cursors.close()


async def _replay_one(history: History, stored: Commit, cursors: Cursors, report: Report) -> None:
    if await history.began_anew(stored, cursors):
        report.generations.append(stored.generation)
    else:
        check_chain(history.position, stored)
        span = await history.fold(stored, cursors)
        if commit_digest(stored.prev, span.messages(), stored) != stored.digest:
            raise HistoryError(f"commit {stored.version}: its digest does not match: {_suspects(stored, span)}")
        replay(history.state, history.position, stored, span, sealed=True)
        history.position = after(stored)
    _count(report, stored)


def _suspects(stored: Commit, span: Range) -> str:
    """Return what may have changed: an input that the reader refuses now and did not then is named, else the whole range."""
    then = dict(stored.rejected)
    named = [f"LW_EVENTS message {seq} ({code})" for seq, code in span.rejected if then.get(seq) != code]
    if named:
        return "changed since: " + ", ".join(named)
    ranges = f"LW_EVENTS ({stored.lo}, {stored.hi}], LW_CONTROL ({stored.clo}, {stored.chi}]"
    return f"one of {ranges} or ledger message {stored.version} is not what it was"


def _count(report: Report, stored: Commit) -> None:
    report.commits += 1
    report.facts += stored.hi - stored.lo
    report.control += stored.chi - stored.clo
    report.last_version = stored.version
    report.digest = stored.digest
    report.policies[stored.policy] = report.policies.get(stored.policy, 0) + 1
    for decision in stored.decisions:
        kind = type(decision).__name__
        report.decisions[kind] = report.decisions.get(kind, 0) + 1
    for _, code in stored.rejected:
        report.rejected[code] = report.rejected.get(code, 0) + 1

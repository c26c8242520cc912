"""Who began the generations that an audit looks at: that safe mode is over is an operator's word by a signature alone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from adapters.log.checkpoints import Kept, fingerprint
from adapters.log.generations import Beginners, safe_mode_left
from adapters.log.history import first_of_generation, last_commit, stored_commit
from adapters.log.report import Difference, Report
from domain.errors import ChainBrokenError, HistoryError, HistoryGapError
from domain.events.commit import Commit
from domain.ids import Generation
from domain.ports import Stream


async def check_generations(
    ledger: Stream, who: Beginners, report: Report, believed: Sequence[Kept] = (), *, whole: bool = False
) -> None:
    """Note in the report who began each generation that was verified, and what is wrong with that.

    `believed`: checkpoints that hold. The master signs none in a generation that it does not follow, so that they speak for one
    that was begun before words were signed. `whole`: older generations were verified too.
    """
    try:
        async for first, body in generations(ledger, await last_commit(ledger)):
            if not (whole or first.generation in {report.generation, *report.generations}):
                continue
            left, complaint = safe_mode_left(first), who.complaint(first, body)
            signed = any(kept.checkpoint.generation == first.generation for kept in believed)
            if left is None:
                if first.version > 1 and not signed:
                    gone = "its first commit is not kept any more, and no signed checkpoint is of it"
                    report.unchecked.append(f"who began a generation: generation {first.generation}: {gone}")
            elif not complaint:
                by = "the operator" if left.public == who.operator else "the master itself, after lost facts"
                report.begun[first.generation] = f"{by}: {left.reason} (signed by {fingerprint(left.public)})"
            elif not who.operator or signed:
                report.unchecked.append(f"who began a generation: {complaint}")
            else:
                report.differences.append(Difference(first.version, "ledger", complaint))
    except (HistoryError, HistoryGapError) as error:  # a difference already, unless it is older than what was verified
        report.unchecked.append(f"who began a generation: {error}")


async def newest_begun(ledger: Stream, head: Commit | None, who: Beginners) -> Generation:
    """Return the newest generation, up to that of `head`, that was begun by who may; empty if there is none.

    Of the oldest commit that is kept nobody can say any more how its generation began: it is taken for what it says.
    """
    oldest = (await ledger.bounds()).first
    with suppress(ChainBrokenError):  # what stands before is no commit: of that and of all older ones nothing is known
        async for first, body in generations(ledger, head):
            begins = safe_mode_left(first) is not None or first.version in {1, oldest}
            if begins and not who.complaint(first, body):
                return first.generation
    return Generation("")


async def generations(ledger: Stream, head: Commit | None) -> AsyncIterator[tuple[Commit, bytes]]:
    """Yield the first commit of each generation that is kept, up to that of `head`, and its stored bytes, newest first."""
    while head is not None:
        first = await first_of_generation(ledger, head)
        message = await ledger.get(first.version)
        if message is not None:
            yield first, message.body
        before = await ledger.get(first.version - 1) if first.version > 1 else None
        head = stored_commit(before) if before is not None else None

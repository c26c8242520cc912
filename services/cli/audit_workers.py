"""Runs a verification: in this process, or its parts in several, whose ends must meet."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from adapters.log.chains import ProducerChains
from adapters.log.history import History, first_of_generation, last_commit
from adapters.log.report import Report
from adapters.log.scan import NO_AGES, Ages, check_end, check_young, scan_left_out
from adapters.log.segments import PARTS_PER_WORKER, Plan, Segment, join, plan, segments
from adapters.log.tail import check_inputs
from adapters.log.verify import Part, difference, verify_part
from domain.errors import HistoryError, HistoryGapError, UnknownPolicyError
from domain.events.commit import Commit
from domain.subjects import ledger_subject
from services.cli.audit_source import Opened, Source, opened

Progress = Callable[[int, int], None]
_Found = tuple[Report, ProducerChains, set[str]]
"""What verifying a part gave, and which pieces of a copy were read for it and found sound."""


async def verified(
    source: Source, place: Opened, asked: Part, *, workers: int, fold_max: int, progress: Progress, ages: Ages = NO_AGES
) -> Report:
    """Return what is found of the commits asked for.

    `ages`: of the streams, where their limits and the time are known: what is gone of a younger one is a difference.

    Raises:
        BadRangeError: there are no such commits.
    """
    try:
        if ages.now_ns:
            await check_young(place.streams, ages, await _begun(place, asked))
        planned = await plan(place.streams, place.find, asked)
        await _scan_left_out(source, place, planned)
    except (HistoryError, HistoryGapError) as error:
        return Report(differences=[difference(0, error)])
    if workers > 1:
        report, chains = await _in_processes(source, place, planned, workers, fold_max, progress)
        if report.clean and not planned.part.last:
            await _check_end(place, asked, report)
    else:
        history = History(place.streams, source.reader(), fold_max=fold_max)
        report, chains = await verify_part(history, planned.part, progress)
    report.producers, report.versions = chains.finish(), chains.versions
    report.left_out = " and ".join(planned.left_out)
    report.unchecked += planned.unchecked
    return report


async def _begun(place: Opened, asked: Part) -> Commit | None:
    """Return the first commit of the generation that is asked for; None if older ones are asked for too."""
    head = await last_commit(place.streams.ledger)
    if head is None or asked.whole:
        return None
    first = await first_of_generation(place.streams.ledger, head)
    return first if not asked.first or asked.first >= first.version else None


async def _scan_left_out(source: Source, place: Opened, planned: Plan) -> None:
    """Check what can be checked of commits that cannot be decided again: a hole among them is no matter of age."""
    if planned.scanned is not None:
        subject, signed = ledger_subject(source.cluster), planned.part.checkpoints
        await scan_left_out(place.streams, planned.scanned, subject=subject, checkpoints=signed)


async def _check_end(place: Opened, asked: Part, report: Report) -> None:
    """Check the end of the history, which no part knows to be the end."""
    try:
        head = await last_commit(place.streams.ledger)
        await check_inputs(place.streams, head)
        await check_end(place.streams, head, asked.checkpoints)
    except (HistoryError, HistoryGapError) as error:
        report.differences.append(difference(report.last_version, error))


async def _in_processes(
    source: Source, place: Opened, planned: Plan, workers: int, fold_max: int, progress: Progress
) -> tuple[Report, ProducerChains]:
    loop = asyncio.get_running_loop()
    maker = History(place.streams, source.reader())
    parts: list[Segment] = []
    running: list[asyncio.Future[_Found]] = []
    broken: HistoryError | HistoryGapError | None = None
    # a fresh interpreter each: nothing of this one's loop or sockets is shared
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            async for segment in segments(maker, place.find, planned, workers * PARTS_PER_WORKER):
                parts.append(segment)
                running.append(loop.run_in_executor(pool, _verify, source, segment.part, fold_max))
        except (HistoryError, HistoryGapError) as error:  # where the states are made, before any part has come to it
            broken = error
        found: list[tuple[Report, ProducerChains]] = []
        for segment, result in zip(parts, running, strict=True):
            report, chains, sound = await result
            found.append((report, chains))
            if place.copy is not None:
                place.copy.sound |= sound
            progress(segment.part.last, planned.last)
    if not found:
        report, chains = Report(), ProducerChains()
    else:
        report, chains = join(parts, [report for report, _ in found]), found[0][1]
        for _, later in found[1:]:
            chains.join(later)
    if broken is not None and report.clean:
        if isinstance(broken, UnknownPolicyError):
            report.stopped = str(broken)
        else:
            report.differences.append(difference(0, broken))
    return report, chains


def _verify(source: Source, part: Part, fold_max: int) -> _Found:
    """Verify one part in a process of its own."""
    return asyncio.run(_verify_part(source, part, fold_max))


async def _verify_part(source: Source, part: Part, fold_max: int) -> _Found:
    async with opened(source) as place:
        report, chains = await verify_part(History(place.streams, source.reader(), fold_max=fold_max), part)
        return report, chains, place.copy.sound if place.copy is not None else set()

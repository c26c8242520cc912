"""`leaseway audit verify | export | import`: decide every commit again and compare; copies of history for auditors."""

import argparse
import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from adapters.clock import SystemClock
from adapters.keys import load_credentials
from adapters.log import bundle
from adapters.log.begun import check_generations
from adapters.log.checkpoints import Kept, dated_ahead, fingerprint, is_signed
from adapters.log.report import Difference, Report
from adapters.log.scan import NO_AGES, Ages
from adapters.log.travel import last_until
from adapters.log.verify import Part
from adapters.nats.layout import EVENTS_AGE_S, LEDGER_AGE_S
from adapters.times import Moment, utc
from domain.errors import BadConfigError, HistoryError, NotYetError, UnreachableError
from domain.events import Checkpoint
from domain.ports import Stream
from services.cli.audit_begun import beginners_of
from services.cli.audit_copies import (
    book_of,
    damages_of,
    export_copy,
    false_signature,
    import_copy,
    is_ours,
    newest_copy,
    unknown_signer,
)
from services.cli.audit_feed import check_feed
from services.cli.audit_report import rows_of, write
from services.cli.audit_source import Kind, Opened, Source, archived_checkpoints, opened
from services.cli.audit_workers import verified
from services.cli.moments import end_of
from services.cli.reach import Here, here
from services.cli.show import Waiting, note
from services.lifecycle import EXIT_FAILED, EXIT_OK

_ANY: Final = 1 << 30


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked; 1 if stored history is not what its inputs give."""
    place, waiting = here(parsed), Waiting()
    try:
        if parsed.action == "export":
            return export_copy(place, source_of(place, "stream", None), parsed.file, waiting, as_json=parsed.json)
        if parsed.action == "import":
            return import_copy(place, parsed.file, waiting, trusted=parsed.fingerprint, as_json=parsed.json)
        asked = Asked(
            begin=parsed.begin,
            end=parsed.end,
            whole=parsed.whole,
            from_snapshot=parsed.from_snapshot,
            workers=parsed.workers,
            fold_max=parsed.batch or _ANY,
            fingerprint=parsed.fingerprint,
        )
        report = asyncio.run(audit(place, waiting, asked, source_of(place, parsed.against, parsed.copy)))
    finally:
        waiting.done()
    tell(report, as_json=parsed.json)  # first: where a file cannot be written, the outcome is known all the same
    for path in parsed.report:
        write(report, path)
    return EXIT_OK if report.clean else EXIT_FAILED


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is verified, and how."""

    begin: Moment | None = None
    end: Moment | None = None
    whole: bool = False
    from_snapshot: bool = False
    workers: int = 1
    fold_max: int = _ANY
    fingerprint: str = ""


ALL: Final = Asked()


async def audit(place: Here, waiting: Waiting, asked: Asked = ALL, source: Source | None = None) -> Report:
    """Return what a verification finds; without a source it reads the bus."""
    using = source or source_of(place, None, None)
    kept, wrong = await asyncio.to_thread(_kept, place, using, asked.fingerprint)
    archived, silent = await _archived(using)
    trusted = asked.fingerprint or _own_key(using)
    believed, false = await asyncio.to_thread(_believed, [*kept, *archived], using.cluster, trusted)
    async with opened(using) as at:
        part = await _part(at, asked, believed)
        report = await verified(
            using,
            at,
            part,
            workers=asked.workers,
            fold_max=asked.fold_max,
            progress=lambda reached, last: waiting(f"audit: commit {reached} of {last}"),
            ages=_ages() if using.kind == "stream" else NO_AGES,
        )
        if at.copy is not None:  # only now: what was read for the verification is not read again
            wrong = [*(Difference(0, "copy", each) for each in await asyncio.to_thread(damages_of, at.copy)), *wrong]
        waiting("audit: comparing the feed")
        await check_feed(using, at, report, ranged=asked.begin is not None or asked.end is not None)
        await check_generations(at.streams.ledger, beginners_of(using, at), report, believed, whole=asked.whole)
    report.software, report.cluster, report.source = version("leaseway"), using.cluster, using.told
    report.differences[:0] = [*wrong, *false]
    _say_unchecked(report, using, believed, whole=asked.whole)
    report.unchecked += [*_who_made(place, using, asked.fingerprint), *dated_ahead(believed)]
    report.unchecked += silent
    return report


def _ages() -> Ages:
    """Return after how long a bus drops a message."""
    now_ns = SystemClock().wall_us() * 1000
    return Ages(events_ns=int(EVENTS_AGE_S * 1e9), ledger_ns=int(LEDGER_AGE_S * 1e9), now_ns=now_ns)


async def _archived(source: Source) -> tuple[list[Kept], list[str]]:
    """Return the checkpoints that ClickHouse has kept, and why there are none."""
    if source.kind == "copy":
        return [], []
    try:
        return await archived_checkpoints(source.projector_url), []
    except UnreachableError as error:
        return [], [f"checkpoints in ClickHouse: {error}"]


def source_of(place: Here, against: Kind | None, copy: Path | None) -> Source:
    """Return where to read, as asked or as this data directory has it."""
    key = place.config.data / "keys" / "operator.json"
    imported = sorted((place.config.data / "audit").glob("*.zip"))
    if (copy is None and against == "copy") or (against is None and copy is None and imported and not key.is_file()):
        copy = newest_copy(place.config.data, imported)
    if copy is not None:
        if against not in {None, "copy"}:
            raise BadConfigError(f"--against {against}: a copy is read with --copy alone")
        header = bundle.load(copy).header
        ours = key.is_file() and is_ours(header, load_credentials(key))
        return Source(
            kind="copy",
            cluster=header.cluster,
            copy=str(copy),
            key=str(key) if ours else "",
            relaxed=True,  # a copy does not say; who began a generation by itself is told
        )
    return Source(
        kind=against or "stream",
        cluster=place.config.cluster.name,
        key=str(place.operator_key()),
        bus_url=place.bus_url,
        projector_url=place.endpoints.projector,
        relaxed=place.config.bus.durability == "relaxed",
    )


def _own_key(source: Source) -> str:
    """Return the fingerprint of the master's key where this data directory knows it; empty: whoever signed is named."""
    public = load_credentials(Path(source.key)).master_public if source.key else ""
    return fingerprint(public) if public else ""


def _who_made(place: Here, source: Source, given: str) -> list[str]:
    """Return why nobody can tell who made the copy, if it is one."""
    if source.kind != "copy":
        return []
    trusted, ours, key = given or _own_key(source), "", place.config.data / "keys" / "operator.json"
    copy = bundle.load(Path(source.copy))
    if key.is_file():
        operator = load_credentials(key)
        ours = fingerprint(operator.master_public) if operator.cluster == copy.header.cluster else ""
    doubt = unknown_signer(copy, trusted, ours)
    return [doubt] if doubt else []


def _kept(place: Here, source: Source, trusted: str) -> tuple[list[Kept], list[Difference]]:
    """Return the checkpoints that are kept beside what is read, and what is wrong with them or with a copy's signature."""
    if source.kind != "copy":
        try:
            return book_of(place).read_all(), []
        except HistoryError as error:
            return [], [Difference(0, "checkpoint", str(error))]
    copy = bundle.load(Path(source.copy))
    return copy.checkpoints, [Difference(0, "copy", each) for each in false_signature(copy, trusted)]


def _believed(kept: list[Kept], cluster: str, trusted: str) -> tuple[list[Kept], list[Difference]]:
    """Return the checkpoints that hold against history, and what is wrong with the others."""
    believed, wrong, met = list[Kept](), list[Difference](), set[Checkpoint]()
    for each in kept:
        signed = each.checkpoint
        if signed in met:  # the data directory and ClickHouse keep the same ones
            continue
        met.add(signed)
        if not is_signed(signed):
            what = "its signature is not that of its key"
        elif signed.cluster != cluster:
            what = f"it is of cluster {signed.cluster[:80]!r}, not of {cluster!r}"
        elif trusted and fingerprint(signed.public) != trusted:
            what = f"signed by {fingerprint(signed.public)}, trusted is {trusted}"
        else:
            believed.append(each)
            continue
        detail = f"checkpoint of version {signed.version} in {each.source}: {what}"
        wrong.append(Difference(signed.version, "checkpoint", detail))
    return believed, wrong


def _say_unchecked(report: Report, source: Source, kept: list[Kept], *, whole: bool) -> None:
    if not source.key:
        report.unchecked.append(
            "MACs of facts: the cluster's secret is not here; which facts were forged is taken from the commits' own word"
        )
    older = [each.checkpoint.generation for each in kept if each.checkpoint.generation < report.generation]
    if older and not whole:
        names = ", ".join(sorted(set(older)))
        report.unchecked.append(
            f"{len(older)} signed checkpoints of older generations ({names}): `--whole` compares those whose commits are kept"
        )
    if not kept:
        report.unchecked.append("signed checkpoints: none are kept beside what was read")


async def _part(at: Opened, asked: Asked, checkpoints: list[Kept]) -> Part:
    """Return the versions that are meant, and the state to begin in where one was asked for."""
    ledger = at.streams.ledger
    first = last = 0
    end_ns = await end_of(at.streams, copied=at.copy is not None)
    if asked.begin is not None:
        number = asked.begin.number
        first = await last_until(ledger, asked.begin.stamp_ns(end_ns) - 1) + 1 if number is None else number
        if number is None and first > (await ledger.bounds()).last:
            raise BadConfigError(f"--from: nothing was stored since then; {await _stored(ledger)}")
    if asked.end is not None:
        number = asked.end.number
        last = await last_until(ledger, asked.end.stamp_ns(end_ns)) if number is None else number
        if not last:
            raise BadConfigError(f"--to: nothing was stored until then; {await _stored(ledger)}")
    if first and last and first > last:
        raise BadConfigError(f"{_why_none(asked, first, last, end_ns)}; {await _stored(ledger)}")
    snapshot = None
    if asked.from_snapshot:
        snapshot = await at.find(last or _ANY)
        if snapshot is None:
            raise NotYetError("--from-snapshot: there is no whole snapshot yet to begin at; leave it out")
    return Part(
        first=first,
        last=last,
        whole=asked.whole,
        snapshot=snapshot,
        checkpoints=checkpoints,
        signatures_hold=True,
    )


def _why_none(asked: Asked, first: int, last: int, end_ns: int) -> str:
    """Return why no version lies between two moments, the second of which is version `last`."""
    begin, end = asked.begin, asked.end
    if begin is not None and end is not None and begin.number is None and end.number is None:
        times = begin.stamp_ns(end_ns), end.stamp_ns(end_ns)
        if times[0] <= times[1]:
            return f"--from, --to: nothing was decided between {utc(times[0])} and {utc(times[1])}"
    return f"--from: must not be after --to, they are versions {first} and {last}"


async def _stored(ledger: Stream) -> str:
    """Return what there is to verify, in words."""
    bounds = await ledger.bounds()
    oldest, newest = await ledger.get(bounds.first), await ledger.last()
    if oldest is None or newest is None:
        return "no decision is stored yet"
    begun, ended = utc(oldest.stamp_ns), utc(newest.stamp_ns)
    return f"stored are versions {oldest.seq} to {newest.seq}, from {begun} to {ended}"


def tell(report: Report, *, as_json: bool) -> None:
    """Print `report`: one line for people and scripts alike, or all of it as JSON; then the place of each difference."""
    if as_json:
        print(msgspec.json.encode(rows_of(report)).decode())
    else:
        print(report.line())
    for difference in report.differences:
        where = f"version {difference.version}, " if difference.version else ""
        note(f"difference at {where}{difference.place}: {difference.detail}")
    for what in report.unchecked:
        note(f"not checked: {what}")

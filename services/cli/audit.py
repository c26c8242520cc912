"""`leaseway audit verify | export | import`: decide every commit again and compare; copies of history for auditors."""

import argparse
import asyncio
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from adapters.clock import SystemClock
from adapters.keys import Signer, load_credentials
from adapters.log import bundle
from adapters.log.checkpoints import CheckpointBook, Kept, fingerprint, is_signed
from adapters.log.report import Difference, Report
from adapters.log.scan import NO_AGES, Ages
from adapters.log.segments import version_at, vouched
from adapters.log.verify import Part
from adapters.nats.layout import EVENTS_AGE_S, LEDGER_AGE_S
from domain.errors import BadConfigError, HistoryError, UnreachableError
from domain.subjects import LEDGER
from services.cli.audit_arguments import Bound
from services.cli.audit_feed import check_feed
from services.cli.audit_report import rows_of, write
from services.cli.audit_source import Kind, Opened, Source, archived_checkpoints, opened
from services.cli.audit_workers import verified
from services.cli.reach import Here, here
from services.cli.show import Output, Waiting, note
from services.data_directory import make_data
from services.lifecycle import EXIT_FAILED, EXIT_OK

_ANY: Final = 1 << 30
_STATES_MAX: Final = 8
"""Stored states in a copy: where an audit of a part of it can begin, and processes their parts."""


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked; 1 if stored history is not what its inputs give."""
    place, waiting = here(parsed), Waiting()
    try:
        if parsed.action == "export":
            header = asyncio.run(_export(place, parsed.file, waiting))
            waiting.done()
            _tell_copy("export", header, parsed.file, as_json=parsed.json)
            return EXIT_OK
        if parsed.action == "import":
            return _import(place, parsed, waiting)
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
    for path in parsed.report:
        write(report, path)
    tell(report, as_json=parsed.json)
    return EXIT_OK if report.clean else EXIT_FAILED


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is verified, and how."""

    begin: Bound | None = None
    end: Bound | None = None
    whole: bool = False
    from_snapshot: bool = False
    workers: int = 1
    fold_max: int = _ANY
    fingerprint: str = ""


ALL: Final = Asked()


async def audit(place: Here, waiting: Waiting, asked: Asked = ALL, source: Source | None = None) -> Report:
    """Return what a verification finds; without a source it reads the bus."""
    using = source or source_of(place, None, None)
    kept, wrong = await asyncio.to_thread(_kept, place, using)
    archived, silent = await _archived(using)
    kept += archived
    async with opened(using) as at:
        part = await _part(at, asked, [each for each in kept if is_signed(each.checkpoint)])
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
            wrong = [*await asyncio.to_thread(_damaged, at.copy), *wrong]
        waiting("audit: comparing the feed")
        await check_feed(using, at, report, ranged=asked.begin is not None or asked.end is not None)
    report.software, report.cluster, report.source = version("leaseway"), using.cluster, using.told
    report.differences[:0] = [*wrong, *_unsigned(kept, asked.fingerprint)]
    _say_unchecked(report, using, kept)
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
        if not imported:
            raise BadConfigError(f"data directory {place.config.data}: holds no imported copy; `leaseway audit import`")
        copy = imported[-1]
    if copy is not None:
        if against not in {None, "copy"}:
            raise BadConfigError(f"audit verify --against {against}: a copy is read with --copy alone")
        cluster = bundle.load(copy).header.cluster
        ours = key.is_file() and load_credentials(key).cluster == cluster
        return Source(kind="copy", cluster=cluster, copy=str(copy), key=str(key) if ours else "")
    return Source(
        kind=against or "stream",
        cluster=place.config.cluster.name,
        key=str(place.operator_key()),
        bus_url=place.bus_url,
        projector_url=place.endpoints.projector,
    )


def _kept(place: Here, source: Source) -> tuple[list[Kept], list[Difference]]:
    """Return the checkpoints that are kept beside what is read, and what is wrong with them or with a copy's signature."""
    if source.kind != "copy":
        try:
            return _book(place).read_all(), []
        except HistoryError as error:
            return [], [Difference(0, "checkpoint", str(error))]
    copy = bundle.load(Path(source.copy))
    try:
        copy.signed_by()
    except BadConfigError as error:
        return copy.checkpoints, [Difference(0, "copy", str(error))]
    return copy.checkpoints, []


def _damaged(copy: bundle.Bundle) -> list[Difference]:
    """Return what of a copy is not as it was written."""
    return [
        Difference(0, f"{stream} {seq}" if seq else stream, "is not as it was exported") for stream, seq in copy.damaged
    ]


def _book(place: Here) -> CheckpointBook:
    return CheckpointBook(place.config.data / "checkpoints")


def _unsigned(kept: list[Kept], trusted: str) -> list[Difference]:
    """Return what is wrong with signatures: a key that is not the one trusted, or not the one that signed."""
    wrong = []
    for each in kept:
        signed = each.checkpoint
        if not is_signed(signed):
            detail = f"checkpoint of version {signed.version} in {each.source}: its signature is not that of its key"
        elif trusted and fingerprint(signed.public) != trusted:
            by = fingerprint(signed.public)
            detail = f"checkpoint of version {signed.version} in {each.source}: signed by {by}, trusted is {trusted}"
        else:
            continue
        wrong.append(Difference(signed.version, "checkpoint", detail))
    return wrong


def _say_unchecked(report: Report, source: Source, kept: list[Kept]) -> None:
    if not source.key:
        report.unchecked.append(
            "MACs of facts: the cluster's secret is not here; which facts were forged is taken from the commits' own word"
        )
    if not kept:
        report.unchecked.append("signed checkpoints: none are kept beside what was read")


async def _part(at: Opened, asked: Asked, checkpoints: list[Kept]) -> Part:
    """Return the versions that are meant, and the state to begin in where one was asked for."""
    ledger = at.streams.ledger
    first = last = 0
    if asked.begin is not None:
        number, moment = asked.begin
        first = number or await version_at(ledger, moment - 1) + 1
    if asked.end is not None:
        number, moment = asked.end
        last = number or await version_at(ledger, moment)
        if not last:
            raise BadConfigError("audit verify --to: nothing was stored until then")
    if first and last and first > last:
        raise BadConfigError(f"audit verify: --from must not be after --to, they are versions {first} and {last}")
    snapshot = None
    if asked.from_snapshot:
        snapshot = await at.find(last or _ANY)
        if snapshot is None:
            raise BadConfigError("audit verify --from-snapshot: there is no whole snapshot to begin at")
    return Part(first=first, last=last, whole=asked.whole, snapshot=snapshot, checkpoints=checkpoints)


# ---- copies ----------------------------------------------------------------------------------------------------------


async def _export(place: Here, path: Path, waiting: Waiting) -> bundle.Header:
    source = source_of(place, "stream", None)
    async with opened(source) as at:
        extra = bundle.Extra(
            software=version("leaseway"),
            states=await _states(at),
            checkpoints=await asyncio.to_thread(_book(place).read_all),
            signer=_signer(place),
        )
        try:
            return await bundle.export(
                at.streams,
                source.cluster,
                path,
                extra=extra,
                progress=lambda done, total: waiting(f"export: message {done} of {total}"),
            )
        except OSError as error:
            raise BadConfigError(f"audit export {path}: cannot be written: {error.strerror}") from None


def _signer(place: Here) -> Signer | None:
    """Return the master's key where this data directory has it."""
    path = place.config.data / "keys" / "master.json"
    return Signer(load_credentials(path).master_seed) if path.is_file() else None


async def _states(at: Opened) -> list[tuple[int, bytes]]:
    """Return stored states for which commits vouch, spread over the history, oldest first."""
    bounds = await at.streams.ledger.bounds()
    found: dict[int, bytes] = {}
    for number in range(1, _STATES_MAX + 1):
        upto = bounds.first - 1 + (bounds.last - bounds.first + 1) * number // _STATES_MAX
        state = await vouched(at.streams.ledger, at.find, upto, after=max(found, default=0))
        if state is not None:
            found[state[0]] = state[1]
    return sorted(found.items())


def _import(place: Here, parsed: argparse.Namespace, waiting: Waiting) -> int:
    """Check a copy and keep it in the data directory; 1 if it is not as it was exported."""
    copy = bundle.load(parsed.file)
    waiting("import: checking every message")
    wrong = [f"{stream} {seq}" if seq else stream for stream, seq in copy.damaged]
    signed_by = copy.signed_by()
    if parsed.fingerprint and signed_by != parsed.fingerprint:
        wrong.append(f"{bundle.MANIFEST}: signed by {signed_by or 'nobody'}, trusted is {parsed.fingerprint}")
    waiting.done()
    for each in wrong:
        note(f"not as it was exported: {each}")
    if wrong:
        return EXIT_FAILED
    folder = place.config.data / "audit"
    make_data(place.config.data)
    folder.mkdir(exist_ok=True, mode=0o700)
    held = copy.header.streams.get(LEDGER)
    kept = folder / f"{copy.header.cluster}-{held.last if held is not None else 0:012d}.zip"
    shutil.copyfile(parsed.file, kept)
    _tell_copy("import", copy.header, kept, as_json=parsed.json)
    return EXIT_OK


def _tell_copy(action: str, header: bundle.Header, path: Path, *, as_json: bool) -> None:
    count = sum(header.counts.values())
    digest, key = bundle.file_digest(path), fingerprint(header.public) if header.public else ""
    lines = [f"audit {action}: {count} messages of cluster {header.cluster} in {path}", f"SHA-256 {digest}"]
    lines.append(f"signed by {key}" if key else "signed by nobody: the master's key is not in this data directory")
    lines.append(f"verify it with `leaseway audit verify --copy {path}`")
    row: dict[str, Any] = {"file": str(path), "sha256": digest, "fingerprint": key, "counts": header.counts}
    Output(as_json=as_json).say("\n".join(lines), {**row, "cluster": header.cluster, "format": header.format})


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

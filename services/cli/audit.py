"""`leaseway audit verify | export`: decide every commit again and compare; a copy of history for an auditor elsewhere."""

import argparse
import asyncio
from pathlib import Path
from typing import Final

import msgspec

from adapters.keys import load_credentials
from adapters.log.bundle import Header, export, load
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.snapshots import Snapshots
from adapters.log.verify import Difference, Report, verify
from adapters.nats.connection import Bus
from domain.errors import BadConfigError
from domain.subjects import CONTROL, EVENTS, LEDGER, SNAPSHOTS
from services.cli.history import bus_of
from services.cli.reach import Here, here
from services.cli.show import Output, Waiting, note
from services.lifecycle import EXIT_FAILED, EXIT_OK

_ANY: Final = 1 << 30


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked; 1 if stored history is not what its inputs give."""
    place, waiting = here(parsed), Waiting()
    try:
        if parsed.action == "export":
            header = asyncio.run(_export(place, parsed.file, waiting))
            waiting.done()
            _tell_export(header, parsed)
            return EXIT_OK
        copy: Path | None = parsed.copy
        how = _How(whole=parsed.whole, fold_max=parsed.batch or _ANY, from_snapshot=parsed.from_snapshot)
        report = asyncio.run(audit(place, waiting, how) if copy is None else _audit_copy(place, copy, waiting, how))
    finally:
        waiting.done()
    tell(report, as_json=parsed.json)
    return EXIT_OK if report.clean else EXIT_FAILED


class _How(msgspec.Struct, frozen=True):
    """Where a verification begins, and in which pieces it reads."""

    whole: bool = False
    fold_max: int = _ANY
    from_snapshot: bool = False


async def audit(place: Here, waiting: Waiting, how: _How = _How()) -> Report:  # noqa: B008  # frozen
    """Return what a verification of the ledger finds."""
    async with bus_of(place) as bus:
        snapshot = None
        if how.from_snapshot:
            snapshot = await Snapshots(bus.stream(SNAPSHOTS), cluster=place.config.cluster.name).newest()
            if snapshot is None:
                raise BadConfigError("audit verify --from-snapshot: the bus holds no whole snapshot")
        return await _verify(place, _streams(bus), waiting, how, snapshot)


async def _audit_copy(place: Here, path: Path, waiting: Waiting, how: _How) -> Report:
    """Return what a verification of an exported copy finds; every damaged message is named by its place."""
    if how.from_snapshot:
        raise BadConfigError("audit verify --from-snapshot: a copy holds no snapshots; leave --from away")
    bundle = load(path)
    cluster = place.config.cluster.name
    if bundle.header.cluster != cluster:
        raise BadConfigError(f"audit bundle {path}: must be of cluster {cluster!r}, is of {bundle.header.cluster!r}")
    report = await _verify(place, bundle.streams, waiting, how)
    damaged = [Difference(0, f"{stream} {seq}", "its bytes are not those exported") for stream, seq in bundle.damaged]
    report.differences[:0] = damaged
    return report


async def _verify(
    place: Here, streams: Streams, waiting: Waiting, how: _How, snapshot: tuple[int, bytes] | None = None
) -> Report:
    reader = Reader(place.config.cluster.name, load_credentials(place.operator_key()).cluster_mac_secret)
    return await verify(
        streams,
        reader,
        whole=how.whole,
        snapshot=snapshot,
        fold_max=how.fold_max,
        progress=lambda version, last: waiting(f"audit: commit {version} of {last}"),
    )


async def _export(place: Here, path: Path, waiting: Waiting) -> Header:
    async with bus_of(place) as bus:
        try:
            return await export(
                _streams(bus),
                place.config.cluster.name,
                path,
                progress=lambda done, total: waiting(f"export: message {done} of {total}"),
            )
        except OSError as error:
            raise BadConfigError(f"audit export {path}: cannot be written: {error.strerror}") from None


def _streams(bus: Bus) -> Streams:
    return Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))


def _tell_export(header: Header, parsed: argparse.Namespace) -> None:
    count = sum(header.counts.values())
    text = (
        f"audit export: {count} messages in {parsed.file}; check them with `leaseway audit verify --from {parsed.file}`"
    )
    Output(as_json=parsed.json).say(text, {"file": str(parsed.file), **msgspec.to_builtins(header)})


def tell(report: Report, *, as_json: bool) -> None:
    """Print `report`: one line for people and scripts alike, or all of it as JSON; then the place of each difference."""
    if as_json:
        row = {**msgspec.to_builtins(report), "clean": report.clean, "line": report.line()}
        print(msgspec.json.encode(row).decode())
    else:
        print(report.line())
    for difference in report.differences:
        where = f"version {difference.version}, " if difference.version else ""
        note(f"difference at {where}{difference.place}: {difference.detail}")

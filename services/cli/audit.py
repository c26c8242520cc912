"""`leaseway audit verify | export`: decide every commit again and compare; a copy of history for an auditor elsewhere."""

import argparse
import asyncio
from pathlib import Path

import msgspec

from adapters.keys import load_credentials
from adapters.log.bundle import Header, export, load
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.verify import Difference, Report, verify
from adapters.nats.connection import Bus
from domain.errors import BadConfigError
from domain.subjects import CONTROL, EVENTS, LEDGER
from services.cli.history import bus_of
from services.cli.reach import Here, here
from services.cli.show import Output, Waiting, note
from services.lifecycle import EXIT_FAILED, EXIT_OK


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
        report = asyncio.run(audit(place, waiting) if copy is None else _audit_copy(place, copy, waiting))
    finally:
        waiting.done()
    tell(report, as_json=parsed.json)
    return EXIT_OK if report.clean else EXIT_FAILED


async def audit(place: Here, waiting: Waiting) -> Report:
    """Return what a verification of the whole ledger finds."""
    async with bus_of(place) as bus:
        return await _verify(place, _streams(bus), waiting)


async def _audit_copy(place: Here, path: Path, waiting: Waiting) -> Report:
    """Return what a verification of an exported copy finds; every damaged message is named by its place."""
    bundle = load(path)
    cluster = place.config.cluster.name
    if bundle.header.cluster != cluster:
        raise BadConfigError(f"audit bundle {path}: must be of cluster {cluster!r}, is of {bundle.header.cluster!r}")
    report = await _verify(place, bundle.streams, waiting)
    damaged = [Difference(0, f"{stream} {seq}", "its bytes are not those exported") for stream, seq in bundle.damaged]
    report.differences[:0] = damaged
    return report


async def _verify(place: Here, streams: Streams, waiting: Waiting) -> Report:
    reader = Reader(place.config.cluster.name, load_credentials(place.operator_key()).cluster_mac_secret)
    return await verify(streams, reader, progress=lambda version, last: waiting(f"audit: commit {version} of {last}"))


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

"""`leaseway audit verify`: decide every commit again from the stored facts and compare, bit for bit."""

import argparse
import asyncio

import msgspec

from adapters.keys import load_credentials
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.verify import Report, verify
from domain.subjects import CONTROL, EVENTS, LEDGER
from services.cli.history import bus_of
from services.cli.reach import Here, here
from services.cli.show import Waiting, note
from services.lifecycle import EXIT_FAILED, EXIT_OK


def run(parsed: argparse.Namespace) -> int:
    """Print the report; 1 if stored history is not what its inputs give."""
    waiting = Waiting()
    try:
        report = asyncio.run(audit(here(parsed), waiting))
    finally:
        waiting.done()
    tell(report, as_json=parsed.json)
    return EXIT_OK if report.clean else EXIT_FAILED


async def audit(place: Here, waiting: Waiting) -> Report:
    """Return what a verification of the whole ledger finds."""
    operator = load_credentials(place.operator_key())
    async with bus_of(place) as bus:
        streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))
        reader = Reader(place.config.cluster.name, operator.cluster_mac_secret)
        return await verify(
            streams, reader, progress=lambda version, last: waiting(f"audit: commit {version} of {last}")
        )


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

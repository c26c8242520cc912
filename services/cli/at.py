"""`leaseway at`: the state of the cluster at a version or a time, from the streams or from an exported copy."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from adapters.keys import load_credentials
from adapters.log.bundle import load
from adapters.log.travel import NothingThereError
from adapters.nats.eventsourcing.grant_ledger import GrantLedger
from adapters.times import UNIX_MIN, Moment
from domain.errors import UnreachableError
from projections.why.cluster import ClusterAt
from services.asking import error_of
from services.cli.audit import source_of
from services.cli.audit_copies import require_whole
from services.cli.history import bus_of
from services.cli.moments import end_of, now_ns
from services.cli.reach import Here, fetch, here
from services.cli.show import Output, Waiting
from services.cli.why import streamed
from services.lifecycle import EXIT_OK
from services.past.at import Streamed, cluster_then
from services.past.ledger import through_repository
from services.texts.at import lines_of

_AT: Final = "/admin/v1/at"


def run(parsed: argparse.Namespace) -> int:
    """Print the state."""
    place, waiting = here(parsed), Waiting()
    waiting("folding history up to that moment")
    try:
        then = asyncio.run(_then(place, parsed.copy, parsed.moment, parsed.only))
    finally:
        waiting.done()
    out = Output(as_json=parsed.json)
    row = msgspec.to_builtins(then)
    if out.as_json:
        out.line(row)
    else:
        for line in lines_of(then):
            out.say(line, row)
    return EXIT_OK


async def _then(place: Here, copy: Path | None, moment: Moment, only: str) -> ClusterAt:
    if copy is not None:
        of = _copied(place, copy)
        return await cluster_then(of, moment, end_ns=await end_of(of.streams, copied=True), only=only)
    end_ns = now_ns()
    try:
        async with bus_of(place) as bus, _ledger_of(place) as ledger:
            of = msgspec.structs.replace(streamed(place, bus), fold=through_repository(ledger))
            end_ns = await end_of(of.streams, copied=False)
            return await cluster_then(of, moment, end_ns=end_ns, only=only)
    except NothingThereError as error:
        return await _from_clickhouse(place, moment, end_ns, only, error)


async def _from_clickhouse(place: Here, moment: Moment, end_ns: int, only: str, missed: NothingThereError) -> ClusterAt:
    """Return the state as the projector folds it from what ClickHouse has kept, where the bus no longer reaches back.

    Raises:
        NothingThereError: `missed`, if the projector has nothing as old either, or does not answer.
    """
    query = {"only": only} if only else {}
    if moment.number is not None:
        query["version"] = str(moment.number)
    else:
        whole_s, rest_ns = divmod(moment.stamp_ns(end_ns), 1_000_000_000)
        if whole_s < UNIX_MIN:  # which is no time to the projector, and before there was any cluster
            raise missed
        query["time"] = f"{whole_s}.{rest_ns:09d}"
    try:
        status, said = await fetch(place, "projector", place.endpoints.projector, _AT, query)
    except UnreachableError as error:
        raise NothingThereError(f"{missed}; of ClickHouse nothing is known: {error}") from None
    if status != 200:
        why = error_of(said)[1][:600]
        # what it does not find either it says with the reasons of both
        raise NothingThereError(why if status == 404 else f"{missed}; of ClickHouse nothing is known: {why}")
    return msgspec.convert(said, ClusterAt)


@asynccontextmanager
async def _ledger_of(place: Here) -> AsyncIterator[GrantLedger]:
    """Yield the ledger as the eventsourcing library reads it, with the operator's key."""
    credentials = load_credentials(place.operator_key())
    ledger = await asyncio.to_thread(GrantLedger, place.bus_url, credentials, place.config.cluster.name)
    try:
        yield ledger
    finally:
        await asyncio.to_thread(ledger.close)


def _copied(place: Here, copy: Path) -> Streamed:
    """Return the streams of a copy, of whatever cluster; whose secret is not here is read as an audit reads it."""
    held = load(copy)
    require_whole(held)
    return Streamed(held.streams, source_of(place, None, copy).reader(), None, source="a copy")

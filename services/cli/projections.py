"""`leaseway projections`: how far the tables are, their schema, and making their rows again."""

import argparse
import asyncio
import sys
from typing import Any, Final

import aiohttp

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.rollups import view_of
from domain.errors import BadConfigError, UnreachableError
from projections.rollups import ROLLUPS
from projections.tables import MIGRATIONS
from services.cli.reach import Here, get, here
from services.cli.show import Output, duration, note
from services.lifecycle import EXIT_FAILED, EXIT_OK

_STATUS: Final = "/admin/v1/projections"
_POLL_S: Final = 0.5
_BUSY: Final = frozenset({"asked", "running", "changing_places"})


def run(parsed: argparse.Namespace) -> int:
    """Do what `leaseway projections ACTION` asks for."""
    if parsed.projections_command == "schema":
        return _schema(parsed)
    place, out = here(parsed), Output(as_json=parsed.json)
    if parsed.projections_command == "rebuild":
        return asyncio.run(_rebuild(place, out, parsed.source))
    return asyncio.run(_status(place, out))


def schema(cluster: str) -> str:
    """Return every statement that makes the tables, for one server or for `cluster`."""
    statements = [statement for step in MIGRATIONS for statement in step.statements]
    statements += [view_of(rollup) for rollup in ROLLUPS]
    return "".join(f"{on_cluster(statement, cluster).rstrip()};\n\n" for statement in statements)


def _schema(parsed: argparse.Namespace) -> int:
    if parsed.cluster and not all(letter.isalnum() or letter in "-_" for letter in parsed.cluster):
        raise BadConfigError(f"--cluster: must be letters, digits, - and _, got {parsed.cluster!r}")
    sys.stdout.write(schema(parsed.cluster))
    return EXIT_OK


async def _status(place: Here, out: Output) -> int:
    told: dict[str, Any] = await get(place, "projector", place.endpoints.projector, _STATUS)
    if out.as_json:
        out.line(told)
        return EXIT_OK
    streams = {"stream": "stream", "epoch": "life", "position": "position", "lag": "lag", "behind_us": "behind"}
    out.rows("streams", told["streams"], streams | {"error": "error"})
    tables = {
        "name": "table",
        "rows": "rows",
        "bytes": "bytes",
        "parts": "parts",
        "first_day": "from",
        "last_day": "to",
    }
    out.rows("tables", told["tables"], tables)
    out.rows("migrations", told["migrations"], {"number": "number", "name": "name", "applied": "applied"})
    counted, rebuild = told["rollups"], told["rebuild"]
    out.say(f"counts by minute: compared {counted['looks']} times, {counted['mended']} days counted again", counted)
    out.say(f"rebuild: {_told(rebuild)}", rebuild)
    return EXIT_OK


async def _rebuild(place: Here, out: Output, source: str) -> int:
    url = place.endpoints.projector
    await _ask(place, url, source)
    while True:
        told: dict[str, Any] = await get(place, "projector", url, _STATUS)
        rebuild = told["rebuild"]
        if rebuild["state"] not in _BUSY:
            break
        if not out.as_json:
            note(_told(rebuild))
        await asyncio.sleep(_POLL_S)
    out.say(f"rebuild: {_told(rebuild)}", rebuild)
    return EXIT_OK if rebuild["state"] == "done" else EXIT_FAILED


async def _ask(place: Here, url: str, source: str) -> None:
    """Begin a rebuild, or look on at the one that is under way."""
    headers = {"Content-Type": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
            session.post(f"{url}{_STATUS}/rebuild", params={"from": source}, headers=headers) as answer,
        ):
            if answer.status == 409:
                note("a rebuild is under way already; looking on")
            elif answer.status != 200:
                body = await answer.json()
                raise UnreachableError(f"projector {url}: {body['error']['message']}")
    except (aiohttp.ClientError, TimeoutError, OSError):
        raise UnreachableError(f"projector {url}: cannot be reached; {place.start_hint()}") from None


def _told(rebuild: dict[str, Any]) -> str:
    if rebuild["state"] == "never":
        return "never since the start of the projector"
    text = f"{rebuild['state'].replace('_', ' ')}, {rebuild['messages']} of {rebuild['of']} messages from {rebuild['source']}"
    if rebuild["state"] == "done":
        text += f", in {duration(rebuild['took_us'])}; writing waited {duration(rebuild['waited_us'])}"
    return f"{text}: {rebuild['error']}" if rebuild["error"] else text

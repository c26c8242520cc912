"""`leaseway decisions`: the decision log, with every number behind each row."""

import argparse
import asyncio
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from domain.errors import BadConfigError, UnreachableError
from projections.decision_log import KINDS
from services.cli.reach import Here, get, here
from services.cli.show import Output, Row, duration, note
from services.lifecycle import EXIT_OK

_POLL_S: Final = 0.5
_TABLE_CHARS_MIN: Final = 120
_COLUMNS: Final = {
    "at": "at", "kind": "kind", "pair": "owner > helper", "why": "outcome, reason", "slots": "slots", "held": "held",
    "price": "job (source)", "gain": "gain", "drain": "drain alone > lent", "request": "request",
}  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    """Print rows of the decision log in order of time; with `--follow` go on until Ctrl-C."""
    if parsed.kind and parsed.kind not in KINDS:
        raise BadConfigError(f"--kind: must be one of {', '.join(KINDS)}, got {parsed.kind!r}")
    query = {name: getattr(parsed, name) for name in ("owner", "helper", "kind") if getattr(parsed, name)}
    place, out = here(parsed), Output(as_json=parsed.json)
    asyncio.run(_show(place, out, {**query, "limit": str(parsed.limit)}, follow=parsed.follow))
    return EXIT_OK


async def _show(place: Here, out: Output, query: dict[str, str], *, follow: bool) -> None:
    answer = await _page(place, query)
    _print(out, answer["decisions"])
    quiet = False
    while follow:
        await asyncio.sleep(_POLL_S)
        try:
            answer = await _page(place, {**query, "limit": "1000", "after": answer["next"]})
        except UnreachableError as error:
            if not quiet:
                note(f"{error}; going on when it is back")
            quiet = True
            continue
        quiet = False
        if answer["decisions"]:
            _print(out, answer["decisions"])


async def _page(place: Here, query: dict[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = await get(place, "projector", place.endpoints.projector, "/v1/decisions", query)
    return answer


def _print(out: Output, rows: Sequence[Row]) -> None:
    if out.as_json:
        out.rows("Decisions", rows, _COLUMNS)
        return
    shown = [told(row) for row in rows]
    if shown and shutil.get_terminal_size().columns < _TABLE_CHARS_MIN:
        for row in shown:
            out.say(sentence(row), row)
    else:
        out.rows("Decisions", shown, _COLUMNS, none="none yet")


def sentence(shown: Row) -> str:
    """Return a row as one line for a terminal that is too narrow for the table: only what the row has, named."""
    named = (
        ("slots", "slots"), ("held", "held"), ("price", "job"), ("gain", "gain"), ("drain", "drain"), ("request", "request"),
    )  # fmt: skip
    numbers = ", ".join(f"{name} {shown[key]}" for key, name in named if shown[key] not in ("", None))
    head = " ".join(str(shown[key]) for key in ("at", "kind", "pair", "why") if shown[key])
    return f"{head}: {numbers}" if numbers else head


def told(row: Row) -> Row:
    """Return the columns that a person sees of a row."""
    at = datetime.fromtimestamp(row["at_ns"] / 1e9, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    pair = f"{row['owner']} > {row['helper']}" if row["owner"] and row["helper"] else row["owner"] or row["helper"]
    return {
        "at": at,
        "kind": row["kind"],
        "pair": pair,
        "why": " ".join(filter(None, (row["outcome"], row["reason"]))),
        "slots": row["slots"] or "",
        "held": row["held"] or "",
        "price": f"{duration(row['job_us'])} ({row['source']})" if row["job_us"] > 0 else "",
        "gain": duration(row["gain_us"]) if row["gain_us"] > 0 else "",
        "drain": f"{duration(row['drain_us'])} > {duration(row['lent_drain_us'])}" if row["drain_us"] >= 0 else "",
        "request": row["request"][-8:],
    }

"""`leaseway decisions`: the decision log, each row with a sentence that says every number behind it."""

import argparse
import asyncio
from typing import Final

from adapters.times import utc
from domain.errors import BadConfigError
from projections.decision_log import KINDS
from services.cli.reach import here
from services.cli.rows import printer, show
from services.cli.show import Output, duration
from services.lifecycle import EXIT_OK
from services.texts.plain import Row, printable
from services.texts.sentences import said

_FILTERS: Final = ("owner", "helper", "kind", "reason", "outcome", "link", "request")


def run(parsed: argparse.Namespace) -> int:
    """Print rows of the decision log in order of time; with `--follow` go on until Ctrl-C."""
    if parsed.kind and parsed.kind not in KINDS:
        raise BadConfigError(f"--kind: must be one of {', '.join(KINDS)}, got {parsed.kind!r}")
    if parsed.fold and parsed.follow:
        raise BadConfigError("--fold and --follow exclude each other: a run that goes on has no last line")
    query = {name: getattr(parsed, name) for name in _FILTERS if getattr(parsed, name)}
    if parsed.fold:
        query["folded"] = "true"
    place, out = here(parsed), Output(as_json=parsed.json)

    shown = printer(out, "decisions", line_of, {name: query[name] for name in _FILTERS if name in query})
    query["limit"] = str(parsed.limit)
    asyncio.run(show(place, "decisions", query, shown, follow=parsed.follow))
    return EXIT_OK


def line_of(row: Row) -> str:
    """Return a row as one line: when, what kind, who, and the sentence; of a row about a request also the end of its id."""
    pair = " > ".join(filter(None, (row["owner"], row["helper"])))
    request = f"  [{row['request'][-8:]}]" if row["request"] else ""
    run = f"  ({row['rows']} times in {_span(row)})" if row.get("rows", 1) > 1 else ""
    return printable(f"{utc(row['at_ns'])} {row['kind']:<15} {pair:<16} {said(row)}{request}{run}")


def _span(row: Row) -> str:
    return duration((row["at_ns"] - row["first_at_ns"]) // 1000)

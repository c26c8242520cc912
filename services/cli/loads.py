"""`leaseway loads`: what nodes loaded, for whom, how long it took, and what became of the models that had to leave."""

import argparse
import asyncio
from typing import Final

from adapters.times import utc
from domain.errors import BadConfigError
from projections.loads import KINDS
from services.cli.reach import here
from services.cli.rows import printer, show
from services.cli.show import Output
from services.lifecycle import EXIT_OK
from services.texts.plain import Row, printable
from services.texts.sentences import loaded

_FILTERS: Final = ("node", "model", "kind")


def run(parsed: argparse.Namespace) -> int:
    """Print rows of `loads` in order of time; with `--follow` go on until Ctrl-C."""
    if parsed.kind and parsed.kind not in KINDS:
        raise BadConfigError(f"--kind: must be one of {', '.join(KINDS)}, got {parsed.kind!r}")
    query = {name: getattr(parsed, name) for name in _FILTERS if getattr(parsed, name)}
    place, out = here(parsed), Output(as_json=parsed.json)

    shown = printer(out, "loads", line_of, {name: query[name] for name in _FILTERS if name in query})
    query["limit"] = str(parsed.limit)
    asyncio.run(show(place, "loads", query, shown, follow=parsed.follow))
    return EXIT_OK


def line_of(row: Row) -> str:
    """Return a row as one line: when, where, and the sentence."""
    return printable(f"{utc(row['at_ns'])} {row['node']:<12} {loaded(row)}")

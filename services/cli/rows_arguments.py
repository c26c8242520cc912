"""The commands that read rows of the projector on the command line. The parser brings its own way to add a command."""

import argparse
from collections.abc import Callable
from typing import Any, Final

from services.cli.moments import TIMES, a_time_as_said
from services.texts.telemetry import QUESTIONS

_DECISIONS: Final = (
    "leaseway decisions --limit 50",
    "leaseway decisions --owner studio --follow",
    "leaseway decisions --kind plan --reason cost_rejected --fold",
    "leaseway decisions --request req_0123456789abcdef0123456789abcdef",
)
_LOADS: Final = ("leaseway loads", "leaseway loads --node attic --follow")
_TELEMETRY: Final = (
    "leaseway telemetry",
    "leaseway telemetry loads --since 1d --step 3600",
    "leaseway telemetry helpers --node attic --json",
    "leaseway telemetry idle --all",
)
_JSON: Final = "one JSON object a line (also when the output is piped)"


def add_rows(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands through the parser's own `command`."""
    about = "list the newest decisions with every number behind them"
    decisions = command(add, "decisions", "decisions", about, examples=_DECISIONS)
    for name, place, what in (
        ("owner", "NODE", "only those about this owner"),
        ("helper", "NODE", "only those about this helper"),
        ("kind", "KIND", "only this kind of row (docs/reference/reasons.md)"),
        ("reason", "CODE", "only those with this reason (docs/reference/reasons.md)"),
        ("outcome", "WORD", "only those with this outcome (granted, probe, skipped, left_out; a state)"),
        ("link", "ID", "only those about this link (`leaseway links list`)"),
        ("request", "ID", "only those about this request: where it was lent, what came of it"),
    ):
        decisions.add_argument(f"--{name}", default="", metavar=place, help=what)
    decisions.add_argument("--fold", action="store_true", help="show rows that say the same again and again as one")
    _ending(decisions)
    loads = command(add, "loads", "loads", "list what nodes loaded, for whom, and what had to leave", examples=_LOADS)
    loads.add_argument("--node", default="", metavar="NODE", help="only this node's")
    loads.add_argument("--model", default="", metavar="MODEL", help="only those of this model")
    loads.add_argument("--kind", default="", metavar="KIND", help="only this kind of row (docs/reference/tables.md)")
    _ending(loads)


def add_telemetry(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `telemetry` through the parser's own `command`."""
    about = "show what the cluster did over a window, step by step"
    more = (
        "QUESTION is one of:\n" + "\n".join(f"  {name:<9} {what}" for name, what in QUESTIONS.items()) + f"\n\n{TIMES}"
    )
    telemetry = command(add, "telemetry", "telemetry", about, examples=_TELEMETRY, more=more)
    telemetry.add_argument(
        "question",
        nargs="?",
        default="savings",
        choices=tuple(QUESTIONS),
        metavar="QUESTION",
        help="what to show, see above (default: %(default)s)",
    )
    for name, what in (("since", "begin (default: 1h before the end)"), ("until", "end (default: now)")):
        telemetry.add_argument(f"--{name}", type=a_time_as_said, metavar="TIME", help=what)
    for name, what in (("node", "only what is about this node"), ("model", "only what is about this model")):
        telemetry.add_argument(f"--{name}", default="", metavar=name.upper(), help=what)
    telemetry.add_argument("--step", type=int, metavar="S", help="seconds of a step, whole minutes (default: fitting)")
    telemetry.add_argument(
        "--all",
        action="store_true",
        help="idle: each step, also where nothing is known; savings: also what is counted elsewhere",
    )
    telemetry.add_argument("--json", action="store_true", help=_JSON)


def add_projections(group: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the actions of `projections` through the parser's own `command`."""
    about = "say how far the tables in ClickHouse are, how large, and of which schema"
    status = command(group, "status", "projections", about, examples=("leaseway projections status",))
    status.add_argument("--json", action="store_true", help=_JSON)
    about = "make all rows again beside the live ones, and let them take their places"
    rebuild = command(
        group,
        "rebuild",
        "projections",
        about,
        examples=("leaseway projections rebuild", "leaseway projections rebuild --from stream"),
        more="Questions are answered and new rows come in all the while. From the archive, the table `events` that holds each\n"
        "message as it was stored, everything else is made again; from the streams `events` is too, as far as they reach back.",
    )
    rebuild.add_argument(
        "--from",
        dest="source",
        default="archive",
        choices=("archive", "stream"),
        help="what to make rows from (default: %(default)s)",
    )
    rebuild.add_argument("--json", action="store_true", help=_JSON)
    about = "print the statements that make the tables"
    schema = command(
        group,
        "schema",
        "projections",
        about,
        examples=("leaseway projections schema", "leaseway projections schema --cluster main"),
        more="With --cluster as they run on that cluster of ClickHouse servers: one shard, every table replicated.",
        data=False,
    )
    schema.add_argument("--cluster", default="", metavar="NAME", help="name that the servers know their cluster by")


def _ending(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_rows, default=20, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument("--follow", action="store_true", help="go on with new ones as they come")
    parser.add_argument("--json", action="store_true", help=_JSON)


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to 1000, got {text!r}")
    return int(text)

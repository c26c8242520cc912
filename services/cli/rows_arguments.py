"""The commands that read rows of the projector on the command line. The parser brings its own way to add a command."""

import argparse
from collections.abc import Callable
from typing import Any, Final

_DECISIONS: Final = (
    "leaseway decisions --limit 50",
    "leaseway decisions --owner studio --follow",
    "leaseway decisions --kind plan --reason cost_rejected --fold",
    "leaseway decisions --request req_0123456789abcdef0123456789abcdef",
)
_LOADS: Final = ("leaseway loads", "leaseway loads --node attic --follow")
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


def _ending(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_rows, default=20, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument("--follow", action="store_true", help="go on with new ones as they come")
    parser.add_argument("--json", action="store_true", help=_JSON)


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to 1000, got {text!r}")
    return int(text)

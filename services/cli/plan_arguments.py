"""The command `leaseway plan` on the command line. The parser brings its own way to add a command."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.cli.moments import TIMES, a_moment

_ABOUT: Final = "say what a second machine would have brought on traffic that came"
_MORE: Final = f"""\
Runs the traffic twice in simulation: on its owner alone, and with one more machine that it may lend to, under the
product's own rule. The traffic is what this cluster served (--from-history), or a trace of yours (--trace).

How fast the owner is comes from measured service times: from the history, from a column of the trace, or from the
tokens a second that you state. How fast the machine is you say, or name a node of the history that is like it.

{TIMES}"""
_EXAMPLES: Final = (
    "leaseway plan --from-history 7d --helper-speed 2",
    "leaseway plan --from-history 7d --owner studio --model chat --like attic --load-if-unloaded",
    "leaseway plan --trace week.csv --helper-speed 1.5 --load-s 20 --load-if-unloaded --html plan.html",
    "leaseway plan --trace week.jsonl --read-per-s 900 --write-per-s 30 --where model=chat --helper-speed 2",
)


def add_plan(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command through the parser's own `command`."""
    parser = command(add, "plan", "plan", _ABOUT, examples=_EXAMPLES, more=_MORE)
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--from-history", type=a_moment(), metavar="TIME", help="what was served since then: 7d, 2026-11-29"
    )
    traffic.add_argument(
        "--trace", type=Path, metavar="FILE", help="CSV or JSONL (docs/reference/scenarios.md), perhaps .gz"
    )
    traffic.add_argument("--owner", default="", metavar="NODE", help="whose requests (default: the only one there is)")
    traffic.add_argument("--model", default="", metavar="MODEL", help="of which model (default: the only one there is)")
    traffic.add_argument(
        "--where",
        action="append",
        type=_equation,
        default=[],
        metavar="COLUMN=VALUE",
        help="only such rows of the trace",
    )
    traffic.add_argument(
        "--seconds-column",
        default="",
        metavar="COLUMN",
        help="measured seconds of service in the trace (default: service_s)",
    )
    traffic.add_argument("--read-per-s", type=_positive, default=0.0, metavar="N", help="prompt tokens a second")
    traffic.add_argument("--write-per-s", type=_positive, default=0.0, metavar="N", help="answer tokens a second")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--helper-speed", type=_positive, default=0.0, metavar="X", help="times the owner's own speed")
    machine.add_argument("--like", default="", metavar="NODE", help="as fast as this node was, by the history")
    machine.add_argument(
        "--load-if-unloaded", action="store_true", help="it holds another model, and may load this one to help"
    )
    machine.add_argument(
        "--load-s", type=_positive, default=0.0, metavar="S", help="seconds to load it (default: as --like NODE did)"
    )
    parser.add_argument("--jobs", type=_jobs, default=0, metavar="N", help="processes to run in (default: one a core)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the answer to this file")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a report with plots of the busiest time")


def _equation(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not (column and sign):
        raise argparse.ArgumentTypeError(f"must be COLUMN=VALUE, got {text!r}")
    return column, value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to 256, got {text!r}")
    return int(text)

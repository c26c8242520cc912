"""The command `leaseway simulate` on the command line. The parser brings its own way to add a command."""

import argparse
import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_ABOUT: Final = "compare lending policies under a virtual clock, on shipped scenarios or your own"
_MORE: Final = """\
Runs a cluster that exists only as a seeded simulation: nodes with speeds and load times, bursts or recorded arrivals,
wrong estimates, crashes. Nothing is started, no port is used, and a seed gives the same run on every machine.

The drain ratio is the time until the last answer, divided by what a clairvoyant scheduler could do: 1 is perfect.

suites: drain (21 scenarios), grid (180 bursts), fallback (helpers of unknown speed), errors (wrong estimates),
        faults (crashes, hangs, flapping, black holes, of owners and helpers)
policies: none, round_robin, jsq, power_of_two, least_work, ect, steal, seed, seed_single, seed_probe, seed_multi,
          water, water_pending, and ours: the product's own master and nodes, in the scenarios that they can run"""
_EXAMPLES: Final = (
    "leaseway simulate --suite drain --policies none,ect,seed,ours",
    "leaseway simulate --scenario b_b50_x4_L30 --seeds 1000 --html run.html",
    "leaseway simulate --scenario mine.toml --policies none,ours --seeds 0-9 --json out.json",
)
_SUITES: Final = ("drain", "grid", "fallback", "errors", "faults")
_SEEDS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_SEEDS_MAX = 100_000


def add_simulate(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command through the parser's own `command`."""
    parser = command(add, "simulate", "simulate", _ABOUT, examples=_EXAMPLES, more=_MORE, data=False)
    parser.add_argument(
        "--suite", type=_suite, metavar="NAME", help=f"a shipped set of scenarios: {', '.join(_SUITES)}"
    )
    parser.add_argument(
        "--scenario",
        action="append",
        default=[],
        metavar="FILE",
        help="a scenario file (docs/reference/scenarios.md) or the name of a shipped one; may be given again",
    )
    parser.add_argument(
        "--policies",
        type=_names,
        default=("none", "seed", "ours"),
        metavar="A,B",
        help="policies to compare (default: none,seed,ours)",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        metavar="A-B",
        help="seeds to run: 1000-1019, or 1,2,7 (default: the suite's own; for --scenario 1000-1019)",
    )
    parser.add_argument("--jobs", type=_jobs, default=0, metavar="N", help="processes to run in (default: one a core)")
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="write the figures of every policy and scenario to this file"
    )
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a report with plots over time to this file")


def _suite(text: str) -> str:
    if text not in _SUITES:
        near = difflib.get_close_matches(text, _SUITES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(_SUITES)}, got {text!r}{hint}")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError("must name at least one policy")
    return names


def seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that `text` names: numbers and ranges, both ends included, separated by commas."""
    found: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"must be numbers or ranges such as 1000-1019, got {part!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _SEEDS_MAX:
            raise argparse.ArgumentTypeError(f"must rise, by at most {_SEEDS_MAX}, got {part!r}")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to 256, got {text!r}")
    return int(text)

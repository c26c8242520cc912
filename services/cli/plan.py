"""`leaseway plan`: what a second machine would have brought on traffic that came."""

import argparse
import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from domain.errors import BadConfigError
from services.cli.moments import now_ns
from services.cli.plan_history import History, Whose, load_s_of, requests_since
from services.cli.reach import here
from services.cli.show import Waiting, note
from services.cli.simulate import check_writable, progress
from services.lifecycle import EXIT_OK
from services.simulator.plan import Answer, answer
from services.simulator.plan_parts import Candidate
from services.simulator.plan_report import HEADINGS, basis, plan_report, remarks, rows
from services.simulator.plan_run import run_plan
from services.simulator.plan_traffic import Costs, Traffic, of_history, of_trace, own_fit, speed_of
from services.simulator.traffic import find_trace, read_trace
from services.texts.plain import printable

_PIPED_WIDTH = 160
_MEASURED_COLUMN = "service_s"


class _Question(NamedTuple):
    traffic: Traffic
    candidate: Candidate


def run(parsed: argparse.Namespace) -> int:
    """Take the traffic, run it with and without the machine, print the answer, write the files."""
    _check(parsed)
    for path in (parsed.json, parsed.html):
        check_writable(path)
    question = asyncio.run(_question(parsed))
    with progress() as step:
        runs = run_plan(
            question.traffic.requests,
            question.candidate,
            jobs=parsed.jobs or os.cpu_count() or 1,
            curves=parsed.html is not None,
            step=step,
        )
    said = answer(version("leaseway"), question.traffic, question.candidate, runs)
    _print(said)
    if parsed.json is not None:
        parsed.json.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n")
        note(f"answer: {parsed.json}")
    if parsed.html is not None:
        parsed.html.write_text(plan_report(said, runs))
        note(f"report: {parsed.html}")
    return EXIT_OK


def _check(parsed: argparse.Namespace) -> None:
    """Raise BadConfigError where two things that are said exclude or need each other."""
    for broken, rule in (
        (bool(parsed.trace) == (parsed.from_history is not None), "say either --from-history or --trace"),
        (bool(parsed.like) == bool(parsed.helper_speed), "say either --helper-speed or --like"),
        (parsed.like and parsed.trace, "--like needs --from-history: a trace does not say how fast a node was"),
        (parsed.load_s and not parsed.load_if_unloaded, "--load-s needs --load-if-unloaded: else it has the model in"),
        (
            parsed.load_if_unloaded and not (parsed.load_s or parsed.like),
            "--load-if-unloaded needs --load-s, or --like a node whose loads were measured",
        ),
        (bool(parsed.read_per_s) != bool(parsed.write_per_s), "--read-per-s and --write-per-s must be given together"),
        (parsed.seconds_column and parsed.read_per_s, "--seconds-column and --read-per-s exclude each other"),
        (
            parsed.from_history is not None and (parsed.where or parsed.seconds_column or parsed.read_per_s),
            "--where, --seconds-column and --read-per-s are about a --trace",
        ),
    ):
        if broken:
            raise BadConfigError(f"{rule} (see `leaseway plan --help`)")


async def _question(parsed: argparse.Namespace) -> _Question:
    if parsed.trace:
        return _Question(_of_trace(parsed), Candidate(speed=parsed.helper_speed, load_s=parsed.load_s))
    place, waiting = here(parsed), Waiting()
    since_ns = parsed.from_history.stamp_ns(now_ns())
    try:
        history = await requests_since(place, since_ns, waiting)
        whose, mine = history.of(Whose(parsed.owner, parsed.model))
        traffic = of_history(mine, str(whose))
        load_s = parsed.load_s
        if parsed.load_if_unloaded and not load_s:
            load_s = await load_s_of(place, parsed.like, whose.model, since_ns)
    finally:
        waiting.done()
    speed = parsed.helper_speed or _speed_like(parsed.like, history, whose)
    return _Question(traffic, Candidate(speed=speed, load_s=load_s, like=parsed.like))


def _speed_like(node: str, history: History, whose: Whose) -> float:
    if node == whose.owner:
        return 1.0
    _, mine = history.of(whose)
    return speed_of(history.served_by(node, whose.model), own_fit(mine, str(whose)), node)


def _of_trace(parsed: argparse.Namespace) -> Traffic:
    path = find_trace(str(parsed.trace), Path())
    found = read_trace(path)
    column = parsed.seconds_column
    if not column and not parsed.read_per_s and found and _MEASURED_COLUMN in found[0]:
        column = _MEASURED_COLUMN
    if not column and not parsed.read_per_s:
        raise BadConfigError(
            f"trace {parsed.trace}: must have a column {_MEASURED_COLUMN} (or --seconds-column), "
            "or say --read-per-s and --write-per-s"
        )
    costs = Costs(seconds_column=column, read_per_s=parsed.read_per_s, write_per_s=parsed.write_per_s)
    return of_trace(found, costs, path.name, dict(parsed.where))


def _print(said: Answer) -> None:
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    table = Table(
        title=printable(basis(said)),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows(said):
        table.add_row(*map(printable, row))
    console.print(table)
    console.print()
    console.print(printable(said.sentence))
    for remark in remarks(said):
        console.print(printable(f"- {remark}"))

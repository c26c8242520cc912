"""`leaseway simulate`: compare lending policies under a virtual clock."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from domain.errors import BadConfigError
from services.cli.show import note
from services.lifecycle import EXIT_OK
from services.simulator.campaign import run_all
from services.simulator.cells import Cell
from services.simulator.drivers import driver
from services.simulator.report import COLUMNS, number, part, report
from services.simulator.suites import HELD_OUT, SUITES, scenario_cells, suite_cells
from services.simulator.summary import Summary, in_common, summarise

_PIPED_WIDTH = 160
_SHOWN_MAX = 40


def run(parsed: argparse.Namespace) -> int:
    """Run what is asked, print it, write the files."""
    for name in parsed.policies:
        driver(name)
    cells, what = _cells(parsed)
    seeds: Sequence[int] = parsed.seeds or (SUITES[parsed.suite].seeds if parsed.suite else HELD_OUT)
    for path in (parsed.json, parsed.html):
        check_writable(path)
    with progress() as step:
        results = run_all(
            cells,
            seeds,
            parsed.policies,
            jobs=parsed.jobs or os.cpu_count() or 1,
            curves=parsed.html is not None,
            step=step,
        )
    summary = summarise(results, version=version("leaseway"), suite=what, seeds=seeds)
    _print(summary, summarise(in_common(results), version=summary.version, suite=what, seeds=seeds))
    if parsed.json is not None:
        parsed.json.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
        note(f"figures: {parsed.json}")
    if parsed.html is not None:
        parsed.html.write_text(report(summary, results, {cell.name: cell.spec.about for cell in cells}))
        note(f"report: {parsed.html}")
    return EXIT_OK


def _cells(parsed: argparse.Namespace) -> tuple[list[Cell], str]:
    if bool(parsed.suite) == bool(parsed.scenario):
        raise BadConfigError("say either --suite or --scenario (see `leaseway simulate --help`)")
    if parsed.suite:
        return suite_cells(parsed.suite), parsed.suite
    return [cell for file in parsed.scenario for cell in scenario_cells(file)], ", ".join(parsed.scenario)


def check_writable(path: Path | None) -> None:
    """Refuse before the work, not after it."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise BadConfigError(f"{path}: cannot be written: there is no such folder, or it is one")


@contextmanager
def progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on standard error, if a person looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulating", total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _print(summary: Summary, common: Summary) -> None:
    """Print a table of drain ratios and one of policies; a second one where not every policy could run everything."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    if 1 < len(summary.scenarios) <= _SHOWN_MAX:
        each = _table("drain ratio by scenario", ("scenario", *summary.policies))
        for name in summary.scenarios:
            found = (policy.scenarios.get(name) for policy in summary.policies.values())
            each.add_row(name, *("-" if one is None else f"{one.mean_drain:.3f}" for one in found))
        console.print(each)
        console.print()
    console.print(_totals(f"{summary.suite}: {len(summary.scenarios)} scenarios, {len(summary.seeds)} seeds", summary))
    for name, policy in summary.policies.items():
        if policy.refused:
            console.print(f"{name}: without {len(policy.refused)} scenarios: {_reasons(policy.refused)}", markup=False)
    if 0 < len(common.scenarios) < len(summary.scenarios):
        console.print()
        console.print(_totals(f"the {len(common.scenarios)} scenarios that all of these can run", common))


def _totals(title: str, summary: Summary) -> Table:
    table = _table(title, ("policy", *COLUMNS.values()))
    for name, policy in summary.policies.items():
        cells = (number(key, getattr(policy, key)) if policy.scenarios else "-" for key in COLUMNS)
        table.add_row(name + part(policy), *cells)
    return table


def _reasons(refused: dict[str, str]) -> str:
    return "; ".join(
        f"{reason} ({sum(r == reason for r in refused.values())})" for reason in dict.fromkeys(refused.values())
    )


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for place, heading in enumerate(columns):
        table.add_column(heading, justify="right" if place else "left")
    return table

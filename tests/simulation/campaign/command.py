"""The campaign's command line: seeds in, one line for each that fails out, with what reproduces it."""

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.campaign import bugs
from tests.simulation.campaign.world import Result, run_seed

SEEDS_A_BUG = 500
TRACE_LINES = 40


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 if something does not hold, or a planted bug was not found."""
    given = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if given.bug == "all" or given.bugs:
        return _hunt_all(given.bugs or "all", given.jobs)
    if given.seed is not None:
        return _show(given.seed, given.bug, trace=given.trace)
    first, _, last = given.seeds.partition("-")
    return _campaign(range(int(first), int(last or first) + 1), given.bug, given.jobs, most=given.most)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.campaign", description=__doc__)
    parser.add_argument("--seeds", default="0-299", help="range of seeds, first-last")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--bug", default="", help="plant this bug; `all` hunts each of them")
    parser.add_argument(
        "--bugs", default="", help="`all`, or names with commas: hunt each, and say which seed found it"
    )
    parser.add_argument("--most", type=int, default=5, help="stop after so many seeds that fail")
    return parser


def run_planted(seed: int, bug: str = "", *, trace: bool = False) -> Result:
    """Run a seed with a bug planted, or none."""
    with bugs.planted(bug):
        return run_seed(seed, trace=trace)


def _one(job: tuple[int, str]) -> Result:
    logging.disable(logging.CRITICAL)
    result = run_planted(*job)
    if job[0] % 16 == 0:
        gc.collect()
    return result


def results(seeds: range, bug: str, jobs: int) -> Iterator[Result]:
    """Yield the result of each seed, in order."""
    work = [(seed, bug) for seed in seeds]
    if jobs <= 1:
        gc.disable()  # a run leaves one heap of cycles; collecting it now and then is a tenth cheaper
        try:
            yield from map(_one, work)
        finally:
            gc.enable()
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_one, work, chunksize=8)


def _campaign(seeds: range, bug: str, jobs: int, *, most: int) -> int:
    began_s = time.monotonic()
    failed: list[Result] = []
    counts: Counter[str] = Counter()
    for number, result in enumerate(results(seeds, bug, jobs), 1):
        counts.update(
            runs=1, requests=result.requests, lends=result.lends, starts=result.starts, commits=result.commits
        )
        counts.update(faults=len(result.faults), virtual_s=round(result.virtual_s))
        if result.violations:
            failed.append(result)
            _report(result, bug)
            if len(failed) >= most:
                break
        if number % 100 == 0 and sys.stderr.isatty():
            print(f"\r{number}/{len(seeds)}", end="", file=sys.stderr)
    took_s = time.monotonic() - began_s
    print(
        f"{counts['runs']} seeds, {len(failed)} with violations: {counts['requests']} requests, {counts['lends']} lends, "
        f"{counts['starts']} starts, {counts['commits']} commits, {counts['faults']} faults, "
        f"{counts['virtual_s'] / 3600:.1f} h of virtual time in {took_s:.0f} s ({counts['runs'] / took_s:.1f} a second)"
    )
    return 1 if failed else 0


def _report(result: Result, bug: str) -> None:
    planted = f" --bug {bug}" if bug else ""
    print(f"seed {result.seed}: {result.violations[0]}")
    print(f"  python -m tests.simulation.campaign --seed {result.seed}{planted} --trace")
    again = run_planted(result.seed, bug, trace=True)
    for line in again.trace[-TRACE_LINES:]:
        print(f"    {line}")


def _show(seed: int, bug: str, *, trace: bool) -> int:
    result = run_planted(seed, bug, trace=trace)
    for line in result.trace:
        print(line)
    for violation in result.violations:
        print(violation)
    print(
        f"seed {seed}: digest {result.digest}, {len(result.violations)} violations, faults {', '.join(result.faults) or 'none'}"
    )
    return 1 if result.violations else 0


def find(bug: str, seeds: range = range(SEEDS_A_BUG), jobs: int = 1) -> Result | None:
    """Return the first run that finds a planted bug; None if no seed does."""
    return next((result for result in results(seeds, bug, jobs) if result.violations), None)


def _hunt_all(names: str, jobs: int) -> int:
    wanted = sorted(bugs.BUGS) if names == "all" else names.split(",")
    missed = []
    for name in wanted:
        began_s = time.monotonic()
        found = find(name, jobs=jobs)
        took_s = time.monotonic() - began_s
        if found is None:
            missed.append(name)
            print(f"{name:32} NOT FOUND in {SEEDS_A_BUG} seeds ({took_s:.0f} s)", flush=True)
        else:
            print(f"{name:32} seed {found.seed:3} ({took_s:.0f} s): {found.violations[0][:150]}", flush=True)
    print(f"{len(wanted) - len(missed)} of {len(wanted)} planted bugs found")
    return 1 if missed else 0

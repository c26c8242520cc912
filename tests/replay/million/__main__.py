"""Make a long history through the real bus: `python -m tests.replay.million --out DIR [--events 1000000] [--seed 1]`.

The copy that is kept in DIR is checked by `python -m tests.replay.everywhere DIR`.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.replay.million import virtual
from tests.replay.million.keep import keep
from tests.replay.million.life import lived, work_folder
from tests.replay.million.plan import Lived, Plan


class Bar:
    """How far it is, on one line of a terminal or now and then in a log."""

    def __init__(self, total: int) -> None:
        self._total, self._began_s, self._said_s = total, time.monotonic(), 0.0
        self._every_s = 0.5 if sys.stderr.isatty() else 15.0

    def __call__(self, done: int, words: str) -> None:
        """Say it if it is time."""
        now_s = time.monotonic()
        if now_s - self._said_s < self._every_s:
            return
        self._said_s = now_s
        share = min(1.0, done / self._total)
        bar = "#" * round(30 * share)
        per_s = done / (now_s - self._began_s) if done else 0
        left_s = (self._total - done) / per_s if per_s else 0
        line = f"[{bar:<30}] {done:>9,} of {self._total:,} events, {per_s:,.0f}/s, {left_s:,.0f} s left; {words}"
        print(
            f"\r\x1b[K{line}" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr
        )

    def end(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty():
            print(file=sys.stderr)


def main() -> int:
    """Make it."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.million", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to keep the copy in; not in the repository")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of LW_EVENTS that were decided about")
    parser.add_argument("--seed", type=int, default=1, help="of nodes, links, arrivals, sizes and troubles")
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3, help="how often the master is killed on the way")
    parser.add_argument("--job", type=float, default=0.02, help="mean service time in seconds at a node of speed 1")
    parser.add_argument(
        "--work", type=Path, help="folder for the server's files meanwhile (default: in memory if it can)"
    )
    parser.add_argument("--virtual", action="store_true", help="no bus: a seed gives the same history to the last byte")
    parser.add_argument(
        "--keep-bus", action="store_true", help="leave the server's files where they are, and say where"
    )
    asked = parser.parse_args()
    plan = Plan(events=asked.events, seed=asked.seed, nodes=asked.nodes, kills=asked.kills, job_s=asked.job)
    if asked.virtual:
        bar = Bar(plan.events)
        stored, lasted = virtual.live(plan, bar)
        bar.end()
        _tell(asyncio.run(virtual.keep(asked.out, stored)), lasted, "s of virtual time")
        return 0
    work = Path(tempfile.mkdtemp(prefix="leaseway-million-", dir=asked.work or work_folder()))
    try:
        path, came_of_it = asyncio.run(_make(work, asked.out, plan))
    finally:
        if not asked.keep_bus:
            shutil.rmtree(work, ignore_errors=True)
    _tell(path, came_of_it)
    if asked.keep_bus:
        print(f"the server's files are in {work / 'data'}")
    return 0


async def _make(work: Path, out: Path, plan: Plan) -> tuple[Path, Lived]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # the server and the master go with it
    bar = Bar(plan.events)
    async with lived(work / "data", plan, bar) as (came_of_it, bus, server):
        bar.end()
        return await keep(out, bus, server, plan, came_of_it), came_of_it


def _tell(path: Path, came_of_it: Lived, unit: str = "s") -> None:
    per_s = came_of_it.events / came_of_it.took_s
    stood = f"the nodes' time stood still for {came_of_it.stood_s:,.0f} s of it"
    took = f"{came_of_it.took_s:,.0f} {unit} ({per_s:,.0f}/s)"
    print(f"{came_of_it.events:,} events in {took}, {came_of_it.commits:,} commits; {stood}")
    print(f"{came_of_it.requests:,} requests, {came_of_it.lent:,} lent; troubles {came_of_it.troubles}")
    print(f"decisions {came_of_it.decisions}")
    print(f"kept in {path}; check it with `python -m tests.replay.everywhere {path.parent}`")


if __name__ == "__main__":
    sys.exit(main())

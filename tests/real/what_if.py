"""What-if against real processes: `python -m tests.real.what_if [--scenarios a,g,n] [--seeds 1000-1002] [--keep DIR]`.

First bursts of a scenario teach the fits of a cluster of real processes, fifty requests at least; another one, drawn with another
seed, is predicted from its arrivals and the fits at its beginning, and from its recorded service times, and compared with what
it took. Prints a table; returns 1 if the median error of a scenario is beyond 5 %. A run takes about a minute.
"""

import argparse
import asyncio
import dataclasses
import math
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from adapters.keys import load_credentials
from adapters.log.bundle import load
from adapters.log.reader import Reader
from adapters.times import Moment
from domain.master.fits import WINDOW
from services.cli.what_if_history import read
from services.simulator.model.dice import dice_of
from services.simulator.model.scenario import Scenario
from services.simulator.whatif import report
from services.simulator.whatif.answer import Answer, what_if
from services.simulator.whatif.changes import Changes
from services.simulator.whatif.figures import Figures
from tests.real.__main__ import _name, _seeds
from tests.real.client import Reply
from tests.real.cluster import RealCluster, real_cluster
from tests.real.compared import drawn
from tests.real.layout import Layout
from tests.real.run import Effort, facts_since, traffic, warm_up
from tests.support.moments import elapsed
from tests.support.waiting import until

TEACHES = 500
"""Added to the seed of the burst that is predicted; the lessons' seeds go on from there."""
WARM = 4
"""Requests of each model that a node serves before it is linked: a fit that knows no traffic has no price for its owner."""
ALLOWED = 0.05
_QUIET_S = 5.0
"""Between two bursts: leases are over, what was driven out is loaded back."""
EXPORT = "history.zip"


class Taught(Layout):
    """A scenario whose requests come after those of lessons, the same scenario drawn otherwise, until a fit's window is full."""

    def __init__(self, name: str, seed: int, lessons: int) -> None:
        super().__init__(_mixed(name, seed))
        owned = sum(not arrival.native for arrival in self.scenario.arrivals)
        seeds = range(seed + TEACHES, seed + TEACHES + (lessons or math.ceil(WINDOW / owned)))
        self.lessons = [Layout(_mixed(name, other), prefix=f"lesson{other}-") for other in seeds]

    def times(self) -> dict[str, float]:
        """Return how long each request of all takes."""
        return {key: time_s for each in self.lessons for key, time_s in each.times().items()} | super().times()


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Seconds; drains are those of the scenario's owners."""

    scenario: str
    seed: int
    requests: int
    clients_s: float
    """As the clients measured it."""
    measured_s: float
    """As the owners did."""
    by_fits_s: float
    recorded_s: float
    alone_s: float = 0.0
    """Had nothing been lent, by the recorded times."""
    mean_s: tuple[float, float, float]
    """Mean latency: measured, by fits, by recorded times."""
    control_ms: float
    hop_ms: float
    differing: int
    """Commits that differ though nothing was changed."""

    luck: float = 0.0
    """How much longer the lessons' requests took than those of the burst, relative, as drawn: no fit can know it."""

    @property
    def errors(self) -> tuple[float, float]:
        """Return the relative error of the drain by fits and by recorded times."""
        return self.by_fits_s / self.measured_s - 1, self.recorded_s / self.measured_s - 1


def _mixed(name: str, seed: int) -> Scenario:
    """Return a draw whose requests of one moment come in any order: they are drawn in that of their luck, as no traffic comes."""
    scenario = drawn(name, seed)
    arrivals = list(scenario.arrivals)
    dice_of(seed).shuffle(arrivals)
    return dataclasses.replace(scenario, arrivals=tuple(arrivals))


def _luck(layout: Taught) -> float:
    lessons = [_drawn_mean(lesson.scenario) for lesson in layout.lessons]
    return statistics.fmean(lessons) / _drawn_mean(layout.scenario) - 1


def _drawn_mean(scenario: Scenario) -> float:
    return statistics.fmean(arrival.size * arrival.noise for arrival in scenario.arrivals if not arrival.native)


async def run(name: str, seed: int, directory: Path, *, lessons: int = 0) -> Predicted:
    """Run the bursts on real processes, export their history, and predict the last; 0 lessons: as many as fill a fit."""
    layout = Taught(name, seed, lessons)
    async with real_cluster(directory, layout) as cluster:
        await warm_up(cluster, Effort(samples=WARM))
        await cluster.link()
        for lesson in layout.lessons:
            await _burst(cluster, lesson)
        since_us = time.time_ns() // 1000
        replies = await _burst(cluster, layout)
        live = await _asked_live(cluster, since_us)
        told = await cluster.parts.cli("audit", "export", str(directory / EXPORT))
        assert told.code == 0, told.err
        assert all(reply.status == 200 for reply in replies), [reply for reply in replies if reply.status != 200]
    owned = [reply for reply in replies if not reply.native]
    clients_s = max(reply.ended_s for reply in owned) - min(reply.began_s for reply in owned)
    predicted, happened = await _predicted(name, seed, directory, since_us, clients_s)
    assert live.happened == happened, "the running cluster and its copy tell the same"
    alone_s = _drain_s(live.changed[1].figures, _owners(happened, name, seed))
    return msgspec.structs.replace(predicted, alone_s=alone_s, luck=_luck(layout))


async def _asked_live(cluster: RealCluster, since_us: int) -> Answer:
    """Ask the running cluster what would have been if nothing had been lent."""
    since = report.moment(since_us)
    told = await cluster.parts.cli("audit", "what-if", "--from", since, "--policy", "none", "--json", timeout_s=120)
    assert told.code == 0, told.err
    return msgspec.json.decode(told.out, type=Answer)


async def _burst(cluster: RealCluster, layout: Layout) -> list[Reply]:
    """Send the requests of a layout, and wait until all is over and quiet."""
    earlier = len(await cluster.parts.events())
    replies = await traffic(cluster, layout)
    await facts_since(cluster, earlier, replies)
    await until("an end of all leases", lambda: _is_at_rest(cluster), timeout_s=60)
    await elapsed(_QUIET_S)
    return replies


async def _is_at_rest(cluster: RealCluster) -> bool:
    return not (await cluster.parts.state()).get("leases", ())


async def _predicted(
    name: str, seed: int, directory: Path, since_us: int, clients_s: float
) -> tuple[Predicted, dict[str, Figures]]:
    """Return what the exported history predicts of its last burst, and what happened."""
    bundle = load(directory / EXPORT)
    keys = load_credentials(directory / "data" / "keys" / "operator.json")
    cluster = bundle.header.cluster
    reader = Reader(cluster, keys.cluster_mac_secret)
    recorded = await read(bundle.streams, reader, cluster, Moment(at_ns=since_us * 1000), None, lambda _: None)
    answer = what_if(recorded, Changes())
    fits, by_record = answer.unchanged
    owners = _owners(answer.happened, name, seed)
    predicted = Predicted(
        scenario=name,
        seed=seed,
        requests=answer.requests,
        clients_s=clients_s,
        measured_s=_drain_s(answer.happened, owners),
        by_fits_s=_drain_s(fits.figures, owners),
        recorded_s=_drain_s(by_record.figures, owners),
        mean_s=(
            _mean_s(answer.happened, owners),
            _mean_s(fits.figures, owners),
            _mean_s(by_record.figures, owners),
        ),
        control_ms=recorded.paths.control_us / 1000,
        hop_ms=recorded.paths.hop_us / 1000,
        differing=answer.redecided.differing,
    )
    return predicted, answer.happened


def _drain_s(figures: dict[str, Figures], owners: list[str]) -> float:
    return max(figures[key].drain_s for key in owners)


def _mean_s(figures: dict[str, Figures], owners: list[str]) -> float:
    return statistics.fmean(figures[key].mean_s for key in owners)


def _owners(happened: dict[str, Figures], name: str, seed: int) -> list[str]:
    """Return the queues of the scenario's owners."""
    owners = {f"n{owner:02d}" for owner in drawn(name, seed).owners}
    return [key for key in happened if key.partition("/")[0] in owners]


def main() -> int:
    """Run by the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.real.what_if", description=__doc__)
    parser.add_argument("--scenarios", default="a,g,n", help="letters of the drain suite, or whole names")
    parser.add_argument("--seeds", default="1000-1002")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep each run's data and exported history below this folder")
    options = parser.parse_args()
    runs = [
        _one(_name(short), seed, options.keep)
        for short in options.scenarios.split(",")
        for seed in _seeds(options.seeds)
    ]
    print(table(runs))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))
    return 1 if any(abs(error) > ALLOWED for error in _medians(runs).values()) else 0


def _one(name: str, seed: int, keep: Path | None) -> Predicted:
    with tempfile.TemporaryDirectory(prefix="leaseway-what-if-") as folder:
        directory = Path(folder) if keep is None else keep / f"{name}-{seed}"
        if keep is not None:
            shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        predicted = asyncio.run(run(name, seed, directory))
    print(table([predicted]), file=sys.stderr, flush=True)
    return predicted


def _medians(runs: list[Predicted]) -> dict[str, float]:
    """Return the median error of the drain by fits, by scenario."""
    return {
        name: statistics.median(run.errors[0] for run in runs if run.scenario == name)
        for name in dict.fromkeys(run.scenario for run in runs)
    }


def table(runs: list[Predicted]) -> str:
    """Return the comparison for people."""
    head = (
        "scenario",
        "seed",
        "measured s",
        "by fits s",
        "error",
        "luck",
        "recorded s",
        "error",
        "alone s",
        "control ms",
        "hop ms",
    )
    rows = [head, *(_row(run) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _row(run: Predicted) -> tuple[str, ...]:
    return (
        run.scenario,
        str(run.seed),
        f"{run.measured_s:.3f}",
        f"{run.by_fits_s:.3f}",
        f"{run.errors[0]:+.1%}",
        f"{run.luck:+.1%}",
        f"{run.recorded_s:.3f}",
        f"{run.errors[1]:+.1%}",
        f"{run.alone_s:.2f}",
        f"{run.control_ms:.1f}",
        f"{run.hop_ms:.2f}",
    )


if __name__ == "__main__":
    sys.exit(main())

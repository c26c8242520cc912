"""A model that nobody has measured: the unit of its work changes with its first answer, and lending does not suffer from it."""

import statistics

import pytest

from domain.events import BorrowFinished, Fact, Finished
from domain.inputs import EngineResult, NewSize
from services.simulator.cells import Cell
from services.simulator.product import cluster
from services.simulator.product.history import history_of
from services.simulator.suites import scenario_cells

APART_S, BURSTS = 500, 3
SEEDS = range(1000, 1004)
BURST = f"""
about = "Three bursts of a model that nobody has measured."
[cluster]
speeds = [1, 1, 2]
load_s = 20
job_s = 10
[timing]
[[traffic]]
shape = "burst"
jobs = 20
times = {BURSTS}
every_s = {APART_S}
noise = 0.15
"""


class Unmeasured(cluster.Cluster):
    """A cluster whose node guesses work `guess` times what it is, until its model's first own answer; as services.node does."""

    guess = 1.0
    measured = False

    def work_of(self, request):
        true = super().work_of(request)
        return true if self.measured else max(1, round(true * self.guess))

    def _served(self, node, request, took_us, status):
        job = self.clients.job(request)
        own = job.owner == node.number and status == 200
        now_us = self.time.now_us
        if own and not self.measured:
            self.measured = True
            runtime = node.runtimes[self.model_of(job)]
            queue, _ = runtime.snapshot(now_us)
            works = {one.request: NewSize(work=self.work_of(one.request)) for one in queue.requests}
            self.do(node, runtime.resize(works, now_us))
        work = super().work_of(request)
        self.ended_in_engine(node, request, took_us, EngineResult(status=status, complete=status > 0, work=work))


def drains_s(cell: Cell, guess: float) -> list[float]:
    """Return how long each burst takes to drain, the mean of the seeds."""
    found: list[list[float]] = [[] for _ in range(BURSTS)]
    for seed in SEEDS:
        cluster_type = type("Guessing", (Unmeasured,), {"guess": guess})
        run = cluster_type(cell.draw(seed), seed=seed)
        run.run()
        for number, drains in enumerate(found):
            began_s = APART_S * number
            jobs = [job for job in run.clients.jobs if began_s <= job.arrived_s < began_s + APART_S]
            drains.append(max(job.ended_s for job in jobs if job.ended_s is not None) - began_s)
    return [statistics.fmean(drains) for drains in found]


@pytest.fixture
def unmeasured(tmp_path, monkeypatch) -> Cell:
    """Let no node have measured any work; loads are known."""

    def nothing_served(scenario, node, links):
        facts: list[Fact] = list(history_of(scenario, node, links))
        return [fact for fact in facts if not isinstance(fact, Finished | BorrowFinished)]

    monkeypatch.setattr(cluster, "history_of", nothing_served)
    path = tmp_path / "burst.toml"
    path.write_text(BURST)
    (cell,) = scenario_cells(str(path))
    return cell


@pytest.mark.parametrize("guess", [3.0, 0.3])
def test_a_wrong_first_guess_of_a_models_work_costs_the_second_burst_nothing(unmeasured, guess):
    right = drains_s(unmeasured, 1.0)
    wrong = drains_s(unmeasured, guess)
    assert wrong[1] <= 1.05 * right[1], (right, wrong)
    assert wrong[2] <= 1.05 * right[2], (right, wrong)

"""Runs of many scenarios, seeds and policies, on one core or several. What comes out does not depend on how many."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from services.simulator.cells import Cell
from services.simulator.curves import Curves
from services.simulator.drivers import driver
from services.simulator.model.bounds import mean_bound_s
from services.simulator.model.measures import Measures
from services.simulator.model.reference import reference_s

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Runs(Protocol[T_co]):
    """A task that another process can do: it is sent there whole."""

    def run(self) -> T_co:
        """Return what it comes to."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run: a scenario, a seed, a policy."""

    scenario: str
    seed: int
    policy: str
    reference_s: float
    mean_bound_s: float
    measures: Measures | None
    """None if the policy cannot run the scenario."""
    refused: str = ""
    curves: Curves | None = None

    @property
    def drain(self) -> float:
        """Return the drain ratio: 1 is the clairvoyant reference."""
        assert self.measures is not None
        return self.measures.drain_s / self.reference_s


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario and a seed; every policy runs the same draw."""

    cell: Cell
    seed: int
    policies: tuple[str, ...]
    curves: bool

    def run(self) -> list[Result]:
        """Return a result for each policy."""
        scenario = self.cell.draw(self.seed)
        best_s, least_mean_s = reference_s(scenario), mean_bound_s(scenario)
        results = []
        for name in self.policies:
            by = driver(name)
            refused = by.refuses(scenario)
            run = None if refused else by.run(scenario, self.seed, curves=self.curves)
            results.append(
                Result(
                    scenario=self.cell.name,
                    seed=self.seed,
                    policy=name,
                    reference_s=best_s,
                    mean_bound_s=least_mean_s,
                    measures=run and run.measures,
                    refused=refused,
                    curves=run and run.curves,
                )
            )
        return results


def run_all(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    policies: Sequence[str],
    *,
    jobs: int = 1,
    curves: bool = False,
    step: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """Return the results of every cell, seed and policy, in that order.

    `curves` keeps the plots' data of the first seed; `step(done, total)` is called as tasks end.
    """
    tasks = [
        Task(cell=cell, seed=seed, policies=tuple(policies), curves=curves and seed == seeds[0])
        for cell in cells
        for seed in seeds
    ]
    results: list[Result] = []
    for done, part in enumerate(each(tasks, jobs), 1):
        results += part
        if step is not None:
            step(done, len(tasks))
    return results


def each(tasks: Sequence[Runs[T]], jobs: int) -> Iterator[T]:
    """Yield what each task comes to, in order, from as many processes as `jobs` says."""
    if jobs == 1 or len(tasks) == 1:
        yield from map(_run, tasks)
        return
    # spawned, not forked: the parent has a thread that draws the progress bar
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(tasks)), _leave_interrupts) as pool:
        yield from pool.imap(_run, tasks, chunksize=max(1, min(8, len(tasks) // (4 * jobs))))


def _run(task: Runs[T]) -> T:
    return task.run()


def _leave_interrupts() -> None:
    """Let the parent alone answer to Ctrl-C: it ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

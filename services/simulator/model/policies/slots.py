"""The kernel of `water`: on which machines the next identical jobs would be done first."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

_EXACT_MAX = 24


class Machine(NamedTuple):
    """A machine that is ready in `ready_s` and then takes `job_s` for each job."""

    ready_s: float
    job_s: float


class Filled(NamedTuple):
    """How many jobs each machine gets, when the last is done, and the sum of all completion times."""

    counts: list[int]
    end_s: float
    sum_s: float


def fill(machines: Sequence[Machine], jobs: int) -> Filled:
    """Return the `jobs` earliest completion slots: best for the end and for the sum. Deep backlogs are taken as a fluid."""
    if jobs <= 4 * len(machines) or jobs <= _EXACT_MAX:
        return _one_by_one(machines, jobs)
    return _as_fluid(machines, jobs)


def _one_by_one(machines: Sequence[Machine], jobs: int) -> Filled:
    heap = [(machine.ready_s + machine.job_s, place) for place, machine in enumerate(machines)]
    heapq.heapify(heap)
    counts = [0] * len(machines)
    end_s = sum_s = 0.0
    for _ in range(jobs):
        done_s, place = heap[0]
        counts[place] += 1
        end_s = max(end_s, done_s)
        sum_s += done_s
        heapq.heapreplace(heap, (done_s + machines[place].job_s, place))
    return Filled(counts, end_s, sum_s)


def _as_fluid(machines: Sequence[Machine], jobs: int) -> Filled:
    active = list(machines)
    while True:
        rate = sum(1 / machine.job_s for machine in active)
        lost = sum(machine.ready_s / machine.job_s for machine in active)
        end_s = (jobs + lost) / rate
        useful = [machine for machine in active if machine.ready_s < end_s]
        if len(useful) == len(active):
            break
        active = useful
    squares = sum(machine.ready_s * machine.ready_s / machine.job_s for machine in active)
    ready_s = sum(machine.ready_s for machine in active)
    counts = [max(0, round((end_s - machine.ready_s) / machine.job_s)) for machine in machines]
    return Filled(counts, end_s, (end_s * end_s * rate - squares + len(active) * end_s - ready_s) / 2)

"""The clairvoyant reference of a drain ratio: the best assignment found for a static burst, else the lower bound."""

import math
from typing import NamedTuple

from services.simulator.model.bounds import drain_bound_s
from services.simulator.model.dice import Dice, dice_of
from services.simulator.model.scenario import Scenario

_TINY = 1e-9
_STARTS = 2
_ROUNDS_MAX = 200
_NODES_SEARCHED = 10  # 2 ** 9 subsets of helpers


class _Machine(NamedTuple):
    ready_s: float
    speed: float


class _Step(NamedTuple):
    """Move a job to a machine, or swap it with a smaller one of another."""

    job: int
    machine: int
    swap_with: int | None


def reference_s(scenario: Scenario) -> float:
    """Return the drain time that a policy's is divided by."""
    searchable = scenario.is_static and len(scenario.speeds) <= _NODES_SEARCHED
    return best_assignment_s(scenario) if searchable else drain_bound_s(scenario)


def best_assignment_s(scenario: Scenario, *, starts: int = _STARTS) -> float:
    """Return the end of the best assignment that longest-first and local search find over every subset of helpers."""
    owner = next(iter(scenario.links))
    jobs = [a.size * a.noise * scenario.unit_s[owner] for a in scenario.arrivals if a.node == owner and not a.native]
    first = _Machine(0.0, scenario.speeds[owner])
    others = [
        _Machine(
            0.0 if scenario.loaded[helper] == scenario.model_of(owner) else scenario.load_s[helper],
            scenario.speeds[helper],
        )
        for helper in scenario.links[owner]
        if helper not in scenario.black_holes
    ]
    dice = dice_of(0)
    best_s = math.inf
    for mask in range(1 << len(others)):
        machines = [first, *(machine for place, machine in enumerate(others) if mask >> place & 1)]
        work = sum(jobs) + sum(machine.ready_s * machine.speed for machine in machines)
        if work / sum(machine.speed for machine in machines) > best_s * 1.0001:
            continue
        for start in range(starts):
            best_s = min(best_s, _improved(jobs, machines, _longest_first(jobs, machines, _order(jobs, start, dice))))
    return best_s


def _order(jobs: list[float], start: int, dice: Dice) -> list[int]:
    def longest(job: int) -> float:
        return -jobs[job] * (1 if start == 0 else math.exp(dice.gauss(0, 0.05 * start)))

    return sorted(range(len(jobs)), key=longest)


def _longest_first(jobs: list[float], machines: list[_Machine], order: list[int]) -> list[int]:
    ends = [machine.ready_s for machine in machines]
    assigned = [0] * len(jobs)
    places = range(len(machines))
    for job in order:
        best = min(places, key=lambda place: ends[place] + jobs[job] / machines[place].speed)
        assigned[job] = best
        ends[best] += jobs[job] / machines[best].speed
    return assigned


def _improved(jobs: list[float], machines: list[_Machine], assigned: list[int]) -> float:
    ends = _ends(jobs, machines, assigned)
    for _ in range(_ROUNDS_MAX):
        busiest = max((place for place in range(len(machines)) if place in assigned), key=lambda place: ends[place])
        step = _best_step(jobs, machines, assigned, ends, busiest)
        if step is None:
            break
        if step.swap_with is None:
            assigned[step.job] = step.machine
        else:
            assigned[step.job], assigned[step.swap_with] = assigned[step.swap_with], assigned[step.job]
        ends = _ends(jobs, machines, assigned)
    return max(ends[place] for place in range(len(machines)) if place in assigned)


def _ends(jobs: list[float], machines: list[_Machine], assigned: list[int]) -> list[float]:
    return [
        machine.ready_s + sum(job for job, at in zip(jobs, assigned, strict=True) if at == place) / machine.speed
        for place, machine in enumerate(machines)
    ]


def _best_step(
    jobs: list[float], machines: list[_Machine], assigned: list[int], ends: list[float], busiest: int
) -> _Step | None:
    """Return the move or swap off the busiest machine after which the later of the two ends first, if one helps."""
    best_s, best = ends[busiest], None
    fast = machines[busiest].speed
    at = [[job for job, place in enumerate(assigned) if place == machine] for machine in range(len(machines))]
    for job in at[busiest]:
        for place, machine in enumerate(machines):
            if place == busiest:
                continue
            end_s = max(ends[place] + jobs[job] / machine.speed, ends[busiest] - jobs[job] / fast)
            if end_s < best_s - _TINY:
                best_s, best = end_s, _Step(job, place, None)
            for other in at[place]:
                if jobs[other] >= jobs[job]:
                    continue
                more = jobs[job] - jobs[other]
                end_s = max(ends[place] + more / machine.speed, ends[busiest] - more / fast)
                if end_s < best_s - _TINY:
                    best_s, best = end_s, _Step(job, place, other)
    return best

"""What a clairvoyant could do at best: lower bounds on the drain and on the mean latency, from the true durations."""

import heapq
import math
from dataclasses import dataclass
from typing import NamedTuple

from services.simulator.model.scenario import Scenario

_TINY = 1e-9
_NEVER_S = 1e7


class _Work(NamedTuple):
    arrived_s: float
    owner: int
    amount: float
    """Seconds on a node of speed 1."""


def drain_bound_s(scenario: Scenario) -> float:
    """Return a lower bound on the drain of the owners' requests.

    The switch is paid once for each helper that is of use; a helper's capacity is less by its own work that has come and by
    its downtime. Exact for identical jobs released together; else fractional with a longest-job bound. A helper never makes
    it worse, so the whole set of helpers gives the bound.
    """
    bound = _Bound.of(scenario)
    return bound.least_s(bound.helpers)


@dataclass(slots=True)
class _Bound:
    scenario: Scenario
    owners: list[int]
    helpers: list[int]
    jobs: list[_Work]
    own: dict[int, list[tuple[float, float]]]
    """Helper -> (arrival, duration) of its own requests."""
    began_s: float
    identical: bool

    @classmethod
    def of(cls, scenario: Scenario) -> "_Bound":
        owners = scenario.owners
        jobs = [
            _Work(arrival.at_s, arrival.node, arrival.size * arrival.noise * scenario.unit_s[arrival.node])
            for arrival in scenario.arrivals
            if not arrival.native and arrival.node in owners
        ]
        linked = {helper for owner in owners for helper in scenario.links.get(owner, ())}
        helpers = sorted(linked - set(owners) - scenario.black_holes)
        own = {
            helper: sorted(
                (a.at_s, a.size * a.noise * scenario.unit_s[helper] / scenario.speeds[helper])
                for a in scenario.arrivals
                if a.native and a.node == helper
            )
            for helper in helpers
        }
        together = len({job.arrived_s for job in jobs}) == 1
        identical = len({round(job.amount, 9) for job in jobs}) == 1 and together and len(owners) == 1
        return cls(scenario, owners, helpers, sorted(jobs), own, min(job.arrived_s for job in jobs), identical)

    def least_s(self, used: list[int]) -> float:
        """Return the least time in which owners and `used` helpers could be done, by bisection."""
        low_s, high_s = 0.0, 10.0
        while not self._could_be(used, high_s):
            high_s *= 2
            if high_s > _NEVER_S:
                break
        for _ in range(60):
            middle_s = (low_s + high_s) / 2
            if self._could_be(used, middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        return high_s

    def _could_be(self, used: list[int], end_s: float) -> bool:
        if self.identical:
            return self._whole_jobs(used, end_s) >= len(self.jobs)
        total = sum(job.amount for job in self.jobs)
        if self._capacity(used, end_s) < total - _TINY:
            return False
        return self._each_fits(used, end_s)

    def _each_fits(self, used: list[int], end_s: float) -> bool:
        """Return whether what is released late fits in the rest of the time, and each job fits somewhere."""
        speeds = self.scenario.speeds
        speed = sum(speeds[owner] for owner in self.owners) + sum(speeds[helper] for helper in used)
        late = 0.0
        for job in reversed(self.jobs):
            late += job.amount
            after_s = job.arrived_s - self.began_s
            if job.arrived_s > self.began_s and (self.began_s + end_s - job.arrived_s) * speed < late - _TINY:
                return False
            if end_s - after_s - job.amount / speeds[job.owner] >= -_TINY:
                continue
            linked = self.scenario.links.get(job.owner, ())
            if not any(
                end_s - max(after_s, self._switch_s(helper, job.owner)) - job.amount / speeds[helper] >= -_TINY
                for helper in used
                if helper in linked
            ):
                return False
        return True

    def _capacity(self, used: list[int], end_s: float) -> float:
        speeds = self.scenario.speeds
        capacity = sum(end_s * speeds[owner] for owner in self.owners)
        for helper in used:
            switch_s = min(self._switch_s(helper, owner) for owner in self.owners)
            capacity += max(0, self._free_s(helper, end_s) - switch_s) * speeds[helper]
        return capacity

    def _whole_jobs(self, used: list[int], end_s: float) -> int:
        speeds, amount = self.scenario.speeds, self.jobs[0].amount
        count = sum(math.floor(end_s * speeds[owner] / amount + _TINY) for owner in self.owners)
        for helper in used:
            free_s = self._free_s(helper, end_s) - self._switch_s(helper, self.owners[0])
            count += max(0, math.floor(free_s * speeds[helper] / amount + _TINY))
        return count

    def _switch_s(self, helper: int, owner: int) -> float:
        return 0.0 if self.scenario.loaded[helper] == self.scenario.model_of(owner) else self.scenario.load_s[helper]

    def _free_s(self, helper: int, end_s: float) -> float:
        until_s = self.began_s + end_s
        down_s = sum(
            max(0, min(until_s, fault.at_s + fault.lasts_s) - fault.at_s)
            for fault in self.scenario.faults
            if fault.node == helper and fault.at_s < until_s
        )
        return end_s - self._own_s(helper, until_s) - down_s

    def _own_s(self, helper: int, until_s: float) -> float:
        clock_s = worked_s = 0.0
        for arrived_s, took_s in self.own[helper]:
            if arrived_s >= until_s:
                break
            clock_s = max(clock_s, arrived_s)
            worked_s += max(0, min(clock_s + took_s, until_s) - clock_s)
            clock_s += took_s
        return worked_s


def mean_bound_s(scenario: Scenario) -> float:
    """Return a lower bound on the mean latency: all on one preemptive machine of the summed speed, shortest rest first."""
    owners = scenario.owners
    linked = {helper for owner in owners for helper in scenario.links.get(owner, ())}
    speed = sum(scenario.speeds[node] for node in set(owners) | linked)
    jobs = sorted(
        _Work(a.at_s, a.node, a.size * a.noise * scenario.unit_s[a.node]) for a in scenario.arrivals if not a.native
    )
    waiting: list[tuple[float, float]] = []
    clock_s, place, total_s = 0.0, 0, 0.0
    while place < len(jobs) or waiting:
        if not waiting:
            clock_s = max(clock_s, jobs[place].arrived_s)
        while place < len(jobs) and jobs[place].arrived_s <= clock_s + 1e-12:
            heapq.heappush(waiting, (jobs[place].amount, jobs[place].arrived_s))
            place += 1
        amount, arrived_s = heapq.heappop(waiting)
        next_s = jobs[place].arrived_s if place < len(jobs) else math.inf
        if clock_s + amount / speed <= next_s:
            clock_s += amount / speed
            total_s += clock_s - arrived_s
        else:
            heapq.heappush(waiting, (amount - (next_s - clock_s) * speed, arrived_s))
            clock_s = next_s
    fastest = {
        owner: max(scenario.speeds[node] for node in {owner} | set(scenario.links.get(owner, ()))) for owner in owners
    }
    return max(total_s / len(jobs), sum(job.amount / fastest[job.owner] for job in jobs) / len(jobs))

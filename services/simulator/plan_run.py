"""The runs of a plan: every part of the traffic under every policy, on as many cores as there are, and put together again."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from services.simulator.campaign import each
from services.simulator.curves import Curves
from services.simulator.drivers import OURS, driver
from services.simulator.model.measures import percentile
from services.simulator.model.scenario import Scenario
from services.simulator.plan_parts import Candidate, Stretch, parts, scenario_of, stretches
from services.simulator.plan_traffic import Request

ALONE: Final = "none"
STAND_IN: Final = "water"
"""Runs in the place of `ours` where that refuses."""


class Lived(NamedTuple):
    """What became of one request."""

    at_s: float
    started_s: float
    ended_s: float
    lent: bool


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is judged by. Latencies are from arrival to answer."""

    policy: str
    mean_s: float
    p50_s: float
    p99_s: float
    wait_mean_s: float
    wait_p99_s: float
    longest_backlog_s: float
    """The longest time during which there always was a request without its answer."""
    lent_share: float
    loads: int
    load_s: float


class Ran(NamedTuple):
    """A run of all the traffic under one policy."""

    policy: str
    requests: list[Lived]
    loads: int
    load_s: float
    curves: Curves | None
    """Of the part with the longest queue."""

    def figures(self) -> Figures:
        """Return what the run is judged by."""
        latencies = [one.ended_s - one.at_s for one in self.requests]
        waits = [one.started_s - one.at_s for one in self.requests]
        return Figures(
            policy=self.policy,
            mean_s=sum(latencies) / len(latencies),
            p50_s=percentile(latencies, 0.5),
            p99_s=percentile(latencies, 0.99),
            wait_mean_s=sum(waits) / len(waits),
            wait_p99_s=percentile(waits, 0.99),
            longest_backlog_s=_longest(self.requests),
            lent_share=sum(one.lent for one in self.requests) / len(self.requests),
            loads=self.loads,
            load_s=self.load_s,
        )


def _longest(requests: Iterable[Lived]) -> float:
    longest_s, begin_s, end_s = 0.0, 0.0, 0.0
    for one in sorted(requests):
        if one.at_s > end_s:
            begin_s = one.at_s
        end_s = max(end_s, one.ended_s)
        longest_s = max(longest_s, end_s - begin_s)
    return longest_s


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One part under one policy."""

    policy: str
    scenario: Scenario
    curves: bool
    begin_s: float

    def run(self) -> Ran:
        """Return what became of the part's requests."""
        run = driver(self.policy).run(self.scenario, 0, curves=self.curves)
        lived = [
            Lived(
                at_s=self.begin_s + job.arrived_s,
                started_s=self.begin_s + (job.arrived_s if job.started_s is None else job.started_s),
                ended_s=self.begin_s + (job.ended_s or 0.0),
                lent=job.ran_at != job.owner,
            )
            for job in run.jobs
        ]
        return Ran(self.policy, lived, run.measures.loads, run.measures.load_s, run.curves)


class Runs(NamedTuple):
    """Everything that was run."""

    alone: Ran
    helped: Ran
    stretches: list[Stretch]
    refused: str
    """Why `ours` did not run; empty if it did."""


def run_plan(
    requests: Sequence[Request],
    candidate: Candidate,
    *,
    jobs: int,
    curves: bool,
    step: Callable[[int, int], None] | None = None,
) -> Runs:
    """Run `requests` without and with the candidate; `step(done, total)` is called as parts end."""
    found = stretches(requests, candidate)
    unit_s = sum(request.expected_s for request in requests) / len(requests)
    pieces = list(parts(found, candidate))
    scenarios = [
        scenario_of(requests[piece.first : piece.end], candidate, unit_s=unit_s, name=f"part {number}")
        for number, piece in enumerate(pieces)
    ]
    refused = next(filter(None, map(driver(OURS).refuses, scenarios)), "")
    policies = (ALONE, STAND_IN if refused else OURS)
    shown = _busiest(requests, pieces) if curves else -1
    tasks = [
        Job(policy=name, scenario=scenario, curves=number == shown, begin_s=requests[piece.first].at_s)
        for number, (piece, scenario) in enumerate(zip(pieces, scenarios, strict=True))
        for name in policies
    ]
    done: dict[str, list[Ran]] = {name: [] for name in policies}
    for count, ran in enumerate(each(tasks, jobs), 1):
        done[ran.policy].append(ran)
        if step is not None:
            step(count, len(tasks))
    alone, helped = (_whole(done[name]) for name in policies)
    return Runs(alone, helped, found, refused)


def _whole(ran: Sequence[Ran]) -> Ran:
    return Ran(
        policy=ran[0].policy,
        requests=[one for part in ran for one in part.requests],
        loads=sum(part.loads for part in ran),
        load_s=sum(part.load_s for part in ran),
        curves=next((part.curves for part in ran if part.curves is not None), None),
    )


def _busiest(requests: Sequence[Request], pieces: Sequence[Stretch]) -> int:
    """Return the part in which a request would have waited longest for the owner alone."""
    longest_s, number, free_s = -1.0, 0, 0.0
    for place, piece in enumerate(pieces):
        for request in requests[piece.first : piece.end]:
            wait_s = max(0.0, free_s - request.at_s)
            free_s = max(free_s, request.at_s) + request.service_s
            if wait_s > longest_s:
                longest_s, number = wait_s, place
    return number

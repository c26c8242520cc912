"""What a run is judged by."""

import math
from collections.abc import Sequence

import msgspec

from services.simulator.model.parts import Job, Node
from services.simulator.model.scenario import Scenario
from services.simulator.model.world import Counts


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one run. Latencies are from arrival to the whole answer."""

    drain_s: float
    """From the first arrival of an owner's request to the last answer of one."""
    mean_s: float
    p50_s: float
    p99_s: float
    loads: int
    load_s: float
    helper_own_mean_s: float
    """Of helpers' own requests; 0 if they have none."""
    helper_own_p99_s: float
    jain: float
    """Fairness of the owners' mean slowdowns, 1 is even."""
    worst_slowdown: float
    lent: int
    returned: int
    cut: int
    plans: int
    probes: int


def measure(scenario: Scenario, jobs: Sequence[Job], nodes: Sequence[Node], counts: Counts) -> Measures:
    """Return the measures of a finished run."""
    owned = [job for job in jobs if not job.native]
    latencies = [_latency_s(job) for job in owned]
    own = [_latency_s(job) for job in jobs if job.native]
    slowdowns = [_slowdown(scenario, owned, owner) for owner in sorted({job.owner for job in owned})]
    return Measures(
        drain_s=max(job.ended_s or 0.0 for job in owned) - min(job.arrived_s for job in owned),
        mean_s=sum(latencies) / len(latencies),
        p50_s=percentile(latencies, 0.5),
        p99_s=percentile(latencies, 0.99),
        loads=sum(node.loads for node in nodes),
        load_s=sum(node.load_time_s for node in nodes),
        helper_own_mean_s=sum(own) / len(own) if own else 0.0,
        helper_own_p99_s=percentile(own, 0.99) if own else 0.0,
        jain=sum(slowdowns) ** 2 / (len(slowdowns) * sum(value * value for value in slowdowns)),
        worst_slowdown=max(slowdowns),
        lent=counts.lent,
        returned=counts.returned,
        cut=counts.cut,
        plans=counts.plans,
        probes=counts.probes,
    )


def _latency_s(job: Job) -> float:
    assert job.ended_s is not None, f"request {job.number} was never answered"
    return job.ended_s - job.arrived_s


def _slowdown(scenario: Scenario, jobs: Sequence[Job], owner: int) -> float:
    alone_s = scenario.unit_s[owner] / scenario.speeds[owner]
    values = [_latency_s(job) / (alone_s * job.size) for job in jobs if job.owner == owner]
    return sum(values) / len(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, math.ceil(share * len(ranked)) - 1))]

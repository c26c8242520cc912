"""The summary of a campaign: one line for each policy, and the same for each of its scenarios."""

import statistics
from collections.abc import Callable, Sequence

import msgspec

from services.simulator.campaign import Result
from services.simulator.model.measures import Measures


class ScenarioSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in one scenario, over all seeds. All but the first four are means."""

    gmean_drain: float
    """Geometric mean of the drain ratios."""
    mean_drain: float
    worst_drain: float
    runs: int
    mean_s: float
    p99_s: float
    load_s: float
    loads: float
    helper_own_mean_s: float
    helper_own_p99_s: float
    reference_s: float
    mean_bound_s: float
    jain: float
    worst_slowdown: float
    lent: float
    returned: float
    cut: float
    plans: float
    probes: float


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A policy over all scenarios that it could run."""

    gmean_drain: float
    """Geometric mean over scenarios of the mean drain ratio."""
    mean_drain: float
    worst_drain: float
    """Of any single run."""
    mean_s: float
    """Geometric mean over scenarios of the mean latency."""
    p99_s: float
    """Geometric mean over scenarios of the 99th percentile."""
    load_s: float
    """Seconds of loading, summed over scenarios."""
    helper_own_mean_s: float
    """Geometric mean over the scenarios whose helpers have requests of their own; 0 if there is none."""
    scenarios: dict[str, ScenarioSummary]
    refused: dict[str, str]
    """Scenario -> why the policy cannot run it."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    version: str
    suite: str
    """The suite, or the scenario files."""
    seeds: tuple[int, ...]
    scenarios: tuple[str, ...]
    policies: dict[str, PolicySummary]


def summarise(results: Sequence[Result], *, version: str, suite: str, seeds: Sequence[int]) -> Summary:
    """Return the summary of a campaign's results; policies and scenarios stay in their order."""
    policies = dict.fromkeys(result.policy for result in results)
    return Summary(
        version=version,
        suite=suite,
        seeds=tuple(seeds),
        scenarios=tuple(dict.fromkeys(result.scenario for result in results)),
        policies={name: _policy([result for result in results if result.policy == name]) for name in policies},
    )


def in_common(results: Sequence[Result]) -> list[Result]:
    """Return the results of the scenarios that every policy can run: only over these may policies be compared."""
    refused = {result.scenario for result in results if result.refused}
    return [result for result in results if result.scenario not in refused]


def _policy(results: Sequence[Result]) -> PolicySummary:
    by_scenario: dict[str, list[Result]] = {}
    for result in results:
        if result.measures is not None:
            by_scenario.setdefault(result.scenario, []).append(result)
    scenarios = {name: _scenario(runs) for name, runs in by_scenario.items()}
    each = list(scenarios.values())
    return PolicySummary(
        gmean_drain=_geometric(each, lambda one: one.mean_drain),
        mean_drain=statistics.fmean(one.mean_drain for one in each) if each else 0.0,
        worst_drain=max((one.worst_drain for one in each), default=0.0),
        mean_s=_geometric(each, lambda one: one.mean_s),
        p99_s=_geometric(each, lambda one: one.p99_s),
        load_s=sum(one.load_s for one in each),
        helper_own_mean_s=_geometric([one for one in each if one.helper_own_mean_s > 0], lambda o: o.helper_own_mean_s),
        scenarios=scenarios,
        refused={result.scenario: result.refused for result in results if result.refused},
    )


def _geometric(each: Sequence[ScenarioSummary], value: Callable[[ScenarioSummary], float]) -> float:
    return statistics.geometric_mean([value(one) for one in each]) if each else 0.0


def _scenario(runs: Sequence[Result]) -> ScenarioSummary:
    drains = [run.drain for run in runs]
    measured = [run.measures for run in runs if run.measures is not None]

    def mean(value: Callable[[Measures], float]) -> float:
        return statistics.fmean(value(measures) for measures in measured)

    return ScenarioSummary(
        gmean_drain=statistics.geometric_mean(drains),
        mean_drain=statistics.fmean(drains),
        worst_drain=max(drains),
        runs=len(runs),
        mean_s=mean(lambda m: m.mean_s),
        p99_s=mean(lambda m: m.p99_s),
        load_s=mean(lambda m: m.load_s),
        loads=mean(lambda m: m.loads),
        helper_own_mean_s=mean(lambda m: m.helper_own_mean_s),
        helper_own_p99_s=mean(lambda m: m.helper_own_p99_s),
        reference_s=statistics.fmean(run.reference_s for run in runs),
        mean_bound_s=statistics.fmean(run.mean_bound_s for run in runs),
        jain=mean(lambda m: m.jain),
        worst_slowdown=mean(lambda m: m.worst_slowdown),
        lent=mean(lambda m: m.lent),
        returned=mean(lambda m: m.returned),
        cut=mean(lambda m: m.cut),
        plans=mean(lambda m: m.plans),
        probes=mean(lambda m: m.probes),
    )

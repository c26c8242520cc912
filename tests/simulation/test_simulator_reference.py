"""The simulator is the one that the decision rule was designed on: same runs, same table."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from services.simulator.campaign import Task, run_all
from services.simulator.suites import SUITES, scenario_cells, suite_cells
from services.simulator.summary import summarise

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text())
WITHIN = 0.005
TABLE_COLUMNS = ("mean_drain", "mean_s", "p99_s", "load_s", "helper_own_mean_s")


def tasks():
    """Yield (task, expected runs) of every scenario and seed of which single runs are known."""
    known: dict[tuple[str, int], list[list[Any]]] = {}
    for scenario, seed, *run in REFERENCE["runs"]:
        known.setdefault((scenario, seed), []).append(run)
    for (scenario, seed), runs in known.items():
        (cell,) = scenario_cells(scenario)
        yield Task(cell=cell, seed=seed, policies=tuple(run[0] for run in runs), curves=False), runs


def test_single_runs_are_the_known_ones_number_for_number():
    count = 0
    for task, expected in tasks():
        for result, (_, best_s, drain_s, mean_s, p99_s, load_s, own_s, lent, plans) in zip(
            task.run(), expected, strict=True
        ):
            count += 1
            found = result.measures
            where = f"{result.scenario}, seed {result.seed}, {result.policy}"
            assert result.reference_s == pytest.approx(best_s, rel=1e-9), where
            assert (found.lent, found.plans) == (lent, plans), where
            assert [found.drain_s, found.mean_s, found.p99_s, found.load_s, found.helper_own_mean_s] == pytest.approx(
                [drain_s, mean_s, p99_s, load_s, own_s], rel=1e-9
            ), where
    assert count > 300


def deviations(found, expected):
    return {
        (policy, scenario, column): abs(getattr(found.policies[policy].scenarios[scenario], column) / value - 1)
        for policy, scenarios in expected.items()
        for scenario, values in scenarios.items()
        for column, value in zip(TABLE_COLUMNS, values, strict=False)
        if value
    }


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [0, 1000])
def test_the_whole_table_is_reproduced_within_half_a_percent(first):
    seeds = range(first, first + 20)
    expected = REFERENCE["table"][f"{first}-{first + 19}"]
    found = summarise(run_all(suite_cells("drain"), seeds, list(expected)), version="", suite="drain", seeds=seeds)
    apart = deviations(found, expected)
    print(f"{len(apart)} figures, farthest apart: {max(apart.values()):.2e}")
    assert len(apart) > 21 * len(expected) * 3
    assert {key: value for key, value in apart.items() if value > WITHIN} == {}
    for policy, scenarios in expected.items():
        gmean = statistics.geometric_mean(values[0] for values in scenarios.values())
        assert found.policies[policy].gmean_drain == pytest.approx(gmean, rel=WITHIN)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", ["grid", "fallback", "errors"])
def test_grid_and_sweeps_are_reproduced_within_half_a_percent(suite):
    expected = REFERENCE["sweeps"][suite]
    seeds = SUITES[suite].seeds
    found = summarise(run_all(suite_cells(suite), seeds, list(expected)), version="", suite=suite, seeds=seeds)
    apart = {
        (policy, cell): abs(found.policies[policy].scenarios[cell].mean_drain / drain - 1)
        for policy, cells in expected.items()
        for cell, drain in cells.items()
    }
    print(f"{len(apart)} figures, farthest apart: {max(apart.values()):.2e}")
    assert {key: value for key, value in apart.items() if value > WITHIN} == {}

"""The suite of faults: every kind of fault strikes every kind of node, and every policy ends every scenario."""

import json

import pytest

from services.cli.main import main
from services.simulator.campaign import run_all
from services.simulator.model.policies.registry import POLICIES
from services.simulator.suites import SUITES, suite_cells

CELLS = {cell.name: cell for cell in suite_cells("faults")}


def test_owners_and_helpers_crash_and_hang_and_helpers_are_black_holes():
    drawn = {name: cell.draw(1000) for name, cell in CELLS.items()}
    struck = {
        (fault.kind, "owner" if fault.node in scenario.owners else "helper")
        for scenario in drawn.values()
        for fault in scenario.faults
    }
    assert struck == {("crash", "owner"), ("crash", "helper"), ("hang", "owner"), ("hang", "helper")}
    assert sum(bool(scenario.black_holes) for scenario in drawn.values()) == 2
    assert any(not scenario.faults and set(scenario.links[0]) == scenario.black_holes for scenario in drawn.values())


def test_scenarios_that_are_only_about_faults_are_in_no_other_suite():
    own = {name for name in CELLS if name.startswith("faults_")}
    assert len(own) == 7
    assert own.isdisjoint({name for suite in SUITES if suite != "faults" for name in SUITES[suite].names})


@pytest.mark.parametrize("name", sorted(CELLS))
def test_every_policy_of_the_model_answers_every_request_whatever_fails(name: str):
    results = run_all([CELLS[name]], [1000], tuple(POLICIES))
    assert [result.policy for result in results if result.measures is None] == []
    assert {result.policy for result in results} == set(POLICIES)


def test_the_figures_of_the_suite_have_the_keys_of_every_other_suite(tmp_path, capsys):
    out = tmp_path / "faults.json"
    arguments = ("simulate", "--suite", "faults", "--policies", "none,water", "--seeds", "1000", "--jobs", "1")
    assert main([*arguments, "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert set(figures["scenarios"]) == set(CELLS)
    for policy in figures["policies"].values():
        assert {"gmean_drain", "worst_drain", "mean_s", "p99_s", "load_s", "helper_own_mean_s"} < set(policy)
        assert set(policy["scenarios"]) == set(CELLS)
    assert figures["policies"]["water"]["gmean_drain"] < figures["policies"]["none"]["gmean_drain"]

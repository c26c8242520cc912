"""`leaseway simulate`: figures and report do not depend on the number of processes, and bad asks get one line."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from services.cli.main import main
from services.cli.simulate_arguments import seeds
from services.simulator.campaign import run_all
from services.simulator.suites import scenario_cells


def test_the_same_seeds_give_the_same_results_on_one_core_and_on_two():
    cells = scenario_cells("k_b50_crash") + scenario_cells("o_two_owners")
    one, two = (run_all(cells, [3, 4], ["jsq", "water"], jobs=jobs) for jobs in (1, 2))
    assert one == two
    assert [(r.scenario, r.seed, r.policy) for r in one][:3] == [
        ("k_b50_crash", 3, "jsq"), ("k_b50_crash", 3, "water"), ("k_b50_crash", 4, "jsq"),
    ]  # fmt: skip


def test_the_summary_has_each_measure_for_each_policy_and_each_of_its_scenarios(tmp_path, capsys):
    figures, page = tmp_path / "figures.json", tmp_path / "page.html"
    asked = [
        "--scenario",
        "g_b50_h2_own30",
        "--scenario",
        "a_b10_x1_warm",
        "--policies",
        "none,water",
        "--seeds",
        "5-6",
    ]
    code = main(["simulate", *asked, "--jobs", "1", "--json", str(figures), "--html", str(page)])
    out, err = capsys.readouterr()
    assert code == 0
    assert "drain ratio" in out
    assert str(figures) in err
    read = json.loads(figures.read_text())
    assert (read["seeds"], list(read["policies"])) == ([5, 6], ["none", "water"])
    asked_for = {"gmean_drain", "worst_drain", "mean_s", "p99_s", "load_s", "helper_own_mean_s"}
    for policy in read["policies"].values():
        assert asked_for <= set(policy)
        assert list(policy["scenarios"]) == ["g_b50_h2_own30", "a_b10_x1_warm"]
        assert all(asked_for <= set(scenario) for scenario in policy["scenarios"].values())
        assert policy["helper_own_mean_s"] == pytest.approx(policy["scenarios"]["g_b50_h2_own30"]["helper_own_mean_s"])
        both = [scenario["mean_drain"] for scenario in policy["scenarios"].values()]
        assert policy["gmean_drain"] == pytest.approx((both[0] * both[1]) ** 0.5)
    text = page.read_text()
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    plots = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text)]
    assert len(plots) == 4
    assert all(plot.findall("path") for plot in plots)


def test_the_report_says_what_scenarios_are_called_without_believing_it(tmp_path, capsys):
    path, page = tmp_path / "a<b>&.toml", tmp_path / "page.html"
    path.write_text('about = "<img src=x>"\n[cluster]\nspeeds = [1, 1]\n[[traffic]]\nshape = "burst"\njobs = 2\n')
    assert main(["simulate", "--scenario", str(path), "--seeds", "1", "--jobs", "1", "--html", str(page)]) == 0
    capsys.readouterr()
    assert "<img" not in page.read_text()
    assert "a&lt;b&gt;&amp;" in page.read_text()


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            ["--suite", "drian"],
            "leaseway: argument --suite: must be one of drain, grid, fallback, errors, faults, got 'drian'",
        ),
        ([], "leaseway simulate: say either --suite or --scenario"),
        (["--suite", "drain", "--scenario", "x"], "leaseway simulate: say either --suite or --scenario"),
        (
            ["--suite", "drain", "--policies", "watr"],
            "leaseway simulate: --policies: unknown policy 'watr'; did you mean 'water'?",
        ),
        (["--suite", "drain", "--policies", ","], "leaseway: argument --policies: must name at least one policy"),
        (["--suite", "drain", "--seeds", "5-1"], "leaseway: argument --seeds: must rise"),
        (["--suite", "drain", "--seeds", "x"], "leaseway: argument --seeds: must be numbers or ranges"),
        (["--suite", "drain", "--jobs", "0"], "leaseway: argument --jobs: must be a whole number, 1 to 256, got '0'"),
        (
            ["--suite", "drain", "--json", "/nowhere/at/all.json"],
            "leaseway simulate: /nowhere/at/all.json: cannot be written",
        ),
        (["--scenario", "z"], "leaseway simulate: scenario z: is no file that ends in .toml and no shipped scenario"),
    ],
)
def test_what_cannot_be_simulated_gets_one_line_and_code_2(capsys, asked, line):
    assert main(["simulate", *asked]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_seeds_are_numbers_and_ranges_each_taken_once():
    assert seeds("3,1000-1002,1001") == (3, 1000, 1001, 1002)

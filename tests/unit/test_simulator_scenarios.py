"""Scenario files: what they may say, what is said about a bad one, and that all shipped ones are good."""

import gzip
import json

import pytest

from domain.errors import BadConfigError
from services.simulator.model.policies.registry import POLICIES, policy
from services.simulator.model.world import World
from services.simulator.scenario_format import Table
from services.simulator.suites import SHIPPED, SUITES, scenario_cells, suite_cells
from tests.support.tidy import ROOT

BURST = '[[traffic]]\nshape = "burst"\njobs = 3\n'
STREAM = '[[traffic]]\nshape = "stream"\nuntil_s = 60\n'
TWO = "[cluster]\nspeeds = [1, 2]\n"


def cell_of(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    (cell,) = scenario_cells(str(path))
    return cell


def test_every_shipped_scenario_is_in_a_suite_and_can_be_drawn():
    named = {name for suite in SUITES.values() for name in suite.names}
    assert named == {path.stem for path in SHIPPED.glob("*.toml")}
    assert len(SUITES["drain"].names) == 21
    for name in sorted(named):
        cell = scenario_cells(name)[0]
        assert cell.spec.about
        assert cell.draw(1000).owners


def test_the_grid_has_180_cells_of_different_names_and_the_sweeps_4_and_8():
    assert [len(suite_cells(name)) for name in ("grid", "fallback", "errors")] == [180, 4, 8]
    assert len({cell.name for cell in suite_cells("grid")}) == 180
    assert suite_cells("grid")[0].name == "grid/jobs=10,helpers=1,helper_speed=0.25,load_s=0"


def test_a_sweep_over_errors_throws_the_same_dice_with_and_without_learning():
    learns, does_not = (cell.draw(4) for cell in suite_cells("errors")[-2:])
    assert (learns.learn, does_not.learn) == (True, False)
    assert (learns.arrivals, learns.bias) == (does_not.arrivals, does_not.bias)


def test_a_seed_draws_the_same_scenario_and_another_seed_another():
    cell = scenario_cells("g_b50_h2_own30")[0]
    assert cell.draw(5) == cell.draw(5)
    assert cell.draw(5).arrivals != cell.draw(6).arrivals


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TWO + "loads = 3\n" + BURST, "cluster: unknown key 'loads', did you mean 'load_s'?"),
        ("[cluster]\nspeeds = [1, -2]\n" + BURST, "cluster.speeds[1]: Expected `float` > 0.0"),
        (TWO + BURST + "node = 2\n", "traffic[0].node: node 2 does not exist, there are 2 (0 to 1)"),
        (TWO + "load_s = [1]\n" + BURST, "cluster.load_s: must have one value for each of 2 nodes, got 1"),
        (TWO + "links = [[0, 7]]\n" + BURST, "cluster.links: node 7 does not exist, there are 2 (0 to 1)"),
        (TWO + "links = [[1, 1]]\n" + BURST, "cluster.links: a node cannot help itself"),
        (TWO + "helpers = 1\n" + BURST, "cluster: speeds and helpers exclude each other"),
        (TWO + BURST + "[vary]\nhelper_speed = [1, 2]\n", "cluster: speeds and helpers exclude each other"),
        (TWO + STREAM + "per_s = 1\n[vary]\njobs = [1, 2]\n", "vary.jobs: there is no burst"),
        ("[cluster\n", "is not TOML: "),
        (TWO, "missing key 'traffic'"),
        ("traffic = []\n" + TWO, "traffic: Expected `array` of length >= 1"),
        (TWO + BURST.replace("burst", "bursty"), "traffic[0].shape: Invalid value 'bursty'"),
        (TWO + STREAM, "traffic[0]: must have either per_s or offered"),
        (TWO + STREAM + "per_s = 1\noffered = 1\n", "traffic[0]: must have either per_s or offered"),
        (TWO + STREAM + "per_s = 1\nfrom_s = 90\n", "traffic[0]: until_s must be after from_s, got 60 and 90"),
        (TWO + BURST + "size = {}\n", "traffic[0].size: must have either cv or shares and values"),
        (TWO + BURST + "size = { shares = [0.5, 0.1], values = [1, 2] }\n", "traffic[0].size: shares must rise"),
        (TWO + BURST + "size = { shares = [0.5], values = [1, 2] }\n", "as many values as shares, got 2 and 1"),
        (
            TWO + '[[traffic]]\nshape = "trace"\nfile = "x.csv"\nwindow_s = 9\nroutes = [{}]\n',
            "trace x.csv: is neither in ",
        ),
        (TWO + BURST + '[[faults]]\nkind = "flood"\nnode = 1\n', "faults[0].kind: Invalid enum value 'flood'"),
        (TWO + BURST + '[[faults]]\nkind = "crash"\nnode = 4\n', "faults[0].node: node 4 does not exist"),
    ],
)
def test_a_bad_scenario_is_refused_in_one_line_that_names_the_place(tmp_path, text, complaint):
    with pytest.raises(BadConfigError) as refused:
        cell_of(tmp_path, text)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_scenario_in_which_no_owner_asks_for_anything_is_refused(tmp_path):
    cell = cell_of(tmp_path, TWO + BURST + "native = true\n")
    with pytest.raises(BadConfigError, match="no request of an owner comes"):
        cell.draw(0)


def test_an_unknown_scenario_is_refused_with_one_that_may_be_meant():
    with pytest.raises(BadConfigError, match="did you mean 'u_b50_blackhole'"):
        scenario_cells("u_b50_blackhol")
    with pytest.raises(BadConfigError, match=r"cannot be read: No such file"):
        scenario_cells("nowhere.toml")


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl"])
def test_a_trace_of_ones_own_beside_the_file_is_replayed(tmp_path, suffix):
    rows = [{"t_s": at_s, "in_tok": 1000 * at_s, "out_tok": 10, "model": "ab"[at_s % 2]} for at_s in range(6)]
    csv = "\n".join(["t_s,in_tok,out_tok,model", *(",".join(map(str, row.values())) for row in rows)]) + "\n"
    data = "\n".join(map(json.dumps, rows)).encode() if suffix == "jsonl" else csv.encode()
    (tmp_path / f"mine.{suffix}").write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    cell = cell_of(
        tmp_path,
        f'{TWO}job_s = 1\n[[traffic]]\nshape = "trace"\nfile = "mine.{suffix}"\nwindow_s = 5\n'
        'routes = [{ where = { model = "a" }, in_block = 1000, in_cost = 2, out_cost = 0.1, base = 1 }]\n',
    )
    assert [(a.at_s, a.size) for a in cell.draw(0).arrivals] == [(0, 2.0), (2, 6.0), (4, 10.0)]


def test_a_trace_without_the_asked_column_is_refused_with_those_it_has(tmp_path):
    (tmp_path / "mine.csv").write_text("t_s,work\n0,5\n")
    text = f'{TWO}[[traffic]]\nshape = "trace"\nfile = "mine.csv"\nwindow_s = 5\nroutes = [{{ ROUTE }}]\n'
    assert cell_of(tmp_path, text.replace("ROUTE", 'size_column = "work"')).draw(0).arrivals[0].size == 5
    with pytest.raises(BadConfigError, match="must have a column in_tok, has t_s, work"):
        cell_of(tmp_path, text.replace("ROUTE", "in_cost = 1")).draw(0)


def test_where_all_nodes_serve_one_model_nobody_ever_loads(tmp_path):
    own = STREAM + "node = 1\nper_s = 0.02\nnative = true\n"
    cell = cell_of(tmp_path, TWO + "one_model = true\nload_s = 30\n" + BURST.replace("3", "20") + own)
    for name in POLICIES:
        world = World(cell.draw(1), policy(name), 1).run()
        assert [node.loads for node in world.nodes] == [0, 0]
        assert name == "none" or any(job.ran_at == 1 and job.owner == 0 for job in world.jobs)


def test_offered_traffic_is_a_share_of_the_nodes_own_capacity(tmp_path):
    cell = cell_of(tmp_path, TWO + BURST + STREAM.replace("60", "20000") + "node = 1\noffered = 0.5\nnative = true\n")
    own = [arrival for arrival in cell.draw(1).arrivals if arrival.native]
    assert len(own) == pytest.approx(20000 * 0.5 * 2 / 10, rel=0.1)


def test_quantiles_are_drawn_between_and_never_beyond_their_ends(tmp_path):
    size = "size = { shares = [0.1, 0.5, 0.9], values = [2, 4, 20] }\n"
    arrivals = cell_of(tmp_path, TWO + BURST.replace("3", "4000") + size).draw(1).arrivals
    sizes = sorted(arrival.size for arrival in arrivals)
    assert (sizes[0], sizes[-1]) == (2, 20)
    assert sizes[2000] == pytest.approx(4, rel=0.1)


def test_every_key_of_the_format_is_in_the_reference():
    page = (ROOT / "docs/reference/scenarios.md").read_text()
    missing = [key for table in Table.__subclasses__() for key in table.__struct_fields__ if key not in page]
    assert missing == []

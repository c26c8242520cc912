"""The policy `ours`: the product's own master and nodes run the simulator's scenarios.

The bounds are ratchets a little above what is measured; each improvement of the rules should lower some.
"""

import pytest

from domain.events import BorrowReturned, LendReturned
from services.simulator.campaign import Task, run_all
from services.simulator.drivers import driver
from services.simulator.model.reference import reference_s
from services.simulator.product.cluster import Cluster
from services.simulator.suites import SUITES, scenario_cells, suite_cells
from services.simulator.summary import summarise

SEEDS = (1000, 1007, 1013)


def draw(name, seed):
    (cell,) = scenario_cells(name)
    return cell.draw(seed)


def ours(scenario, seed, *, curves=False):
    assert driver("ours").refuses(scenario) == ""
    return driver("ours").run(scenario, seed, curves=curves)


def drain_ratio(scenario, seed):
    return ours(scenario, seed).measures.drain_s / reference_s(scenario)


@pytest.mark.parametrize(
    ("name", "at_most"),
    [
        ("a_b10_x1_warm", 1.06),
        ("b_b50_x4_L30", 1.02),
        ("c_b50_xq_warm", 1.02),
        ("d_b10_x2_L60", 1.09),
        ("e_b200_h3_mix_L20", 1.03),
        ("f_b50_h3_x1_L60", 1.06),
        ("h_b50_h2_misest", 1.03),
        ("i_b60_heavy_known", 1.30),
        ("j_b60_heavy_unknown", 1.36),
        ("k_b50_crash", 1.08),
        ("l_b50_hang", 1.05),
        ("m_b50_flap", 1.47),
        ("n_short_ctl300", 1.05),
        ("o_two_owners", 1.08),
        ("u_b50_blackhole", 1.05),
    ],
)
def test_bursts_drain_nearly_as_fast_as_a_clairvoyant_could(name, at_most):
    assert sum(drain_ratio(draw(name, seed), seed) for seed in SEEDS) / len(SEEDS) <= at_most


@pytest.mark.parametrize("name", ["g_b50_h2_own30", "q_steady_130", "r_azure_code", "s_gentd_ring"])
def test_where_helpers_have_work_of_their_own_owners_gain_and_helpers_hardly_lose(name):
    scenario = draw(name, 1000)
    alone, product, water = (driver(by).run(scenario, 1000).measures for by in ("none", "ours", "water"))
    assert product.drain_s <= 1.05 * water.drain_s
    assert product.mean_s <= 1.1 * water.mean_s < alone.mean_s / 1.2
    assert product.helper_own_mean_s <= 1.1 * water.helper_own_mean_s


def test_small_bursts_beside_a_cold_slow_helper_are_no_slower_than_without_lending():
    scenario = draw("p_tiny_cold_slow", 1000)
    alone, product = (driver(by).run(scenario, 1000).measures for by in ("none", "ours"))
    assert product.p99_s <= 1.02 * alone.p99_s
    assert product.loads == 0


def test_a_run_of_the_product_is_reproduced_to_the_last_bit():
    scenario = draw("e_b200_h3_mix_L20", 5)
    first, again = (ours(scenario, 5, curves=True) for _ in range(2))
    assert (first.measures, first.curves) == (again.measures, again.curves)


def test_never_is_more_out_than_the_leases_allowed_and_all_comes_home():
    run = ours(draw("e_b200_h3_mix_L20", 5), 5, curves=True)
    assert run.curves is not None
    owner = run.curves.nodes[0]
    most = max(sample.slots for sample in owner)
    assert 4 <= most <= 6
    assert max(sample.out for sample in owner) <= most
    assert (owner[-1].held, owner[-1].in_engine, owner[-1].out) == (0, 0, 0)
    assert max(sample.held for sample in owner) >= 190


def test_a_helper_that_must_switch_is_seen_to_load_and_to_restore_its_own_model():
    run = ours(draw("r_azure_code", 1000), 1000, curves=True)
    assert run.curves is not None
    loads = {(load.node, load.model) for load in run.curves.loads}
    assert any({(helper, 0), (helper, helper)} <= loads for helper in (1, 2, 3))
    assert run.measures.loads >= len(loads)


def test_a_crash_costs_only_what_was_lent_and_the_helper_lends_a_hand_again():
    for seed in SEEDS:
        measures = ours(draw("k_b50_crash", seed), seed).measures
        assert 1 <= measures.cut <= 2
        assert measures.loads == 1
        assert measures.lent >= 25


def test_a_helper_that_hangs_loses_what_was_lent_to_it_after_the_cut_off_and_gets_nothing_more():
    for seed in SEEDS:
        measures = ours(draw("l_b50_hang", seed), seed).measures
        assert 1 <= measures.cut <= 2
        assert measures.lent >= 15


def test_a_black_hole_costs_few_requests_their_one_chance_to_be_lent():
    measures = ours(draw("u_b50_blackhole", 1000), 1000).measures
    assert 1 <= measures.cut <= 8
    assert measures.lent >= 30


@pytest.mark.parametrize("name", SUITES["faults"].names)
def test_whatever_fails_every_client_has_its_answer_in_the_end_and_exactly_one(name):
    cluster = Cluster(draw(name, 1000), seed=1000)
    cluster.run()
    assert all(job.ended_s is not None for job in cluster.clients.jobs)
    assert cluster.clients.failed <= 45 if cluster.scenario.faults else cluster.clients.failed == 0


def test_without_learning_the_masters_prices_stay_what_they_were_before_the_run():
    cells = [cell for cell in suite_cells("errors") if not cell.varied["learn"] and cell.varied["estimate_sigma"] == 1]
    scenario = cells[0].draw(0)
    cluster = Cluster(scenario)
    before = {key: list(fit.logs) for key, fit in cluster.master.state.fits.items()}
    cluster.run()
    assert {key: list(fit.logs) for key, fit in cluster.master.state.fits.items()} == before
    assert any(before.values())


def test_every_tenth_cell_of_the_grid_is_within_a_third_of_the_reference():
    cells = [cell for cell in suite_cells("grid") if cell.varied["jobs"] < 200][::10]
    assert len(cells) == 12
    ratios = {cell.name: drain_ratio(cell.draw(0), 0) for cell in cells}
    assert {name: ratio for name, ratio in ratios.items() if ratio > 1.34} == {}


def test_the_product_runs_every_scenario_there_is():
    cells = [cell for suite in ("drain", "fallback", "errors", "faults") for cell in suite_cells(suite)]
    assert all(driver("ours").refuses(cell.draw(1)) == "" for cell in cells)
    (cell,) = scenario_cells("b_b50_x4_L30")
    (result,) = Task(cell=cell, seed=1, policies=("ours",), curves=False).run()
    assert result.measures is not None
    assert result.measures.loads >= 1


# ---- the whole of it: minutes, not seconds ---------------------------------------------------------------------------


def summary_of(suite, policies):
    seeds = SUITES[suite].seeds
    found = summarise(run_all(suite_cells(suite), seeds, policies), version="", suite=suite, seeds=seeds).policies
    for name, policy in found.items():
        print(
            f"{suite} {name}: drain {policy.gmean_drain:.4f} ({policy.mean_drain:.4f}, worst {policy.worst_drain:.3f}),"
            f" mean {policy.mean_s:.2f} s, p99 {policy.p99_s:.1f} s, loads {policy.load_s:.0f} s"
        )
    return found


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_product_reaches_what_was_set_for_it_on_seeds_that_nobody_designed_on():
    found = summary_of("drain", ("none", "seed_multi", "ours"))
    alone, seed, product = (found[name] for name in ("none", "seed_multi", "ours"))
    assert product.refused == {}
    assert product.gmean_drain <= 1.07
    assert product.mean_s <= 60.5
    assert product.p99_s <= 145
    assert product.load_s <= 3300
    assert product.helper_own_mean_s <= seed.helper_own_mean_s
    for name, most in (("g_b50_h2_own30", 1.12), ("q_steady_130", 1.05), ("r_azure_code", 1.05)):
        assert product.scenarios[name].helper_own_mean_s <= most * seed.scenarios[name].helper_own_mean_s, name
    small = "p_tiny_cold_slow"
    assert product.scenarios[small].p99_s <= 1.02 * alone.scenarios[small].p99_s
    assert product.scenarios["u_b50_blackhole"].mean_drain <= 1.05
    assert product.scenarios["k_b50_crash"].mean_drain <= 1.065
    assert product.scenarios["l_b50_hang"].mean_drain <= 1.035
    assert product.scenarios["m_b50_flap"].mean_drain <= 1.44


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_cell_of_the_grid_is_far_from_the_reference():
    product = summary_of("grid", ("ours",))["ours"]
    assert product.gmean_drain <= 1.04
    assert max(cell.mean_drain for cell in product.scenarios.values()) <= 1.30


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_helpers_that_nobody_measured_and_wrong_estimates_cost_little():
    unmeasured = summary_of("fallback", ("ours",))["ours"]
    assert unmeasured.scenarios["fallback/helper_speed_sigma=1.2"].gmean_drain <= 1.08
    wrong = summary_of("errors", ("ours",))["ours"]
    assert all(cell.mean_drain <= (1.08 if "learn=true" in name else 1.15) for name, cell in wrong.scenarios.items())


class Listening(Cluster):
    """Notes why requests come back, as the helper says it and as the owner hears it."""

    def __init__(self, *arguments, **more):
        self.given, self.heard_of = {}, {}
        super().__init__(*arguments, **more)

    def heard(self, node, fact):
        if isinstance(fact, BorrowReturned):
            self.given[fact.request] = fact.reason
        elif isinstance(fact, LendReturned):
            self.heard_of[fact.request] = fact.reason
        return super().heard(node, fact)


def test_an_owner_hears_in_its_helpers_words_why_a_request_comes_back(tmp_path):
    path = tmp_path / "hang.toml"
    path.write_text(
        'about = "A helper hangs while it loads."\n[cluster]\nspeeds = [1, 2]\nload_s = 30\njob_s = 10\n'
        '[[traffic]]\nshape = "burst"\njobs = 40\n[[faults]]\nkind = "hang"\nnode = 1\nat_s = 10\nlasts_s = 8\n'
    )
    run = Listening(draw(str(path), 1000), seed=1000)
    run.run()
    assert run.heard_of == run.given
    assert sorted(run.given.values()) == ["load_failed"] * 2

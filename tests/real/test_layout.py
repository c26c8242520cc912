"""What a drawn scenario becomes on real processes: the same nodes, requests and faults, ten times faster."""

import json

import pytest

from services.simulator.model.scenario import Scenario
from tests.real.compared import drawn
from tests.real.layout import SCALE, UNIT_BYTES, Layout


def _layout(name: str) -> tuple[Scenario, Layout]:
    scenario = drawn(name, 1000)
    return scenario, Layout(scenario)


@pytest.mark.parametrize("name", ["a_b10_x1_warm", "g_b50_h2_own30", "u_b50_blackhole"])
def test_each_request_takes_a_tenth_of_its_time_and_is_as_large_as_its_work(name):
    scenario, layout = _layout(name)
    times = layout.times()
    assert len(layout.requests) == len(scenario.arrivals)
    for request, arrival in zip(layout.requests, scenario.arrivals, strict=True):
        unit_s = scenario.unit_s[scenario.model_of(arrival.node)]
        assert times[request.key] == pytest.approx(unit_s * arrival.size * arrival.noise / SCALE)
        assert request.at_s == pytest.approx(arrival.at_s / SCALE)
        assert len(request.body()) == round(UNIT_BYTES * arrival.size)
        assert json.loads(request.body())["model"] == request.model


def test_a_warm_up_request_costs_as_much_time_for_its_bytes_as_the_scenarios_own_without_noise():
    scenario, layout = _layout("e_b200_h3_mix_L20")
    times = layout.times()
    place = layout.places[1]
    sizes = set()
    for turn in range(6):
        request = layout.warm_up(place, place.models[0], turn)
        sizes.add(len(request.body()))
        per_byte_s = scenario.unit_s[1] / SCALE / UNIT_BYTES
        assert times[request.key] == pytest.approx(per_byte_s * len(request.body()), rel=0.01)
    assert max(sizes) > 2 * min(sizes), "equal sizes would price only themselves"


def test_a_helper_that_has_to_switch_shares_a_runtime_between_its_model_and_the_owners():
    scenario, layout = _layout("b_b50_x4_L30")
    owner, helper = layout.places
    assert [model.number for model in owner.models] == [0]
    assert [model.number for model in helper.models] == [1, 0]
    assert helper.load_s == pytest.approx(scenario.load_s[1] / SCALE)
    assert list(layout.links()) == [("n00/n00-m00", "n01/n01-m00")]


def test_a_helper_that_has_the_model_in_has_no_other():
    _, layout = _layout("n_short_ctl300")
    assert [[model.number for model in place.models] for place in layout.places] == [[0], [0], [0]]


def test_faults_come_ten_times_sooner_and_pass_ten_times_faster():
    scenario, layout = _layout("k_b50_crash")
    (fault,), (stated,) = layout.faults, scenario.faults
    assert (fault.at_s, fault.lasts_s) == (stated.at_s / SCALE, stated.lasts_s / SCALE)
    _, holes = _layout("u_b50_blackhole")
    assert [place.fails for place in holes.places] == [False, False, True]

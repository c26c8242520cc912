"""What-if on histories of the simulator's scenarios: run on by the recorded times, what was ends when it did."""

import asyncio

import pytest

from adapters.log.reader import Reader
from adapters.times import Moment
from services.cli.what_if_history import read
from services.simulator.suites import scenario_cells
from services.simulator.whatif.answer import Answer, what_if
from services.simulator.whatif.changes import Changes
from services.simulator.whatif.figures import ALL
from tests.support.history import CLUSTER, SECRET, START_NS
from tests.support.stored_scenario import stored

SEED = 1000
FEW = ["b_b50_x4_L30", "d_b10_x2_L60", "f_b50_h3_x1_L60", "o_two_owners"]
OTHERS = [
    "a_b10_x1_warm",
    "c_b50_xq_warm",
    "e_b200_h3_mix_L20",
    "g_b50_h2_own30",
    "h_b50_h2_misest",
    "i_b60_heavy_known",
    "j_b60_heavy_unknown",
    "n_short_ctl300",
    "p_tiny_cold_slow",
]
WITH_A_FAULT = ["k_b50_crash", "l_b50_hang", "u_b50_blackhole"]
BEFORE = Moment(at_ns=START_NS - 10**9)


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_what_was_ends_when_it_did_with_the_same_loads(name: str):
    answer = _asked(name)
    happened, by_record = answer.happened[ALL], answer.unchanged[1].figures[ALL]
    assert answer.redecided.differing == 0
    assert by_record.drain_s == pytest.approx(happened.drain_s, rel=0.005)
    assert by_record.mean_s == pytest.approx(happened.mean_s, rel=0.01)
    assert by_record.load_s == pytest.approx(happened.load_s)


@pytest.mark.parametrize("name", WITH_A_FAULT)
def test_a_fault_that_was_is_named_since_it_does_not_come_again(name: str):
    answer = _asked(name)
    assert answer.redecided.differing == 0
    assert answer.unchanged[1].figures[ALL].drain_s < 0.9 * answer.happened[ALL].drain_s
    assert any("in a run on all nodes live, and no engine fails" in note for note in answer.notes)


def _asked(name: str) -> Answer:
    (cell,) = scenario_cells(name)
    streams = stored(cell.draw(SEED), SEED)
    recorded = asyncio.run(read(streams, Reader(CLUSTER, SECRET), CLUSTER, BEFORE, None, lambda _: None))
    return what_if(recorded, Changes(), draws=1)

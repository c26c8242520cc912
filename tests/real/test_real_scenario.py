"""A scenario of the simulator on real processes, without its figures: those are for a machine that does nothing else."""

from pathlib import Path

import pytest

from tests.real.run import Effort, run

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(120)]
SCENARIO, SEED = "a_b10_x1_warm", 1000


async def test_a_burst_is_answered_whole_and_shared_with_an_equal_helper(tmp_path: Path):
    outcome = await run(SCENARIO, SEED, tmp_path, Effort(samples=4, idle=False))
    assert not outcome.bad
    assert len(outcome.replies) == 10
    owner, helper = outcome.engines
    assert owner.runs + helper.runs == 10, "each request ran once"
    assert owner.faults == helper.faults == ()
    assert helper.runs >= 1, "nothing was lent"
    assert outcome.events["lend.answered"] == helper.runs
    assert "lend.cut_off" not in outcome.events

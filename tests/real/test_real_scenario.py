"""A scenario of the simulator on real processes, without its figures: those are for a machine that does nothing else."""

from pathlib import Path

import pytest

from tests.real.run import Effort, run

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
SCENARIO, SEED = "a_b10_x1_warm", 1000
ALONE = 2
"""Drain ratio of an owner that nobody helps: an equal helper would halve its time."""


async def test_a_burst_is_answered_whole_and_shared_with_an_equal_helper(tmp_path: Path):
    outcome = await run(SCENARIO, SEED, tmp_path, Effort(samples=6, idle=False))
    assert not outcome.bad
    assert len(outcome.replies) == 10
    owner, helper = outcome.engines
    assert owner.runs + helper.runs == 10, "each request ran once"
    assert owner.faults == helper.faults == ()
    assert helper.runs >= 3, "the helper took next to nothing"
    assert 1 <= outcome.ratio < ALONE

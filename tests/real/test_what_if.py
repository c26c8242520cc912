"""A burst on real processes is predicted from their stored history, without figures that only a quiet machine gives."""

from pathlib import Path

import pytest

from tests.real.what_if import run

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(240)]


async def test_a_burst_is_decided_again_as_it_was_and_takes_as_long_when_it_is_run_on(tmp_path: Path):
    predicted = await run("a_b10_x1_warm", 1000, tmp_path, lessons=1)
    assert predicted.requests == 10
    assert predicted.differing == 0, "nothing was changed"
    assert predicted.measured_s == pytest.approx(predicted.clients_s, rel=0.1)
    assert predicted.recorded_s == pytest.approx(predicted.measured_s, rel=0.15)
    assert predicted.alone_s > 1.5 * predicted.measured_s

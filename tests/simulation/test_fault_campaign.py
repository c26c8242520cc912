"""The seeded fault campaign: what CI runs of it, and that it finds what is planted.

All of it: python -m tests.simulation.campaign --seeds 0-9999 and --bugs all (docs/contributing/fault-campaign.md).
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.campaign import bugs
from tests.simulation.campaign.command import find, run_planted
from tests.simulation.campaign.loop import SimLoop, pass_time
from tests.simulation.campaign.world import run_seed

SEEDS, AT_ONCE = 300, 50
FOUND_FAST = (
    "desk_takes_dead_leases",
    "fold_never_closes_slots",
    "ledger_any_duplicate_is_ours",
    "master_grants_all_to_each",
    "owner_keeps_beside_idle",
    "owner_one_slot_more",
    "producer_any_duplicate",
    "room_serves_what_is_not_in",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What goes wrong on purpose fills no log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_holds_through_faults_and_everything_ends_when_they_heal(first: int):
    failed = [result for seed in range(first, first + AT_ONCE) if (result := run_seed(seed)).violations]
    assert not failed, "\n".join(
        f"python -m tests.simulation.campaign --seed {result.seed} --trace: {result.violations[0]}" for result in failed
    )


@pytest.mark.parametrize("name", FOUND_FAST)
def test_a_planted_bug_is_found(name: str):
    found = find(name, range(60))
    assert found is not None, f"{name}: {bugs.BUGS[name].about}"


def test_a_bug_is_gone_when_it_is_no_longer_planted():
    assert run_planted(0, "owner_one_slot_more").violations
    assert not run_seed(0).violations


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_gives_the_same_run_to_the_last_byte_in_every_process(hash_seed: str):
    code = "from tests.simulation.campaign.world import run_seed; print(*(run_seed(n).digest for n in (3, 4, 5)))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert ran.stdout.split() == [run_seed(n).digest for n in (3, 4, 5)]


def test_there_are_at_least_25_bugs_to_plant():
    assert len(bugs.BUGS) >= 25
    assert set(FOUND_FAST) <= set(bugs.BUGS)


# ---- the simulated processes ------------------------------------------------------------------------------------------


class Ticker:
    """Writes down when it ran."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.process = loop.process("ticker")
        self.ran_s: list[float] = []
        loop.spawn(self.process, self._tick())

    async def _tick(self) -> None:
        try:
            while True:
                await pass_time(1)
                self.ran_s.append(self.loop.time())
        finally:
            self.ran_s.append(-1)


def test_a_frozen_process_does_nothing_and_goes_on_where_it_was():
    loop = SimLoop()
    with loop.running():
        ticker = Ticker(loop)
        loop.run(2_500_000)
        ticker.process.frozen = True
        loop.run(10_000_000)
        assert ticker.ran_s == [1, 2]
        loop.thaw(ticker.process)
        loop.run(11_500_000)
        assert ticker.ran_s == [1, 2, 10, 11]
        loop.close()


def test_of_a_killed_process_nothing_runs_any_more_not_even_what_it_would_do_at_its_end():
    loop = SimLoop()
    with loop.running():
        ticker = Ticker(loop)
        loop.run(1_500_000)
        ticker.process.dead = True
        loop.run(60_000_000)
        assert ticker.ran_s == [1]
        loop.close()

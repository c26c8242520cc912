"""Whatever becomes of stored history is found: by the audit, and by a master before it decides anything."""

import random
from pathlib import Path

import pytest

from adapters.clock import SystemClock
from tests.mutations.changes import CHANGES, Change
from tests.mutations.life import Life, doubt_of_a_master, found_by_audit, lived


@pytest.fixture(scope="module")
def life() -> Life:
    return lived(3)


async def test_what_nobody_changed_is_found_whole_and_a_master_goes_on_from_it(life: Life, tmp_path: Path):
    assert await found_by_audit(life) == ""
    assert await doubt_of_a_master(life, tmp_path, SystemClock()) == "decides"


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_it_is_found_by_the_audit_and_by_a_master_before_it_decides(change: Change, life: Life, tmp_path: Path):
    what, changed = change(random.Random(7), life)
    assert changed != life
    assert await found_by_audit(changed), what
    assert await doubt_of_a_master(changed, tmp_path, SystemClock()) != "decides", what


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_relaxed_bus_begins_anew_by_itself_over_lost_newest_facts_and_over_nothing_else(
    change: Change, life: Life, tmp_path: Path
):
    for seed in range(3):
        what, changed = change(random.Random(seed), life)
        outcome = await doubt_of_a_master(changed, tmp_path / str(seed), SystemClock(), relaxed=True)
        kept = changed.facts == life.facts[: len(changed.facts)] and len(changed.facts) < len(life.facts)
        alone = (changed.control, changed.ledger) == (life.control, life.ledger)
        assert outcome != "decides", what
        assert (outcome == "begins anew") == (kept and alone), (what, outcome)

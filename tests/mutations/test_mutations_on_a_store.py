"""The same on a real nats-server's files: whatever changes there, no master decides on it. `make mutations` runs a thousand."""

from pathlib import Path

import pytest

from tests.mutations.campaign import Store, on_a_store
from tests.mutations.store import STORE_CHANGES

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(1800)]


async def test_one_change_of_each_kind_is_found_by_the_audit_and_by_a_master_before_it_decides(tmp_path: Path):
    store = Store(tmp_path / "life")
    await store.make()
    for seed in range(len(STORE_CHANGES)):
        outcome = await on_a_store(seed, store, tmp_path / str(seed))
        assert outcome.found, outcome

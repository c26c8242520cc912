"""The same on a real nats-server: whatever changes there, no master decides on it. `make mutations` runs a thousand."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.mutations.attackers import attempt_all, backups
from tests.mutations.campaign import FEED_KINDS, KINDS, Kind, Run
from tests.mutations.living import Store, served, server_on

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("mutations")
    store = Store(folder / "life")
    await store.make()
    await backups(store)
    async with Run(store, folder).with_archive() as made:
        yield made


@pytest.mark.parametrize("kind", [*KINDS, *FEED_KINDS], ids=lambda kind: f"{kind.family}-{kind.name}")
async def test_a_change_is_found_by_the_audit_and_by_a_master_before_it_decides(kind: Kind, run: Run, tmp_path: Path):
    outcomes = [await run.one(0, kind, random.Random(0), tmp_path / "0")]
    while not outcomes[-1].changed:  # a bit that the server does not read, or mends
        number = len(outcomes)
        outcomes.append(await run.one(number, kind, random.Random(number), tmp_path / str(number)))
    assert outcomes[-1].found, outcomes[-1]


async def test_nothing_changes_by_what_members_try_without_the_right(run: Run):
    async with server_on(run.store.data) as cluster:
        await attempt_all(cluster, run.store)
        assert await served(cluster) == run.store.served

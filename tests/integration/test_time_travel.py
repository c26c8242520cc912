"""Time travel on a real server: the library's repository of the ledger, our own fold, and the master that decided agree."""

import asyncio
from collections.abc import Iterable

import pytest

from adapters.log.reader import Reader
from adapters.log.travel import state_at
from adapters.nats.eventsourcing.grant_ledger import GrantLedger
from domain.events import LeaseGranted
from domain.events.commit import Commit
from domain.master.leases import is_live
from domain.master.state import encode_state
from services.past.ledger import through_repository
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real
BURSTS = 6


@pytest.fixture
async def cluster(nats_server: ServerUnderTest):
    async with cluster_on(nats_server) as made:
        yield made


@pytest.fixture
async def ledger(nats_server: ServerUnderTest):
    made = await asyncio.to_thread(GrantLedger, nats_server.url, nats_server.credentials("operator"), "local")
    yield made
    await asyncio.to_thread(made.close)


async def live(cluster: ClusterUnderTest) -> None:
    """Let bursts come and go, so that leases do too."""
    await cluster.state("n1", registered(), finished("req_fit"))
    await cluster.state("n2", registered())
    await cluster.decree(link("n1", "n2"))
    for burst in range(BURSTS):
        names = [f"req_{burst}{at}" for at in range(6)]
        await cluster.state("n1", started(f"req_{burst}s"), *(held(name, at + 1) for at, name in enumerate(names)))
        await cluster.decisions(LeaseGranted, count=burst + 1)
        for name in names:
            await cluster.state("n1", started(name), finished(name))
        await cluster.state("n1", finished(f"req_{burst}s"))


async def test_the_repository_of_the_ledger_gives_the_state_of_every_version(
    cluster: ClusterUnderTest, ledger: GrantLedger
):
    loop, _ = await cluster.master()
    await live(cluster)
    reader = Reader("local", cluster.server.credentials("master").cluster_mac_secret)
    streams, head = await cluster.streams(), (await cluster.commits())[-1].version
    seen = 0
    for version in range(1, head + 1):
        through = await state_at(streams, reader, version=version, fold=through_repository(ledger))
        plain = await state_at(streams, reader, version=version)
        assert encode_state(through.state) == encode_state(plain.state), version
        leases = {one: each.event for one, each in through.state.leases.items() if is_live(through.state, each)}
        grants = await asyncio.to_thread(ledger.grants_at, version)
        assert leases == dict(grants), version
        seen += bool(leases)
    assert 0 < seen < head

    async def agrees() -> bool:
        now = await state_at(streams, reader, fold=through_repository(ledger))
        return (now.state.queues, now.state.fits, now.state.hi) == (loop.state.queues, loop.state.fits, loop.state.hi)

    await until("the state now is the master's", agrees)


async def test_a_rebuilding_begins_after_the_version_whose_state_is_known(
    cluster: ClusterUnderTest, ledger: GrantLedger
):
    await cluster.master()
    await live(cluster)
    head = (await cluster.commits())[-1].version

    def versions(commits: Iterable[Commit]) -> list[int]:
        return [commit.version for commit in commits]

    for after in (0, 1, head - 1):
        assert await asyncio.to_thread(ledger.rebuild, head, versions, after=after) == list(range(after + 1, head + 1))

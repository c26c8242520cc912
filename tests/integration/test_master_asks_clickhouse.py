"""A master without a data directory of its own, on a real bus, asks a real ClickHouse what it has signed before."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from adapters.clickhouse import checkpoints
from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from adapters.keys import Signer, new_nkey
from adapters.log.checkpoints import sign
from domain.events import Checkpoint
from domain.ids import Generation
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, LEDGER, observation_subject
from projections.project import Context, project
from services.config import ClusterConfig, Config, UrlsConfig
from services.projector.api import Api
from services.projector.health import Health
from services.projector.projector import Projector, Setup
from services.standalone.provisioning import renew
from tests.integration.test_master_in_doubt import lend
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.facts import Teller
from tests.support.nats import ServerUnderTest
from tests.support.projections import QUICK, running
from tests.support.waiting import until

pytestmark = pytest.mark.real


class Scene:
    """A cluster whose first master has decided and signed, and ended; what it signed is in ClickHouse."""

    def __init__(self, cluster: ClusterUnderTest, url: str, store: Store) -> None:
        self.cluster, self.url, self.store = cluster, url, store
        self.signer = Signer(cluster.server.credentials("master").master_seed)

    def newest(self) -> Checkpoint:
        return checkpoints.newest(self.store, 1)[0]

    def keep(self, *kept: Checkpoint) -> None:
        """Write checkpoints to ClickHouse that no stream holds."""
        name = self.cluster.server.cluster
        teller, now_ns = Teller("master", cluster=name), SystemClock().wall_us() * 1000
        messages = [
            StoredMessage(seq, now_ns, observation_subject(name, 1, each), b"", teller.body(each))
            for seq, each in enumerate(kept, 1)
        ]
        rows = project(EVENTS, 0, messages, Context(router="t")).rows
        self.store.insert_columns("checkpoints", rows["checkpoints"].columns, token="kept")

    async def successor(self, name: str = "two") -> str:
        """Start a master that knows nothing by itself; return its doubt once it decides (none) or is in safe mode."""
        loop, _ = await self.cluster.master(name, archive=self.url)
        await until("it decides or doubts", lambda: loop.mode in {"active", "safe_mode"}, timeout_s=30)
        return loop.doubt


@asynccontextmanager
async def archive_of(cluster: ClusterUnderTest, database: Callable[[], Store]) -> AsyncIterator[tuple[str, Projector]]:
    bus, clock = await cluster.bus("projector"), SystemClock()
    streams = {name: bus.stream(name) for name in (EVENTS, CONTROL, LEDGER)}
    name = cluster.server.cluster
    projector = Projector(
        Setup(cluster=name, router="t", streams=streams, open_store=database, clock=clock, limits=QUICK)
    )
    async with running(projector):
        await projector.tried.wait()
        server = HttpServer(Api(projector, Health(projector, "t"), clock).handle, connections_max=8, served_by="test")
        try:
            yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}", projector
        finally:
            await server.stop()


@pytest.fixture
async def scene(nats_server: ServerUnderTest, database: Callable[[], Store]) -> AsyncIterator[Scene]:
    async with cluster_on(nats_server) as cluster, archive_of(cluster, database) as (url, projector):
        await lend(cluster)
        store = projector.store
        assert store is not None
        await until("a checkpoint in ClickHouse", lambda: checkpoints.newest(store, 1))
        await cluster.end("one")
        yield Scene(cluster, url, store)


async def test_it_compares_what_clickhouse_has_kept_of_its_word_and_decides(
    scene: Scene, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "leaseway.master")
    assert await scene.successor() == ""
    [checked] = [record for record in caplog.records if record.message == "history_checked"]
    assert checked.__dict__["checkpoints"] >= 1


async def test_a_commit_other_than_the_one_that_clickhouse_has_signed_means_safe_mode(scene: Scene):
    scene.keep(sign(msgspec.structs.replace(scene.newest(), digest="ab" * 16), scene.signer))
    doubt = await scene.successor()
    assert "ClickHouse" in doubt
    assert "ab" * 16 in doubt


async def test_what_its_own_key_has_not_signed_for_this_cluster_is_nobodys_word(
    scene: Scene, caplog: pytest.LogCaptureFixture
):
    other = msgspec.structs.replace(scene.newest(), digest="ab" * 16, generation=Generation("ffff0000"))
    scene.keep(
        other,  # changed after it was signed
        sign(other, Signer(new_nkey()[0])),
        sign(msgspec.structs.replace(other, cluster="elsewhere"), scene.signer),
    )
    assert await scene.successor() == ""
    [refused] = [record for record in caplog.records if record.message == "checkpoints_not_believed"]
    assert refused.__dict__["count"] == 3


async def test_a_later_history_in_clickhouse_means_safe_mode_until_an_operator_begins_one_behind_it(scene: Scene):
    later = msgspec.structs.replace(scene.newest(), generation=Generation("0041abcd"), version=7)
    scene.keep(sign(later, scene.signer))
    loop, _ = await scene.cluster.master("two", archive=scene.url)
    await until("safe mode", lambda: loop.mode == "safe_mode", timeout_s=30)
    assert "a signed checkpoint in ClickHouse has seen version 7 of generation 0041abcd" in loop.doubt
    server = scene.cluster.server
    config = Config(cluster=ClusterConfig(name=server.cluster), data=server.data, urls=UrlsConfig(projector=scene.url))
    made = await renew(config, server.url, "we looked", from_file=False)
    assert made.generation.startswith("0042")
    await until("it decides", lambda: loop.mode == "active", timeout_s=30)

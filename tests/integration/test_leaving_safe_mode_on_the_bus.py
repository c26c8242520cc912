"""The operator's command ends safe mode on a real bus, whatever a server has lost, and what was decreed holds again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import TestServer
from nats.aio.client import Client

from adapters.decisions import DecisionReader
from adapters.keys import save_credentials
from adapters.log.feed import newest_signed
from adapters.log.history import Streams
from adapters.log.witness import FileWitnessBook
from adapters.nats.control import ControlDesk
from adapters.nats.enrolment import key_path
from domain.errors import BusError, HistoryError, LeasewayError, UnreachableError
from domain.events import LeaseGranted
from domain.ids import Generation, ModelId, NodeId
from domain.ports import Witnessed
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, ledger_subject
from services.config import ClusterConfig, Config, UrlsConfig
from services.master.http import application
from services.standalone.provisioning import renew
from tests.mutations.attackers import ask, let_in
from tests.mutations.store import damage_a_follower
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import CLUSTER, provisioned_server
from tests.support.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async with provisioned_server(tmp_path / "data") as server, cluster_on(server) as made:
        yield made


def config_of(cluster: ClusterUnderTest, **urls: str) -> Config:
    return Config(cluster=ClusterConfig(name=CLUSTER), data=cluster.server.data, urls=UrlsConfig(**urls))


def decreed(cluster: ClusterUnderTest) -> None:
    """Link two models and change a setting, as an operator does."""
    with ControlDesk(cluster.server.url, cluster.server.credentials("operator"), CLUSTER) as desk:
        desk.add_link(NodeId("n1"), ModelId("m"), NodeId("n2"), ModelId("m"))
        desk.set_setting("scheduling_backend_depth", 3)
        desk.set_setting("scheduling_backend_depth", 4)


def changed_after_the_hole(cluster: ClusterUnderTest) -> int:
    """Change a setting of which an event is lost; return what holds."""
    with ControlDesk(cluster.server.url, cluster.server.credentials("operator"), CLUSTER) as desk:
        desk.set_setting("scheduling_backend_depth", 5)
        return desk.settings()["scheduling_backend_depth"]


async def lent(cluster: ClusterUnderTest, name: str, *, leases: int) -> None:
    """Let a burst come, and wait until so many leases were granted in all."""
    await cluster.state("n1", started(f"req_{name}s"), *(held(f"req_{name}{i}", i + 1) for i in range(8)))
    await cluster.decisions(LeaseGranted, count=leases)


async def loosened(cluster: ClusterUnderTest) -> Client:
    """Have the streams made anew without protection, as long as they are empty; return a client that may do everything."""
    client = await let_in(cluster)
    for stream in (LEDGER, CONTROL):
        head = await ask(client, f"STREAM.INFO.{stream}")
        if not head["state"]["messages"]:
            await ask(client, f"STREAM.DELETE.{stream}")
            await ask(client, f"STREAM.CREATE.{stream}", {**head["config"], "deny_delete": False, "deny_purge": False})
    return client


async def test_the_command_ends_safe_mode_after_a_purge_a_hole_among_control_events_and_garbage_in_the_feed(
    cluster: ClusterUnderTest,
):
    root = await loosened(cluster)
    await cluster.master("one")
    await asyncio.to_thread(decreed, cluster)
    await cluster.state("n1", registered(), finished("req_fit"))
    await cluster.state("n2", registered())
    await lent(cluster, "x", leases=1)
    await cluster.end("one")
    await ask(root, f"STREAM.MSG.DELETE.{CONTROL}", {"seq": 2})
    await ask(root, f"STREAM.PURGE.{LEDGER}", {})
    await root.jetstream().publish(f"lw.{CLUSTER}.safe_mode.entered", b"{}", headers={"Lw-Order": "a-b-1.0"})
    await root.close()
    loop, _ = await cluster.master("two", data=cluster.server.data)
    await until("it doubts", lambda: loop.mode == "safe_mode")
    made = await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)
    assert (made.version > 1, made.clo) == (True, 2)
    await until("it decides", lambda: loop.mode == "active")
    await cluster.state("n1", registered())
    await cluster.state("n2", registered())
    await until("its link holds again", lambda: loop.state.control.links)
    assert loop.state.control.settings["cluster.scheduling_backend_depth"] == 4
    assert await asyncio.to_thread(changed_after_the_hole, cluster) == 5
    await until("it lends", lambda: loop.state.leases)
    feed = (await cluster.bus("projector")).stream(DECISIONS)
    reader = DecisionReader(CLUSTER, cluster.server.credentials("n1").master_public)

    async def granted() -> bool:
        signed, _ = await newest_signed(feed, reader)
        return signed is not None and signed.generation == made.generation and signed.lease is not None

    await until("nodes are told", granted)


async def test_the_command_asks_the_masters_behind_what_they_have_seen_the_new_generation_must_sort(
    cluster: ClusterUnderTest,
):
    """On several machines the operator's data directory has seen nothing."""
    data = cluster.server.data / "elsewhere"
    await FileWitnessBook(data / "checkpoint-far.json").write(
        Witnessed(generation=Generation("0007abcd"), version=9, digest="ab" * 16)
    )
    loop, _ = await cluster.master("far", data=data)
    await until("it doubts", lambda: loop.mode == "safe_mode")
    async with TestServer(application(loop, Path("none"))) as server:
        url = f"http://127.0.0.1:9,{server.make_url('')}"
        made = await renew(config_of(cluster, master=url.rstrip("/")), cluster.server.url, "we looked", from_file=False)
    assert made.generation.startswith("0008")
    await until("it decides", lambda: loop.mode == "active")


async def test_a_torn_witness_on_a_masters_own_machine_is_put_aside_by_it_and_only_by_the_operators_word(
    cluster: ClusterUnderTest,
):
    witness = cluster.server.data / "elsewhere" / "checkpoint-far.json"
    witness.parent.mkdir()
    witness.write_bytes(b"\0" * 40)
    loop, _ = await cluster.master("far", data=witness.parent)
    await until("it doubts", lambda: loop.mode == "safe_mode")
    with pytest.raises(LeasewayError):
        await renew(config_of(cluster), "nats://127.0.0.1:9", "we looked", from_file=False)
    assert witness.exists()
    await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)
    await until("it decides", lambda: loop.mode == "active")
    assert witness.with_suffix(".unreadable").read_bytes() == b"\0" * 40


async def test_a_master_that_does_not_know_the_operator_says_what_it_needs(cluster: ClusterUnderTest):
    master = cluster.server.credentials("master")
    path = key_path(cluster.server.data, "master")
    save_credentials(path, msgspec.structs.replace(master, operator_public=""))
    (cluster.server.data / "checkpoint-one.json").write_bytes(b"\0")
    loop, _ = await cluster.master("one")
    await until("it doubts", lambda: loop.mode == "safe_mode")
    assert "bring it master.json again" in loop.doubt
    save_credentials(path, master)
    await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)
    await until("it says why the word does not help", lambda: "whose key is not known here" in loop.doubt)
    assert "bring it master.json again" in loop.doubt


async def test_what_is_no_control_event_is_named_once_the_generation_has_begun(cluster: ClusterUnderTest):
    root = await loosened(cluster)
    await cluster.decree(link("n1", "n2"), link("n2", "n1"))  # without the headers that control events have
    await ask(root, f"STREAM.MSG.DELETE.{CONTROL}", {"seq": 1})
    await root.close()
    with pytest.raises(HistoryError, match=r"generation 0001.* has begun.*'Es-V', it is no control event"):
        await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)
    loop, _ = await cluster.master("one")
    await until("it decides", lambda: loop.mode == "active")


async def test_a_ledger_that_grows_while_the_word_is_given_takes_no_word(cluster: ClusterUnderTest):
    """Or one of which the server counts what it has lost: then it must be started anew."""
    bus = await cluster.bus("master")
    streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))

    async def grow() -> None:
        while True:
            with suppress(BusError):
                await streams.ledger.publish(ledger_subject(CLUSTER), b"{")

    growing = asyncio.create_task(grow())
    try:
        with pytest.raises(HistoryError, match=r"wrong last sequence.*start nats-server anew"):
            await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)
    finally:
        growing.cancel()


async def test_a_stream_that_the_server_has_stopped_is_named_by_the_command(cluster: ClusterUnderTest):
    await cluster.server.server.stop()
    damage_a_follower(random.Random(1), cluster.server.data, None)  # type: ignore[arg-type]  # it asks nothing of the store
    await cluster.server.server.start()
    with pytest.raises(UnreachableError, match=r"stream LW_\w+: the server does not serve it"):
        await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)

"""Provisioning a real server: the same result however often, and nothing made anew that was there."""

from pathlib import Path

import pytest
from nats.js.api import StreamInfo

from adapters.keys import derive_mac_key
from adapters.nats.enrolment import enrol, ensure_core_members, key_path, load_roster
from adapters.nats.provision import administer, provision
from adapters.nats.server import NatsServer
from domain.errors import BadConfigError, BadIdError, HistoryLostError, UnreachableError
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS
from tests.support.nats import CLUSTER, NODES, ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real


async def info(server: ServerUnderTest, stream: str) -> StreamInfo:
    return await (await server.client("master")).jetstream().stream_info(stream)


async def delete(server: ServerUnderTest, *streams: str) -> None:
    async with administer(server.data, server.url, "provisioner") as client:
        for stream in streams:
            await client.jetstream().delete_stream(stream)


async def test_a_second_run_makes_and_changes_nothing(nats_server: ServerUnderTest) -> None:
    first = nats_server.provisioned
    keys = {path.name: path.read_bytes() for path in (nats_server.data / "keys").iterdir()}
    again = await nats_server.add_nodes(NODES)
    assert (again.streams_made, again.streams_changed, again.consumers_made) == ((), (), ())
    assert again.roster == first.roster
    assert {path.name: path.read_bytes() for path in (nats_server.data / "keys").iterdir()} == keys


async def test_every_stream_has_its_limits(nats_server: ServerUnderTest) -> None:
    found = {name: (await info(nats_server, name)).config for name in (EVENTS, CONTROL, LEDGER, DECISIONS, SNAPSHOTS)}
    assert all(config.deny_delete and config.deny_purge and not config.allow_direct for config in found.values())
    assert {name: (config.max_age or 0) // 86400 for name, config in found.items()} == {
        EVENTS: 7, CONTROL: 0, LEDGER: 14, DECISIONS: 14, SNAPSHOTS: 0
    }  # fmt: skip
    assert {name: config.discard for name, config in found.items() if config.discard != "new"} == {SNAPSHOTS: "old"}
    assert [name for name, config in found.items() if (config.max_bytes or -1) > 0] == [EVENTS, SNAPSHOTS]


async def test_keys_are_for_their_owner_alone_and_hold_what_the_role_needs(nats_server: ServerUnderTest) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (nats_server.data / "keys").iterdir()}
    assert set(modes.values()) == {0o600}
    master = nats_server.credentials("master")
    for name in ("n1", "gateway-main", "projector", "operator"):
        given = nats_server.credentials(name)
        assert given.mac_key == derive_mac_key(master.cluster_mac_secret, name)
        assert (given.master_public, given.master_seed) == (master.master_public, "")
        assert bool(given.cluster_mac_secret) == (name == "operator")


async def test_a_node_added_later_speaks_at_once_and_nobody_is_disconnected(nats_server: ServerUnderTest) -> None:
    lost: list[str] = []

    async def disconnected() -> None:
        lost.append("n1")

    before = await nats_server.client("n1", disconnected_cb=disconnected)
    added = await nats_server.add_nodes({"n3": "http://127.0.0.1:8103"})
    assert added.consumers_made == ("LW_CONTROL/n3", "LW_DECISIONS/n3")
    assert [(member.name, member.url) for member in added.nodes] == [
        ("n1", "http://127.0.0.1:8101"), ("n2", "http://127.0.0.1:8102"), ("n3", "http://127.0.0.1:8103")
    ]  # fmt: skip
    after = await nats_server.client("n3")
    assert b'"seq":1}' in (await after.request("lw.local.node.n3.status.registered", b"{}")).data
    assert b'"seq":2}' in (await before.request("lw.local.node.n1.status.registered", b"{}")).data
    assert lost == []


async def test_a_node_is_added_to_three_servers_at_once(nats_cluster: ServerUnderTest) -> None:
    await nats_cluster.add_nodes({"n3": ""})
    for server in nats_cluster.servers:
        async with administer(nats_cluster.data, server.url, "n3") as client:
            assert (
                b'"stream":"LW_EVENTS"'
                in (await client.request("lw.local.node.n3.status.registered", b"{}", timeout=5)).data
            )
    assert (await info(nats_cluster, LEDGER)).config.num_replicas == 3


async def test_a_retired_node_is_cut_off(nats_server: ServerUnderTest) -> None:
    gone: list[str] = []

    async def disconnected() -> None:
        gone.append("n2")

    client = await nats_server.client("n2", disconnected_cb=disconnected, allow_reconnect=False)
    done = await provision(nats_server.data, nats_server.url, CLUSTER, "strict", {}, retired=["n2"])
    assert [member.name for member in done.nodes] == ["n1"]
    await until("the disconnect", lambda: gone and client.is_closed)
    # the server says why and closes at once; the reset may reach us before its words do
    with pytest.raises(UnreachableError, match=r"as n2: .*(Authorization Violation|reset|closed)"):
        async with administer(nats_server.data, nats_server.url, "n2"):
            pass
    async with administer(nats_server.data, nats_server.url, "n1"):
        pass


async def test_a_moved_credentials_file_keeps_its_node_its_key(nats_server: ServerUnderTest, tmp_path: Path) -> None:
    key_path(nats_server.data, "n1").rename(tmp_path / "on-another-machine.json")
    before = nats_server.provisioned.roster.member("n1")
    assert (await nats_server.add_nodes(NODES)).roster.member("n1") == before
    assert not key_path(nats_server.data, "n1").exists()


@pytest.mark.parametrize("lost", [LEDGER, EVENTS, CONTROL, DECISIONS])
async def test_a_lost_stream_with_a_witness_is_not_made_anew(nats_server: ServerUnderTest, lost: str) -> None:
    await delete(nats_server, lost)
    with pytest.raises(
        HistoryLostError, match=f"^stream {lost}: is missing although a commit has been witnessed; "
    ) as raised:
        await provision(nats_server.data, nats_server.url, CLUSTER, "strict", NODES, witnessed=True)
    assert raised.value.stream == lost


async def test_a_lost_ledger_is_noticed_without_a_witness_by_the_messages_of_other_streams(
    nats_server: ServerUnderTest,
) -> None:
    await (await nats_server.client("n1")).request("lw.local.node.n1.status.registered", b"{}")
    await delete(nats_server, LEDGER)
    with pytest.raises(HistoryLostError, match="is missing although LW_EVENTS has messages"):
        await nats_server.add_nodes(NODES)


async def test_a_lost_store_with_a_witness_is_not_made_anew(nats_server: ServerUnderTest) -> None:
    await delete(nats_server, EVENTS, CONTROL, LEDGER, DECISIONS, SNAPSHOTS)
    with pytest.raises(HistoryLostError):
        await provision(nats_server.data, nats_server.url, CLUSTER, "strict", NODES, witnessed=True)
    made = await provision(
        nats_server.data, nats_server.url, CLUSTER, "strict", NODES,
        witnessed=True, recreate=[EVENTS, CONTROL, LEDGER, DECISIONS],
    )  # fmt: skip
    assert made.streams_made == (EVENTS, CONTROL, LEDGER, DECISIONS, SNAPSHOTS)


async def test_a_first_run_that_was_cut_short_is_finished(nats_server: ServerUnderTest) -> None:
    await delete(nats_server, LEDGER, DECISIONS)
    assert (await nats_server.add_nodes(NODES)).streams_made == (LEDGER, DECISIONS)


async def test_lost_snapshots_are_made_anew_since_the_ledger_has_them_all(nats_server: ServerUnderTest) -> None:
    await delete(nats_server, SNAPSHOTS)
    made = await provision(nats_server.data, nats_server.url, CLUSTER, "strict", NODES, witnessed=True)
    assert made.streams_made == (SNAPSHOTS,)


async def test_room_for_facts_is_kept_until_it_is_set(nats_server: ServerUnderTest) -> None:
    changed = await provision(nats_server.data, nats_server.url, CLUSTER, "strict", {}, events_bytes=5_000_000)
    assert changed.streams_changed == (EVENTS,)
    assert (await nats_server.add_nodes(NODES)).streams_changed == ()
    assert (await info(nats_server, EVENTS)).config.max_bytes == 5_000_000


async def test_another_durability_than_the_streams_is_refused_by_name(nats_server: ServerUnderTest) -> None:
    with pytest.raises(BadConfigError, match="stream LW_EVENTS: persist_mode must be async, is default; nats-server: "):
        await provision(nats_server.data, nats_server.url, CLUSTER, "relaxed", {})


@pytest.mark.parametrize("name", ["master", "operator", "system", "preflight", "gateway-main"])
def test_a_reserved_name_is_no_node(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadConfigError, match=f"node id '{name}': is reserved"):
        enrol(tmp_path, CLUSTER, {name: ""}, {})
    with pytest.raises(BadIdError):
        enrol(tmp_path, CLUSTER, {"N.1>": ""}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    ensure_core_members(tmp_path, "one")
    with pytest.raises(BadConfigError, match="cluster 'two': the data directory holds cluster 'one'"):
        load_roster(tmp_path, "two")


async def test_keys_are_made_before_a_server_answers_and_serve_it_later(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, cluster=CLUSTER, port=0, monitor_port=0)
    with pytest.raises(UnreachableError):
        await provision(tmp_path, "nats://127.0.0.1:9", CLUSTER, "strict", NODES)
    try:
        await server.start()
        async with administer(tmp_path, server.url, "n1") as client:
            assert client.is_connected
    finally:
        await server.stop()

"""The preflight sees a broken bus, names what is wrong with it, and refuses it."""

import json
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from adapters.nats.layout import stream_configs
from adapters.nats.preflight import Report, preflight, require_sound
from adapters.nats.provision import administer, provision
from adapters.nats.server import NatsServer
from domain.errors import BrokenSetupError, UnreachableError
from domain.subjects import SNAPSHOTS
from tests.support.nats import CLUSTER, NODES, ServerUnderTest, provisioned_server
from tests.support.rogue import flat_server

pytestmark = pytest.mark.real


def codes(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in report.findings]


async def look(server: ServerUnderTest, durability: Literal["strict", "relaxed"] = "strict") -> Report:
    return await preflight(server.data, server.url, CLUSTER, durability, replicas=len(server.servers))


async def test_a_provisioned_bus_has_nothing_to_refuse(nats_server: ServerUnderTest) -> None:
    report = await look(nats_server)
    assert codes(report) == [("replicas", "warn")]
    assert report.version.startswith("2.15.")
    require_sound(report)


async def test_three_servers_have_nothing_to_refuse_nor_to_warn_of(nats_cluster: ServerUnderTest) -> None:
    assert (await look(nats_cluster)).findings == ()


async def test_a_relaxed_bus_is_sound_as_relaxed_and_refused_as_strict(tmp_path: Path) -> None:
    async with provisioned_server(tmp_path, durability="relaxed") as server:
        assert codes(await look(server, "relaxed")) == [("durability", "warn")]
        report = await look(server, "strict")
        with pytest.raises(BrokenSetupError, match="stream LW_EVENTS: persist_mode must be default, is async"):
            require_sound(report)
        require_sound(report, allow=["stream"])


@pytest.mark.parametrize("durability", ["strict", "relaxed"])
async def test_a_server_that_syncs_every_other_minute_is_refused_unless_allowed(
    tmp_path: Path, durability: Literal["strict", "relaxed"]
) -> None:
    server = NatsServer(tmp_path, cluster=CLUSTER, port=0, monitor_port=0, sync_interval="2m")
    try:
        await server.start()
        await provision(tmp_path, server.url, CLUSTER, durability, NODES)
        report = await preflight(tmp_path, server.url, CLUSTER, durability)
    finally:
        await server.stop()
    assert ("sync_interval", "refuse") in codes(report)
    with pytest.raises(BrokenSetupError, match="jetstream sync_interval must be always, is 120s"):
        require_sound(report)
    require_sound(report, allow=["sync_interval"])


async def test_one_flat_account_is_refused_by_trying_it(tmp_path: Path) -> None:
    async with flat_server(tmp_path, permitted=True) as server:
        report = await look(server)
    assert ("accounts", "refuse") in codes(report)


class OpenServer(NatsServer):
    """A server whose configuration somebody has opened by hand."""

    def render(self) -> str:
        accounts = self.data / "nats" / "accounts.conf"
        users = "  NODES {\n    users: [\n"
        assert users in accounts.read_text()
        accounts.write_text(accounts.read_text().replace(users, f'{users}      {{user: "guest", password: "guest"}}\n'))
        return f"no_auth_user: guest\n{super().render()}"


async def test_a_default_user_is_refused(tmp_path: Path) -> None:
    async with provisioned_server(tmp_path):
        pass
    server = OpenServer(tmp_path, cluster=CLUSTER, port=0, monitor_port=0)
    try:
        await server.start()
        report = await preflight(tmp_path, server.url, CLUSTER, "strict")
    finally:
        await server.stop()
    assert ("no_default_user", "refuse") in codes(report)


async def test_a_stream_without_its_limits_is_refused_by_field(tmp_path: Path) -> None:
    async with flat_server(tmp_path, permitted=True) as server:
        found = {finding.message for finding in (await look(server)).findings}
    assert "stream LW_LEDGER: deny_purge must be True, is default" in found
    assert "stream LW_LEDGER: allow_direct must be default, is True" in found


async def test_a_missing_stream_is_named_with_its_remedy(nats_server: ServerUnderTest) -> None:
    async with administer(nats_server.data, nats_server.url, "provisioner") as client:
        await client.jetstream().delete_stream(SNAPSHOTS)
    report = await look(nats_server)
    assert [finding.message for finding in report.refusals] == [
        "stream LW_SNAP: must exist, is missing; `leaseway provision` makes it"
    ]


async def test_a_report_reads_as_json(nats_server: ServerUnderTest) -> None:
    told = json.loads(msgspec.json.encode(await look(nats_server)))
    assert told["findings"][0].keys() == {"code", "severity", "message"}


async def test_a_silent_bus_is_named(tmp_path: Path) -> None:
    async with provisioned_server(tmp_path) as server:
        url = server.url
    with pytest.raises(UnreachableError, match=url):
        await preflight(tmp_path, url, CLUSTER, "strict")


def test_strict_streams_differ_from_relaxed_ones_in_facts_alone() -> None:
    pairs = zip(stream_configs(CLUSTER, "strict"), stream_configs(CLUSTER, "relaxed"), strict=True)
    assert [strict.name for strict, relaxed in pairs if strict != relaxed] == ["LW_EVENTS"]

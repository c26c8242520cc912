"""The embedded nats-server starts, says what is wrong when it cannot, and ends when told to."""

import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.nats.provision import administer, provision
from adapters.nats.server import NatsServer, check_version, find_binary
from adapters.ports import free_port
from domain.errors import BadConfigError, ChildFailedError, PortInUseError, UnreachableError
from tests.support.family import pause
from tests.support.nats import CLUSTER, NODES

pytestmark = pytest.mark.real


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path, cluster=CLUSTER, port=0, monitor_port=0)
    yield server
    await server.stop()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = NatsServer(tmp_path, cluster=CLUSTER, port=port, monitor_port=0)
        with pytest.raises(
            PortInUseError, match=f"^nats port {port}: must be free on 127.0.0.1: Address already in use$"
        ):
            await server.start()
    assert server.pid is None
    assert not (tmp_path / "nats").exists()


async def test_a_monitor_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = NatsServer(tmp_path, cluster=CLUSTER, port=free_port(), monitor_port=taken.getsockname()[1])
        with pytest.raises(PortInUseError, match=r"^nats monitor port"):
            await server.start()


async def test_a_missing_binary_is_named_with_its_remedy(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NATS_SERVER_BIN", raising=False)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BadConfigError, match=r"no such program beside this Python or on PATH; install `leaseway.embedded."
    ):
        await server.start()


def test_a_binary_that_is_named_but_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", "/nowhere/nats-server")
    with pytest.raises(
        BadConfigError, match="NATS_SERVER_BIN must name an executable file, got '/nowhere/nats-server'"
    ):
        find_binary()


def test_the_binary_that_is_named_goes_before_the_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = script(tmp_path / "mine", "true")
    monkeypatch.setenv("NATS_SERVER_BIN", str(named))
    assert find_binary() == named


@pytest.mark.parametrize("version", ["2.9.10", "2.15.0", "2.14.6"])
async def test_an_older_server_is_refused_with_both_versions(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    old = script(tmp_path / "old", f"echo nats-server: v{version}")
    monkeypatch.setenv("NATS_SERVER_BIN", str(old))
    with pytest.raises(BadConfigError, match=f"must be version 2.15.1 or newer, found {version}$"):
        await server.start()


@pytest.mark.parametrize("version", ["2.15.1", "2.15.1-RC.1", "2.16.0", "3.0.0", "2.100.0"])
def test_a_newer_server_is_taken(tmp_path: Path, version: str) -> None:
    assert check_version(script(tmp_path / "new", f"echo nats-server: v{version}")) == version


def test_a_program_that_is_no_nats_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match=r"must be version 2.15.1 or newer, found none$"):
        check_version(script(tmp_path / "other", "true"))


async def test_a_server_that_ends_while_starting_gives_its_last_words(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = script(
        tmp_path / "broken", 'case "$1" in --version) echo v2.15.1;; *) echo "nats-server: no disk"; exit 1;; esac'
    )
    monkeypatch.setenv("NATS_SERVER_BIN", str(broken))
    with pytest.raises(ChildFailedError, match="ended while starting: nats-server: no disk"):
        await server.start()


async def test_stopping_twice_or_before_the_start_does_nothing(server: NatsServer) -> None:
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()
    assert server.pid is None


async def test_a_paused_server_can_be_stopped(server: NatsServer) -> None:
    await server.start()
    assert server.pid is not None
    pause(server.pid)
    await server.stop()
    assert server.pid is None


async def test_a_crash_is_seen_by_who_waits(server: NatsServer) -> None:
    await server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL


async def test_chosen_ports_stay_over_a_restart(server: NatsServer) -> None:
    await server.start()
    url, monitor_url = server.url, server.monitor_url
    await server.stop()
    await server.start()
    assert (server.url, server.monitor_url) == (url, monitor_url)


async def test_acknowledged_messages_survive_a_kill(server: NatsServer) -> None:
    await server.start()
    await provision(server.data, server.url, CLUSTER, "strict", NODES)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.start()
    again = await provision(server.data, server.url, CLUSTER, "strict", NODES)
    assert (again.streams_made, again.streams_changed, again.consumers_made) == ((), (), ())


async def test_a_server_with_other_keys_is_named_as_refusing(server: NatsServer, tmp_path: Path) -> None:
    await server.start()
    with pytest.raises(UnreachableError, match=r"cannot be reached as system: .*Authorization Violation"):
        await provision(tmp_path / "other", server.url, CLUSTER, "strict", NODES)


async def test_its_log_takes_no_more_than_so_much_of_the_disk_however_often_somebody_is_refused(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.nats.server._LOG_BYTES", 20_000)
    await server.start()
    await provision(server.data, server.url, CLUSTER, "strict", NODES, gateways={"main": ""})
    async with administer(server.data, server.url, "n1") as node:
        for _ in range(20):
            for _ in range(100):
                await node.publish("lw.local.ledger", b"{}")
            await node.flush()
    files = sorted(server.log_path.parent.glob("nats-server.log*"))
    assert len(files) > 1
    assert sum(path.stat().st_size for path in files) < 6 * 20_000
    # not in the newest: the last line of all may have been the one that filled a file
    assert all("Publish Violation" in path.read_text() for path in files if path != server.log_path)

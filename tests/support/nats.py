"""A real, provisioned nats-server for a test, and a cluster of three.

    @pytest.mark.real
    async def test_something(nats_server):
        bus = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")

Each test has its own server (about 0.3 s): stream names are the same in every cluster. `provisioned_server` takes options.
"""

import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from adapters.keys import Credentials, load_credentials
from adapters.nats.accounts import inbox_prefix
from adapters.nats.enrolment import ensure_core_members, key_path
from adapters.nats.layout import Durability
from adapters.nats.provision import Provisioned, provision
from adapters.nats.server import NatsServer, RouteConfig
from adapters.ports import HOST, free_port
from tests.support.family import pause

NODES: Mapping[str, str] = {"n1": "http://127.0.0.1:8101", "n2": "http://127.0.0.1:8102"}
CLUSTER = "local"
_CLUSTER_READY_S = 60.0
"""A vote that is split at the start is held again after 4 to 9 s (nats-server's raft), and may be split again."""


class ServerUnderTest:
    """One server, or three that are one bus, with everybody's credentials, to be disturbed at will."""

    def __init__(self, data: Path, servers: Sequence[NatsServer], provisioned: Provisioned) -> None:
        self.data, self.servers, self.provisioned = data, servers, provisioned
        self.cluster = provisioned.roster.cluster
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        """Of the server, or comma-separated of all three."""
        return ",".join(server.url for server in self.servers)

    @property
    def server(self) -> NatsServer:
        return self.servers[0]

    def credentials(self, name: str) -> Credentials:
        """Of master, projector, operator, provisioner, system, n1, n2 or gateway-main."""
        return load_credentials(key_path(self.data, name))

    async def client(self, name: str, *, errors: list[str] | None = None, **options: object) -> Client:
        """Return a plain nats-py connection as `name`, closed with the server; what the server refuses is added to `errors`."""
        heard = errors if errors is not None else []

        async def note(error: Exception) -> None:
            heard.append(str(error))

        client = await nats.connect(
            self.url.split(","),
            nkeys_seed_str=self.credentials(name).nkey_seed,
            inbox_prefix=inbox_prefix(name),
            error_cb=note,
            **options,
        )
        self._clients.append(client)
        return client

    async def add_nodes(self, nodes: Mapping[str, str]) -> Provisioned:
        """Enrol more nodes on the running bus."""
        self.provisioned = await provision(
            self.data, self.url, self.cluster, "strict", nodes, replicas=len(self.servers)
        )
        return self.provisioned

    def kill(self, index: int = 0) -> None:
        """kill -9; what was acknowledged is on disk."""
        self._signal(index, signal.SIGKILL)

    def pause(self, index: int = 0) -> None:
        """Stop the server; when this returns it stands still."""
        pid = self.servers[index].pid
        assert pid is not None, "the server runs"
        pause(pid)

    def resume(self, index: int = 0) -> None:
        self._signal(index, signal.SIGCONT)

    async def stop(self, index: int = 0) -> None:
        await self.servers[index].stop()

    async def restart(self, index: int = 0) -> None:
        """Stop the server (if it still runs) and start it on the same port and files."""
        await self.servers[index].stop()
        await self.servers[index].start()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    def log(self) -> str:
        """Return what the servers have logged."""
        return "".join(server.log_path.read_text() for server in self.servers)

    def _signal(self, index: int, number: signal.Signals) -> None:
        pid = self.servers[index].pid
        assert pid is not None, "the server runs"
        os.kill(pid, number)
        if number == signal.SIGKILL:
            child = self.servers[index]._child
            assert child is not None
            child.wait(10)


@asynccontextmanager
async def provisioned_server(
    data: Path,
    *,
    cluster: str = CLUSTER,
    nodes: Mapping[str, str] = NODES,
    durability: Durability = "strict",
) -> AsyncIterator[ServerUnderTest]:
    """Yield a provisioned server with its files under `data`."""
    async with AsyncExitStack() as stack:
        server = NatsServer(data, cluster=cluster, port=0, monitor_port=0)
        stack.push_async_callback(server.stop)
        await server.start()
        made = await provision(data, server.url, cluster, durability, nodes, gateways={"main": ""})
        under_test = ServerUnderTest(data, [server], made)
        stack.push_async_callback(under_test.close)
        yield under_test


@asynccontextmanager
async def provisioned_cluster(data: Path, *, cluster: str = CLUSTER) -> AsyncIterator[ServerUnderTest]:
    """Yield three servers on loopback that are one bus, every stream on all three."""
    ports = [free_port() for _ in range(3)]
    peers = tuple(f"nats-route://{HOST}:{port}" for port in ports)
    servers = [
        NatsServer(
            data,
            cluster=cluster,
            port=0,
            monitor_port=0,
            name=f"nats{number}",
            routes=RouteConfig(cluster=cluster, port=port, peers=peers),
        )
        for number, port in enumerate(ports)
    ]
    ensure_core_members(data, cluster)
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.stop)
            server.launch()
        for server in servers:
            await server.ready(deadline_s=_CLUSTER_READY_S)
        urls = ",".join(server.url for server in servers)
        made = await provision(data, urls, cluster, "strict", NODES, gateways={"main": ""}, replicas=3)
        under_test = ServerUnderTest(data, servers, made)
        stack.push_async_callback(under_test.close)
        yield under_test


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[ServerUnderTest]:
    """A provisioned server of this test alone: nodes n1 and n2, gateway-main, durability strict."""
    async with provisioned_server(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def nats_cluster(tmp_path: Path) -> AsyncIterator[ServerUnderTest]:
    """Three servers that are one bus, of this test alone (about 3 s)."""
    async with provisioned_cluster(tmp_path / "data") as server:
        yield server

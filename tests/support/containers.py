"""The server tier: NATS of three servers and a ClickHouse server; in containers where an engine answers, else as processes here.

    async with bus_of_three(tmp_path / "data") as bus, clickhouse_server(tmp_path / "clickhouse") as dsn: ...

Images are those of compose/.env.example. Without a container engine the servers are nats-server from its wheel, three on
loopback, and ClickHouse's embedded engine behind its HTTP interface.
"""

import contextlib
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from adapters.nats.enrolment import ensure_core_members
from adapters.nats.provision import Provisioned, provision
from adapters.nats.server import NatsServer, RouteConfig
from adapters.ports import HOST, free_port
from tests.support.clickhouse_http import HttpClickhouse
from tests.support.nats import CLUSTER, NODES, provisioned_cluster
from tests.support.processes import ROOT
from tests.support.waiting import until

PING_S = 3
PULL_S = 300
"""An image may have to be fetched first."""


@cache
def engine_answers() -> bool:
    """Tell whether a container engine answers a ping."""
    host = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    family, address = (
        (socket.AF_UNIX, host.path) if host.scheme == "unix" else (socket.AF_INET, (host.hostname, host.port or 2375))
    )
    with socket.socket(family) as asked:
        asked.settimeout(PING_S)
        try:
            asked.connect(address)
            asked.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in asked.recv(64)
        except OSError:
            return False


def image(name: str) -> str:
    """Return the image that compose has for `name`, such as NATS."""
    found = re.search(rf"^{name}_IMAGE=(\S+)$", (ROOT / "compose" / ".env.example").read_text(), re.MULTILINE)
    assert found is not None, f"{name}_IMAGE: is not in compose/.env.example"
    return found[1]


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """A provisioned bus of three servers."""

    url: str
    data: Path
    provisioned: Provisioned


@contextlib.asynccontextmanager
async def bus_of_three(data: Path, nodes: Mapping[str, str] = NODES) -> AsyncIterator[Bus]:
    """Run three servers that are one bus, every stream on all three, while the block runs."""
    if engine_answers():
        async with _servers_in_containers(data) as url:
            made = await provision(data, url, CLUSTER, "strict", nodes, gateways={"main": ""}, replicas=3)
            yield Bus(url=url, data=data, provisioned=made)
    else:
        async with provisioned_cluster(data) as server:
            yield Bus(url=server.url, data=data, provisioned=server.provisioned)


@contextlib.asynccontextmanager
async def _servers_in_containers(data: Path) -> AsyncIterator[str]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415  # see engine_answers

    ports = [free_port() for _ in range(9)]
    peers = tuple(f"nats-route://{HOST}:{port}" for port in ports[:3])
    ensure_core_members(data, CLUSTER)
    with contextlib.ExitStack() as stack:
        servers = []
        for at in range(3):
            routes = RouteConfig(cluster=CLUSTER, port=ports[at], peers=peers)
            server = NatsServer(
                data, cluster=CLUSTER, port=ports[3 + at], monitor_port=ports[6 + at], name=f"nats{at}", routes=routes
            )
            config = data / "nats" / f"{server.name}.conf"
            config.write_text(server.render())
            # the host's own network and paths: the configuration means the same inside and outside
            container = DockerContainer(image("NATS")).with_kwargs(network_mode="host")
            container = container.with_volume_mapping(str(data), str(data), "rw").with_command(["-c", str(config)])
            stack.enter_context(container)
            servers.append(server)
        for server in servers:
            await until(f"{server.name} to be healthy", partial(_is_healthy, server), timeout_s=PULL_S)
        yield ",".join(server.url for server in servers)


async def _is_healthy(server: NatsServer) -> bool:
    try:
        async with aiohttp.ClientSession() as client, client.get(f"{server.monitor_url}/healthz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


@contextlib.asynccontextmanager
async def clickhouse_server(directory: Path) -> AsyncIterator[str]:
    """Run a ClickHouse server while the block runs, and give its dsn."""
    if not engine_answers():
        async with HttpClickhouse(directory) as server:
            yield server.dsn
        return
    from testcontainers.community.clickhouse import ClickHouseContainer  # noqa: PLC0415  # see engine_answers

    password = secrets.token_hex(8)
    with ClickHouseContainer(
        image("CLICKHOUSE"), port=8123, username="leaseway", password=password, dbname="leaseway"
    ) as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(8123)
        yield f"http://leaseway:{password}@{host}:{port}/leaseway"

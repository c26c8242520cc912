"""No process answers a browser whose page has made its own name lead to this machine; whom it answers, it answers as before."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from adapters.http.server import Call, HttpServer
from adapters.nats.enrolment import key_path
from services.config import BusConfig, ClickhouseConfig, Config, HttpConfig, NodeConfig, NodeModel
from services.console import main as console
from services.gateway import main as gateway
from services.hosts import SETTING, of_operators
from services.master import main as master
from services.master.witnesses import NOTHING, clickhouse_at, doubted_by
from services.node import main as node
from services.projector import main as projector
from tests.support.nats import ServerUnderTest

pytestmark = pytest.mark.real
Run = Callable[[Config, Callable[[str], None], asyncio.Event], Awaitable[None]]
PROCESSES: dict[str, tuple[Run, str]] = {
    "master": (master.run, "master"),
    "projector": (projector.run, "projector"),
    "gateway": (gateway.run, "gateway-main"),
    "node": (node.run, "n1"),
    "console": (console.run, "it has no key"),
}
OPERATORS = ("master", "projector", "console")
EVIL = "evil.example"


@asynccontextmanager
async def running(kind: str, server: ServerUnderTest, data: Path, http: HttpConfig) -> AsyncIterator[str]:
    """Run a process of its own main for the length of the block; yield where it listens."""
    run, name = PROCESSES[kind]
    config = Config(
        bus=BusConfig(url=server.url, credentials=key_path(server.data, name)),
        http=http,
        data=data,
        clickhouse=ClickhouseConfig(dsn="http://u:p@127.0.0.1:9/away"),
        node=NodeConfig(id="n1", models=(NodeModel(id="m", url="http://127.0.0.1:9"),)),
    )
    data.mkdir(exist_ok=True)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.ensure_future(run(config, ready.set_result, stop))
    try:
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED, timeout=30)
        yield ready.result()
    finally:
        stop.set()
        await task


async def answer(url: str, path: str = "/health", **headers: str) -> tuple[int, Any]:
    """Return (status, JSON) of a GET with just these headers."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join((f"GET {path} HTTP/1.1", *lines, "Connection: close", "", "")).encode())
    raw = await reader.read()
    writer.close()
    return int(raw[9:12]), json.loads(raw.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("kind", PROCESSES)
async def test_no_process_at_loopback_answers_to_a_name_that_nobody_has_stated(
    kind: str, nats_server: ServerUnderTest, tmp_path: Path
) -> None:
    async with running(kind, nats_server, tmp_path / "data", HttpConfig(allowed_hosts="ours.example")) as url:
        port = urlsplit(url).port
        status, said = await answer(url, Host=f"{EVIL}:{port}")
        assert (status, said["error"]["code"]) == (421, "host_not_allowed")
        assert EVIL in said["error"]["message"]
        assert SETTING in said["error"]["message"]
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "ours.example"):
            assert (host, (await answer(url, Host=host))[0]) in ((host, 200), (host, 503))
        status, said = await answer(url, Host=f"127.0.0.1:{port}", Origin=f"http://{EVIL}")
        assert (status == 403 and said["error"]["code"] == "origin_not_allowed") == (kind in OPERATORS)


async def test_who_is_not_answered_to_by_the_name_that_it_asked_for_says_so_of_whom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def nothing(_: Call) -> web.StreamResponse:
        raise AssertionError("nobody is let in")

    server = HttpServer(nothing, connections_max=8, hosts=of_operators(Config()))
    port = await server.start("127.0.0.1", 0)
    assert (
        await clickhouse_at(f"http://0x7f000001:{port}")() == NOTHING
    )  # a name that leads to loopback, and no address
    assert await doubted_by([f"http://0x7f000001:{port}"]) == []
    await server.stop()
    said = [record for record in caplog.records if record.name == "leaseway.master"]
    assert {record.message for record in said[:-1]} == {"clickhouse_refuses"}
    assert said[-1].message == "master_refuses"
    assert all("0x7f000001" in record.why and SETTING in record.why for record in said)  # type: ignore[attr-defined]  # what a log call adds has no type


async def test_a_load_balancer_that_asks_in_http_1_0_and_states_no_host_is_answered_and_nobody_else_without_one() -> (
    None
):
    async def health(call: Call) -> web.StreamResponse:
        return web.json_response({"path": call.path})

    server = HttpServer(health, connections_max=8, hosts=of_operators(Config()))
    port = await server.start("127.0.0.1", 0)
    answers = {}
    for head in ("OPTIONS /health HTTP/1.0", "GET /health HTTP/1.1", "GET /health HTTP/1.0\r\nHost: evil.example"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}\r\n\r\n".encode())
        answers[head.partition(" ")[2]] = int((await reader.read(64))[9:12])
        writer.close()
    await server.stop()
    assert answers == {"/health HTTP/1.0": 200, "/health HTTP/1.1": 400, "/health HTTP/1.0\r\nHost: evil.example": 421}


@pytest.mark.parametrize("kind", ["projector", "gateway", "console"])
async def test_beyond_loopback_clients_are_answered_by_any_name_and_operators_by_stated_ones(
    kind: str, nats_server: ServerUnderTest, tmp_path: Path
) -> None:
    http = HttpConfig(host="0.0.0.0", public_url="http://n1.lan:1")
    async with running(kind, nats_server, tmp_path / "data", http) as url:
        at = f"http://127.0.0.1:{urlsplit(url).port}"
        assert (await answer(at, Host=EVIL))[0] == (421 if kind in OPERATORS else 200)
        assert (await answer(at, Host="n1.lan"))[0] in {200, 503}

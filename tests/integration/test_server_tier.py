"""What a cluster has instead of one machine's parts: three NATS servers and a ClickHouse server, as the projector meets them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapters.clock import SystemClock, new_incarnation
from adapters.keys import load_credentials
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from adapters.nats.connection import connect
from domain.ids import NodeId
from domain.subjects import EVENTS
from services.config import BusConfig, ClickhouseConfig, ClusterConfig, Config, HttpConfig
from services.projector.main import run
from services.standalone.provisioning import replicas_of
from tests.support import facts
from tests.support.containers import Bus, bus_of_three, clickhouse_server
from tests.support.nats import CLUSTER
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
FACTS = 300


@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (2, 1), (3, 3), (5, 3)])
def test_streams_are_kept_on_three_servers_where_there_are_three(servers: int, replicas: int):
    assert replicas_of(",".join(f"nats://n{at}:4222" for at in range(servers))) == replicas


@contextlib.asynccontextmanager
async def projector(bus: Bus, dsn: str) -> AsyncIterator[str]:
    """Run a projector by URLs alone while the block runs, and give its own."""
    config = Config(
        cluster=ClusterConfig(name=CLUSTER),
        bus=BusConfig(url=bus.url, credentials=bus.data / "keys" / "projector.json"),
        clickhouse=ClickhouseConfig(dsn=dsn),
        http=HttpConfig(port=0),
        data=bus.data / "projector",
    )
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    running = asyncio.create_task(run(config, ready.set_result, stop))
    try:
        await until("the projector to be ready", lambda: ready.done() or running.done(), timeout_s=60)
        yield ready.result()
    finally:
        stop.set()
        await running


@pytest.mark.long
async def test_facts_on_three_servers_become_rows_on_a_clickhouse_server(tmp_path: Path):
    async with (
        bus_of_three(tmp_path / "data") as bus,
        clickhouse_server(tmp_path / "clickhouse") as dsn,
        projector(bus, dsn) as url,
        aiohttp.ClientSession(url) as client,
    ):
        node = await connect(bus.url, load_credentials(bus.data / "keys" / "n1.json"), name="n1")
        producer = Producer(
            node.stream(EVENTS),
            cluster=CLUSTER,
            node=NodeId("n1"),
            incarnation=new_incarnation(),
            mac_key=b"k" * 32,
            clock=SystemClock(),
            spool=Spool(tmp_path / "spool"),
        )
        sending = asyncio.create_task(producer.run())
        for number in range(FACTS):
            producer.state(facts.held(number))
        assert await producer.drained(30)

        async def ask(path: str) -> Any:
            async with client.get(path) as answer:
                return json.loads(await answer.read())

        async def rows() -> bool:
            health = await ask("/health")
            return bool(health["rows"].get("events", 0) >= FACTS and health["status"] == "ok")

        await until("the facts' rows", rows, timeout_s=60, every_s=0.1)
        page = await ask("/v1/events?limit=5")
        assert {row["producer"] for row in page["events"]} == {"n1"}
        sending.cancel()
        await node.close()

"""`leaseway projector` as a process on a real bus: what is killed comes back, and rows are the messages."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from adapters.nats.connection import Bus, connect
from domain.events.commit import encode_commit
from domain.subjects import EVENTS, LEDGER, ledger_subject
from tests.support.facts import Ledger, Teller, finished, granted, held, lent, plan, verdict
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
_RUN = """\
import sys
from pathlib import Path
from services.config import BusConfig, ClusterConfig, Config, HttpConfig
from services.lifecycle import run_service
from services.projector.main import run
url, data, cluster, port = sys.argv[1:]
config = Config(cluster=ClusterConfig(name=cluster), bus=BusConfig(url=url), data=Path(data), http=HttpConfig(port=int(port)))
sys.exit(run_service("projector", run, config))
"""


class Service:
    """A projector process, and questions to it."""

    def __init__(self, server: ServerUnderTest) -> None:
        self._server = server
        self._child: asyncio.subprocess.Process | None = None
        self._http: aiohttp.ClientSession | None = None
        self.url = ""

    async def start(self) -> None:
        """Start it, and return once it says that it is ready."""
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _RUN, self._server.url, str(self._server.data), self._server.cluster, "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._child.stdout is not None
        line = await asyncio.wait_for(self._child.stdout.readline(), 30)
        assert line, (await self._child.communicate())[1].decode()
        self.url = json.loads(line)["url"]

    async def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and return (exit code, what it logged)."""
        assert self._child is not None
        self._child.send_signal(number)
        _, err = await asyncio.wait_for(self._child.communicate(), 20)
        assert self._child.returncode is not None
        return self._child.returncode, err.decode()

    async def get(self, path: str, **params: str) -> Any:
        assert self._http is not None
        async with self._http.get(self.url + path, params=params) as answer:
            return await answer.json()

    async def position(self, stream: str) -> int:
        health = await self.get("/health")
        return int(next(known["position"] for known in health["streams"] if known["stream"] == stream))

    async def reaches(self, stream: str, seq: int) -> None:
        async def reached() -> bool:
            return await self.position(stream) >= seq

        await until(f"{stream} up to {seq}", reached, every_s=0.05)

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.communicate()


async def tell(bus: Bus, teller: Teller, numbers: range) -> None:
    """State three facts for each request, as the node of `bus`."""
    stream = bus.stream(EVENTS)
    for number in numbers:
        for fact in (held(number), lent(number), finished(number, helper="n2")):
            await stream.publish(
                teller.subject(fact), teller.body(fact), message_id=f"{teller.incarnation}/{teller.pseq}"
            )


async def decide(bus: Bus, ledger: Ledger, count: int) -> None:
    """Store commits of two decisions, as the master."""
    stream = bus.stream(LEDGER)
    for _ in range(count):
        body = encode_commit(ledger.commit(plan(verdict()), granted()))
        await stream.publish(ledger_subject(ledger.cluster), body, expected_last=ledger.version - 1)


async def test_rows_are_the_messages_of_the_bus_after_kills_of_projector_and_bus(nats_server: ServerUnderTest):
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    master = await connect(nats_server.url, nats_server.credentials("master"), name="master")
    teller, ledger = Teller("n1", cluster=nats_server.cluster), Ledger(cluster=nats_server.cluster)
    async with Service(nats_server) as service:
        await service.start()
        await asyncio.gather(tell(node, teller, range(20)), decide(master, ledger, 10))
        await service.reaches(EVENTS, 60)
        await service.end(signal.SIGKILL)
        await asyncio.gather(tell(node, teller, range(20, 40)), decide(master, ledger, 10))
        await service.start()
        await service.reaches(EVENTS, 120)
        nats_server.kill()
        await nats_server.restart()
        await asyncio.gather(node.wait_connected(), master.wait_connected())
        await asyncio.gather(tell(node, teller, range(40, 50)), decide(master, ledger, 5))
        await asyncio.gather(service.reaches(EVENTS, 150), service.reaches(LEDGER, 25))
        health = await service.get("/health")
        assert health["status"] == "ok"
        assert health["rows"] == {
            "events": 175,
            "decisions": 50 + 50,
            "requests": 50,
            "commits": 25,
            "rejected": 0,
            "loads": 0,
            "health": 0,
            "checkpoints": 0,
        }
        assert health["witness"]["digest"] == ledger.digest
        decisions = (await service.get("/v1/decisions", kind="granted", limit="1000"))["decisions"]
        assert [row["version"] for row in decisions] == list(range(1, 26))
        code, log = await service.end(signal.SIGTERM)
        assert code == 0, log
    await node.close()
    await master.close()


async def test_a_projector_without_its_bus_says_so_and_serves_what_it_has(nats_server: ServerUnderTest):
    await nats_server.stop()
    async with Service(nats_server) as service:
        await service.start()
        health = await service.get("/health")
        assert {stream["last"] for stream in health["streams"]} == {None}
        assert (await service.get("/v1/decisions"))["decisions"] == []


async def test_a_second_projector_on_one_directory_ends_with_one_line(nats_server: ServerUnderTest):
    async with Service(nats_server) as first:
        await first.start()
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _RUN, nats_server.url, str(nats_server.data), nats_server.cluster, "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        out, err = await asyncio.wait_for(second.communicate(), 30)
        assert second.returncode == 1
        assert out == b""
        assert "another process holds this directory" in err.decode().splitlines()[-1]

"""What a tool that asks for too much does to others: one that reads nothing, and one that never stops asking."""

import asyncio
import base64
import json
import socket
import statistics
import sys
import time
from contextlib import aclosing, suppress

import aiohttp
import nkeys
import pytest

from adapters.nats.connection import Bus, connect
from adapters.nats.enrolment import key_path
from adapters.nats.provision import administer, provision_tools
from domain.errors import BusError
from domain.subjects import EVENTS
from tests.support.nats import CLUSTER, ServerUnderTest
from tests.support.rogue import ROOT
from tests.support.tools import API, enrol, take
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(300)]

FACT = f"{ROOT}.node.n1.queue.0011223344556677.held"
BODY = json.dumps({"filling": "x" * 4000}).encode()
ROUNDS = 400


class Glutton:
    """A plain socket that signs in, subscribes to everything, pulls as much as it may, and never reads again."""

    def __init__(self, server: ServerUnderTest, name: str) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((server.server.url.rpartition("/")[2].split(":")[0], server.server.port))
        nonce = json.loads(self.socket.makefile("rb", buffering=0).readline().split(b" ", 1)[1])["nonce"]
        pair = nkeys.from_seed(server.credentials(name).nkey_seed.encode())
        signed = base64.b64encode(pair.sign(nonce.encode())).decode()
        member = server.provisioned.roster.member(name)
        assert member is not None
        hello = {
            "verbose": False,
            "nkey": member.public_key,
            "sig": signed,
            "lang": "none",
            "version": "0",
            "headers": True,
        }
        pulls = b"".join(
            b"PUB %b %b %d\r\n%b\r\n" % (subject, b"_INBOX_%b.x" % name.encode(), len(asked), asked)
            for subject, asked in [(f"{API}.CONSUMER.MSG.NEXT.{EVENTS}.{name}".encode(), b'{"batch":1000}')] * 8
        )
        inbox = f"_INBOX_{name}.x"
        self.socket.sendall(
            b"CONNECT %b\r\nSUB %b.> 1\r\nSUB %b 2\r\n%bPING\r\n"
            % (json.dumps(hello).encode(), ROOT.encode(), inbox.encode(), pulls)
        )


async def latencies_ms(server: ServerUnderTest, rounds: int = ROUNDS) -> list[float]:
    """Return how long each of `rounds` facts took to be stored, while 8 others are on their way at any time."""
    took: list[float] = []
    async with administer(server.data, server.url, "n1") as node:

        async def speak(count: int) -> None:
            for _ in range(count):
                began = time.perf_counter()
                await node.request(FACT, BODY, timeout=10)
                took.append((time.perf_counter() - began) * 1000)

        await asyncio.gather(*(speak(rounds // 8) for _ in range(8)))
    return took


def percentile(took: list[float], percent: int = 99) -> float:
    return sorted(took)[len(took) * percent // 100]


def shown(took: list[float]) -> str:
    return f"p50 {statistics.median(took):.2f} ms, p99 {percentile(took):.2f} ms, most {max(took):.2f} ms"


async def test_a_tool_that_never_reads_is_cut_off_and_the_bus_is_as_fast_as_before(
    nats_server: ServerUnderTest,
) -> None:
    await enrol(nats_server, "dash", "glutton")
    await latencies_ms(nats_server)
    alone = await latencies_ms(nats_server, 8 * ROUNDS)  # about as long as the other lasts
    glutton = Glutton(nats_server, "obs-glutton")
    beside: list[float] = []
    deadline = asyncio.get_running_loop().time() + 60
    while "Slow Consumer" not in nats_server.log() and asyncio.get_running_loop().time() < deadline:
        beside += await latencies_ms(nats_server)
    after = await latencies_ms(nats_server)
    await until("the cut", lambda: "Slow Consumer" in nats_server.log())
    print(
        f"\nalone: {shown(alone)}\nbeside a tool that never reads, until it was cut: {shown(beside)}\nafter: {shown(after)}"
    )
    assert statistics.median(beside) < 2 * statistics.median(alone) + 1
    assert percentile(beside) < 3 * percentile(alone) + 100
    stored = ROUNDS + len(alone) + len(beside) + len(after)
    dash = await nats_server.client("obs-dash")
    assert [each.metadata.sequence.stream for each in await take(dash, EVENTS, "obs-dash", stored)] == [
        *range(1, stored + 1)
    ]
    glutton.socket.close()


@pytest.mark.parametrize("what", ["CONSUMER.RESET", "CONSUMER.MSG.NEXT", "CONSUMER.INFO"])
async def test_a_tool_that_never_stops_asking_stops_nobody_and_is_removed_meanwhile(
    nats_server: ServerUnderTest, what: str
) -> None:
    """Over all connections that it may have, as fast as the server takes it; the last of these it may not ask at all."""
    await enrol(nats_server, "rogue")
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    for number in range(500):
        await node.stream(EVENTS).publish(f"{ROOT}.node.n1.queue.{number:016x}.held", b"{}")
    member = nats_server.provisioned.roster.member("obs-rogue")
    assert member is not None
    said = (member.public_key, "obs-rogue", f"{API}.{what}.{EVENTS}.obs-rogue")
    command = ("-m", "tests.support.asker", nats_server.url, str(key_path(nats_server.data, "obs-rogue")), *said)
    heard = await heard_by(nats_server)
    rogue = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.DEVNULL)
    try:
        await until("its requests", lambda: has_heard(nats_server, heard + 500), timeout_s=60)
        await while_it_asks(nats_server, node)
        assert rogue.returncode is None, "it would ask on"
        await provision_tools(nats_server.data, nats_server.url, CLUSTER, removed=["rogue"])
        async with asyncio.timeout(10):
            await rogue.wait()
    finally:
        if rogue.returncode is None:
            rogue.kill()
            await rogue.wait()
        await node.close()


async def heard_by(server: ServerUnderTest) -> int:
    """Return how many messages the server was sent; it counts them in pieces."""
    async with aiohttp.ClientSession() as session, session.get(f"{server.server.monitor_url}/varz") as answer:
        return int((await answer.json())["in_msgs"])


async def has_heard(server: ServerUnderTest, count: int) -> bool:
    return await heard_by(server) >= count


async def while_it_asks(server: ServerUnderTest, node: Bus) -> None:
    """Store facts, and read each as somebody who has only just come."""
    async with asyncio.timeout(60):
        master = await connect(server.url, server.credentials("master"), name="master")
        began = time.perf_counter()
        for number in range(3):
            stored = await node.stream(EVENTS).publish(FACT, BODY)
            assert await first_of(master, after=500 + number) == stored.seq
        print(f"\nthree facts stored and found by a new reader each: {time.perf_counter() - began:.1f} s")
        await master.close()


async def first_of(bus: Bus, *, after: int) -> int:
    """Return the first message after `after`, as who asks for the state and begins to read finds it; it asks again if need be."""
    while True:
        with suppress(BusError):
            assert (await bus.stream(EVENTS).bounds()).last > after
            async with aclosing(bus.stream(EVENTS).read(after=after)) as batches:
                async for batch in batches:
                    return batch[0].seq

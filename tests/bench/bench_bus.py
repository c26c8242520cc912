"""Figures of the bus on this machine: `python -m tests.bench.bench_bus [events]`.

A provisioned nats-server (durability strict, then relaxed), one client in this process. CPU figures are the client's own.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from adapters.clock import SystemClock, new_incarnation
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from adapters.nats.connection import Bus, connect
from adapters.nats.layout import Durability
from domain.ids import NodeId
from domain.ports import StoredMessage
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, fact_subject
from tests.bench.arguments import parser_of
from tests.support import facts
from tests.support.nats import ServerUnderTest, provisioned_server

BODY = facts.Teller("n1").body(facts.held(1))
SUBJECT = fact_subject("local", NodeId("n1"), facts.held(1))


def told(what: str, count: int, wall_s: float, cpu_s: float, extra: str = "") -> None:
    rate, cpu_us = count / wall_s, cpu_s / count * 1e6
    print(f"{what:<58} {rate:>10,.0f}/s  {cpu_us:>6.1f} us CPU each  {extra}", flush=True)


async def timed(what: str, count: int, work: Callable[[], Awaitable[object]], extra: str = "") -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    told(what, count, time.perf_counter() - wall, time.process_time() - cpu, extra)


async def latencies(what: str, count: int, once: Callable[[int], Awaitable[object]]) -> None:
    took: list[float] = []
    cpu = time.process_time()
    for number in range(count):
        begun = time.perf_counter()
        await once(number)
        took.append(time.perf_counter() - begun)
    cpu, wall = time.process_time() - cpu, sum(took)
    took.sort()
    quantiles = f"p50 {took[count // 2] * 1e6:,.0f} us  p99 {took[count * 99 // 100] * 1e6:,.0f} us"
    told(what, count, wall, cpu, quantiles)


async def publishing(server: ServerUnderTest, durability: str, events: int) -> None:
    node = await connect(server.url, server.credentials("n1"), name="n1")
    master = await connect(server.url, server.credentials("master"), name="master")
    stream = node.stream(EVENTS)
    await latencies(
        f"{durability}: fact published with ack, one at a time", 1000, lambda _: stream.publish(SUBJECT, BODY)
    )
    ledger = master.stream(LEDGER)
    await latencies(
        f"{durability}: commit of 1 KiB with ack and expectation",
        500,
        lambda number: ledger.publish("lw.local.ledger", b"c" * 1024, expected_last=number),
    )
    for window in (16, 256):
        count = events if durability == "relaxed" else min(events, 2000)

        async def pipelined(window: int = window, count: int = count) -> None:
            for begin in range(0, count, window):
                answers = [stream.publish_soon(SUBJECT, BODY) for _ in range(min(window, count - begin))]
                await asyncio.gather(*answers)

        await timed(f"{durability}: facts published, {window} in flight", count, pipelined)
    await node.close()
    await master.close()


async def producing(server: ServerUnderTest, durability: str, folder: Path, events: int) -> None:
    bus = await connect(server.url, server.credentials("n1"), name="n1")
    producer = Producer(
        bus.stream(EVENTS),
        cluster="local",
        node=NodeId("n1"),
        incarnation=new_incarnation(),
        mac_key=b"k" * 32,
        clock=SystemClock(),
        spool=Spool(folder),
    )
    running = asyncio.create_task(producer.run())
    await asyncio.sleep(0)
    fact, took = facts.held(1), []
    for _ in range(20):
        for _ in range(100):
            begun = time.perf_counter()
            producer.state(fact)
            took.append(time.perf_counter() - begun)
        await producer.drained()
    took.sort()
    print(
        f"{durability}: Producer.state (encode, mac, spool, send): p50 {took[1000] * 1e6:.0f} us  p99 {took[1980] * 1e6:.0f} us"
    )

    async def all_through() -> None:
        for number in range(events):
            producer.state(fact)
            if number % 256 == 255:
                await asyncio.sleep(0)
        assert await producer.drained(120)

    await timed(f"{durability}: facts stated and acknowledged through the producer", events, all_through)
    running.cancel()
    await bus.close()


async def reading(server: ServerUnderTest, events: int) -> None:
    master = await connect(server.url, server.credentials("master"), name="master")
    bounds = await master.stream(EVENTS).bounds()
    count = min(events, bounds.last)

    async def read() -> None:
        async for _ in master.stream(EVENTS).read(after=0, until=count):
            pass

    await timed(f"events of {len(BODY)} bytes read in order", count, read)
    await latencies("one message by sequence, from the leader", 500, lambda n: master.stream(EVENTS).get(n + 1))
    await master.close()


class Trip:
    """A message published by one, until the other has it."""

    def __init__(self, bus: Bus, stream: str, subject: str, messages: AsyncIterator[StoredMessage]) -> None:
        self._stream, self._subject, self._messages = bus.stream(stream), subject, messages

    async def once(self, number: int) -> None:
        body = b"%d" % number
        answer = self._stream.publish_soon(self._subject, body)
        async for message in self._messages:
            if message.body == body:
                break
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())


async def following(server: ServerUnderTest) -> None:
    """Decision published by the master -> in the node's hands (core subscription), and control by the durable alone."""
    node = await connect(server.url, server.credentials("n1"), name="n1")
    for stream, subject, heard, name in (
        (DECISIONS, "lw.local.lease.n1.n2.l.granted", ["lw.local.lease.n1.>"], "master"),
        (CONTROL, "lw.local.control.links.a", [], "operator"),
    ):
        bus: Bus = await connect(server.url, server.credentials(name), name=name)
        messages = node.follower(stream, heard, "n1").messages()
        first = asyncio.create_task(anext(messages))
        await bus.stream(stream).publish(subject, b"first")
        await first
        await latencies(
            f"{stream}: published -> in the hands of the node", 300, Trip(bus, stream, subject, messages).once
        )
        await messages.aclose()
        await bus.close()
    await node.close()


async def main(events: int) -> None:
    modes: tuple[Durability, ...] = ("strict", "relaxed")
    for durability in modes:
        with tempfile.TemporaryDirectory() as folder:
            async with provisioned_server(Path(folder) / "data", durability=durability) as server:
                await publishing(server, durability, events)
                await producing(server, durability, Path(folder) / "spool", events if durability == "relaxed" else 2000)
                if durability == "relaxed":
                    await reading(server, events)
                else:
                    await following(server)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("events", type=int, nargs="?", default=50_000, help="how many (default: %(default)s)")
    asyncio.run(main(parser.parse_args().events))

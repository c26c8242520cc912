"""Three servers that are one bus: who loses knows it, and the death of a leader costs neither order nor a fact."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from adapters.clock import SystemClock, new_incarnation
from adapters.log.ledger import Ledger
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from adapters.nats.connection import Bus, connect
from domain.events import codec
from domain.ids import NodeId
from domain.subjects import EVENTS, LEDGER, ledger_subject
from tests.support import facts
from tests.support.nats import ServerUnderTest

pytestmark = pytest.mark.real

ROUNDS = 25


class _Leader(msgspec.Struct):
    leader: str = ""


class _Info(msgspec.Struct):
    cluster: _Leader = msgspec.field(default_factory=_Leader)


async def leader_of(bus: Bus, stream: str) -> int:
    """Return the index of the server that leads `stream`."""
    info = await bus.ask(f"$JS.API.STREAM.INFO.{stream}", b"", lambda _, body: msgspec.json.decode(body, type=_Info))
    assert isinstance(info, _Info)
    return int(info.cluster.leader.removeprefix("nats"))


async def test_of_two_masters_on_a_cluster_one_wins_and_both_know_also_over_the_death_of_the_leader(
    nats_cluster: ServerUnderTest, tmp_path: Path
):
    buses = [await connect(nats_cluster.url, nats_cluster.credentials("master"), name=f"m{n}") for n in range(2)]
    ours, theirs = (Ledger(bus.stream(LEDGER), ledger_subject("local")) for bus in buses)
    node = await connect(nats_cluster.url, nats_cluster.credentials("n1"), name="n1")
    producer = Producer(
        node.stream(EVENTS),
        cluster="local",
        node=NodeId("n1"),
        incarnation=new_incarnation(),
        mac_key=b"k" * 32,
        clock=SystemClock(),
        spool=Spool(tmp_path / "spool"),
    )
    running = asyncio.create_task(producer.run())
    wins = []
    for version in range(1, ROUNDS + 1):
        for number in range(20):
            producer.state(facts.held(number))
        race = [
            asyncio.create_task(ours.append(version, b"ours %d" % version, "aa")),
            asyncio.create_task(theirs.append(version, b"theirs %d" % version, "bb")),
        ]
        if version == ROUNDS // 2:
            nats_cluster.kill(await leader_of(buses[0], LEDGER))
        won = await asyncio.gather(*race)
        assert sorted(won) == [False, True]
        wins.append(b"ours %d" % version if won[0] else b"theirs %d" % version)
    assert [message.body async for batch in ours.read(0, until=ROUNDS) for message in batch] == wins
    assert await producer.drained(30)
    running.cancel()
    events = buses[1].stream(EVENTS)
    last = (await events.bounds()).last
    accepted = 0
    async for batch in events.read(after=0, until=last):
        for message in batch:
            accepted += int(codec.decode_envelope(message.body).pseq) == accepted + 1
    assert accepted == 20 * ROUNDS
    for bus in (*buses, node):
        await bus.close()

"""A server that is killed and started again and again under load: nothing is lost, nobody stalls (reports of many clients)."""

import asyncio
import itertools
import signal
from pathlib import Path

import pytest

from adapters.clock import SystemClock, new_incarnation
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from domain.errors import HistoryGapError, PublishUnknownError, WrongLastSequenceError
from domain.events import codec
from domain.ids import NodeId
from domain.ports import StoredMessage
from tests.contract.rigs import NatsRig, nats_rig
from tests.support import facts
from tests.support.waiting import until

RESTARTS = 20


class Following:
    """Reads a stream for ever and notes what it saw."""

    def __init__(self) -> None:
        self.seen: list[StoredMessage] = []
        self._more = asyncio.Event()

    async def run(self, rig: NatsRig, name: str) -> None:
        async for batch in (await rig.bus(direct=True)).stream(name).read(after=0):
            self.seen.extend(batch)
            self._more.set()

    async def reach(self, count: int) -> None:
        """Return once so many messages were seen."""
        async with asyncio.timeout(20):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()


@pytest.mark.real
async def test_a_following_reader_survives_twenty_restarts_without_gap_or_stall_and_no_fact_is_lost(tmp_path: Path):
    async with nats_rig(tmp_path) as rig:
        await rig.stream("lw")
        stream = (await rig.bus(direct=True)).stream("lw")
        producer = Producer(
            stream,
            cluster="local",
            node=NodeId("n1"),
            incarnation=new_incarnation(),
            mac_key=b"k" * 32,
            clock=SystemClock(),
            spool=Spool(tmp_path / "spool"),
        )
        following = Following()
        stated = itertools.count(1)
        tasks = [asyncio.create_task(producer.run()), asyncio.create_task(following.run(rig, "lw"))]
        for restart in range(RESTARTS):
            goal = len(following.seen) + 1
            for _ in range(50):
                producer.state(facts.held(next(stated)))
            await following.reach(goal)
            for _ in range(50):
                producer.state(facts.held(next(stated)))  # some of these are under way when the server dies
            await asyncio.sleep(0)
            rig.server.stop(signal.SIGKILL if restart % 2 else signal.SIGTERM)
            rig.server.start()
        assert await producer.drained(20)
        last = (await stream.bounds()).last
        await following.reach(last)
        for task in tasks:
            task.cancel()
        assert [message.seq for message in following.seen] == list(range(1, last + 1))
        accepted = 0
        for message in following.seen:
            accepted += int(codec.decode_envelope(message.body).pseq) == accepted + 1
        assert accepted == 100 * RESTARTS


@pytest.mark.real
async def test_a_reader_notices_that_what_it_read_last_was_lost_and_its_place_given_to_another(tmp_path: Path):
    """As a server does that acknowledges before it writes, and is killed in between."""
    async with nats_rig(tmp_path) as rig:
        stream = await rig.stream("lw")
        await stream.publish("lw.a", b"first")
        reading = (await rig.another("lw")).read(after=0)
        assert [message.body for message in await anext(reading)] == [b"first"]
        await rig.restart_history(stream)
        await stream.publish("lw.a", b"another")
        with pytest.raises(HistoryGapError, match="message 1 must be the one that was read"):
            await asyncio.wait_for(anext(reading), 20)


@pytest.mark.real
async def test_a_publish_is_never_sent_late_by_the_client(tmp_path: Path):
    async with nats_rig(tmp_path) as rig:
        stream = await rig.stream("lw")
        rig.server.stop(signal.SIGKILL)
        bus = rig.first_bus
        await until("the loss to be noticed", lambda: not bus.connected)
        with pytest.raises(PublishUnknownError):
            await stream.publish("lw.a", b"given up")
        rig.server.start()
        assert (await stream.publish("lw.a", b"later")).seq == 1


@pytest.mark.real
async def test_questions_asked_while_the_server_restarts_are_answered_after_it(tmp_path: Path):
    async with nats_rig(tmp_path) as rig:
        stream = await rig.stream("lw")
        await stream.publish("lw.a", b"x")
        rig.server.stop(signal.SIGKILL)
        asked = [asyncio.create_task(each) for each in (stream.last(), stream.get(1))]
        rig.server.start()
        for answer in await asyncio.gather(*asked):
            assert answer is not None
            assert answer.body == b"x"
        with pytest.raises(WrongLastSequenceError):
            await stream.publish("lw.a", b"y", expected_last=0)

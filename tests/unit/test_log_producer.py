"""The producer's bytes, its clockwork, and what it does when disk or stream say no."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from adapters.keys import mac_matches
from adapters.log.producer import LATE_AFTER_US, UNKNOWNS_MAX, Producer
from adapters.log.spool import Spool
from adapters.memory.stream import MemoryStream
from domain.events import Basis, Envelope, FactsSummarised, codec
from domain.ids import Incarnation, NodeId
from domain.ports import Stored
from tests.support import facts
from tests.support.virtual_loop import LoopClock, pass_time, run_virtually

KEY = b"k" * 32
LIFE = Incarnation("cd" * 16)


class Desk:
    """A producer at work over a memory stream, in virtual time."""

    def __init__(self, clock: LoopClock, spool: Spool, **options: int) -> None:
        self.clock, self.spool = clock, spool
        self.stream = MemoryStream("LW_EVENTS", clock, **options)  # type: ignore[arg-type]
        self.producer = Producer(
            self.stream, cluster="local", node=NodeId("n1"), incarnation=LIFE, mac_key=KEY, clock=clock, spool=spool
        )

    async def envelopes(self) -> list[Envelope]:
        bounds = await self.stream.bounds()
        stored = [m async for batch in self.stream.read(after=0, until=bounds.last) for m in batch]
        return [codec.decode_envelope(message.body) for message in stored]

    async def folded(self) -> list[Envelope]:
        """Return what the fold accepts: only the next number counts."""
        accepted: list[Envelope] = []
        for each in await self.envelopes():
            if int(each.pseq) == len(accepted) + 1:
                accepted.append(each)
        return accepted


@asynccontextmanager
async def running(desk: Desk) -> AsyncIterator[Desk]:
    task = asyncio.create_task(desk.producer.run())
    await pass_time(0)
    yield desk
    task.cancel()


def virtually(
    folder: Path, scenario: Callable[[Desk], Awaitable[None]], *, bytes_max: int = 1 << 20, **options: int
) -> None:
    async def run(clock: LoopClock) -> None:
        async with running(Desk(clock, Spool(folder / "spool", bytes_max=bytes_max), **options)) as desk:
            await scenario(desk)

    run_virtually(run)


def test_a_fact_is_stored_with_its_name_its_clock_and_its_mac(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        await pass_time(12.5)
        basis = desk.producer.state(facts.held(7), cause="req_7")
        assert await desk.producer.drained()
        stored = await desk.stream.get(1)
        assert stored is not None
        assert basis == Basis(NodeId("n1"), LIFE, 1)
        tagged = codec.split_tag(stored.body, "mac")
        assert tagged is not None
        assert mac_matches(KEY, *tagged)
        envelope = codec.decode_envelope(stored.body)
        said = msgspec.structs.asdict(msgspec.structs.replace(envelope, data=msgspec.Raw(b"")))
        assert said == {
            "specversion": "1.0",
            "id": f"{LIFE}/1",
            "source": "/local/node/n1",
            "type": "queue.held",
            "time": "2027-01-15T08:00:12.500000Z",
            "datacontenttype": "application/json",
            "cluster": "local",
            "producer": "n1",
            "incarnation": LIFE,
            "pseq": "1",
            "mono_us": 12_500_000,
            "cause": "req_7",
            "schema": 1,
            "late": False,
            "data": msgspec.Raw(b""),
        }
        assert codec.decode_input(envelope.data) == facts.held(7)
        assert stored.headers == b"NATS/1.0\r\nNats-Msg-Id: %b/1\r\n\r\n" % LIFE.encode()
        assert stored.subject == desk_subject(stored.subject)

    virtually(tmp_path, scenario)


def desk_subject(subject: str) -> str:
    """Return what the subject of a held fact of n1 must be, with the model's token as it is."""
    return f"lw.local.node.n1.queue.{subject.split('.')[5]}.held"


def test_numbers_have_no_gap_and_facts_stated_before_the_run_are_sent(tmp_path: Path):
    async def run(clock: LoopClock) -> None:
        desk = Desk(clock, Spool(tmp_path))
        assert [desk.producer.state(facts.held(n)).pseq for n in range(600)] == list(range(1, 601))
        async with running(desk):
            assert await desk.producer.drained()
        assert [int(each.pseq) for each in await desk.envelopes()] == list(range(1, 601))

    run_virtually(run)


def test_a_fact_that_is_first_sent_long_after_it_was_stated_says_so_and_a_resent_one_keeps_its_bytes(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        desk.stream.faults.lose(10_000)
        desk.producer.state(facts.held(1))  # sent at once, in vain
        await pass_time(0.01)
        desk.producer.state(facts.held(2))  # stated while nothing can be sent, and before anyone knows of an outage
        await pass_time(LATE_AFTER_US / 1e6 + 60)
        assert not desk.producer.bus_ok
        desk.producer.state(facts.held(3))
        desk.stream.faults.clear()
        assert await desk.producer.drained()
        desk.producer.state(facts.held(4))
        assert await desk.producer.drained()
        assert [(each.pseq, each.late) for each in await desk.envelopes()] == [
            ("1", False),
            ("2", True),
            ("3", True),
            ("4", False),
        ]

    virtually(tmp_path, scenario)


def test_the_send_time_of_a_fact_is_that_of_its_first_sending(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        await pass_time(5)
        desk.stream.faults.lose(3)
        basis = desk.producer.state(facts.held(1))
        assert await desk.producer.drained()
        assert desk.clock.monotonic_us() > 5_000_000
        assert desk.producer.sent_at_us(basis) == 5_000_000
        assert desk.producer.sent_at_us(Basis(NodeId("n1"), LIFE, 2)) is None
        assert desk.producer.sent_at_us(Basis(NodeId("n1"), Incarnation("00" * 16), 1)) is None
        assert desk.producer.sent_at_us(Basis(NodeId("n2"), LIFE, 1)) is None

    virtually(tmp_path, scenario)


def test_a_duplicate_that_is_answered_before_its_new_predecessor_is_sent_again_after_it(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        desk.stream.faults.lose_ack()
        desk.stream.faults.lose()
        for number in range(3):  # 1 is stored without an answer, 2 is lost, 3 is stored
            desk.producer.state(facts.held(number))
        publish = desk.stream.publish_soon

        def hurried(*arguments: Any, **options: Any) -> asyncio.Future[Stored]:
            """A replicated server knows a duplicate at once, and acknowledges a new message when the others have it."""
            stored = publish(*arguments, **options)
            if stored.exception() is not None or stored.result().duplicate:
                return stored
            answer: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.01, answer.set_result, stored.result())
            return answer

        desk.stream.publish_soon = hurried  # type: ignore[method-assign]
        assert await desk.producer.drained()
        assert [each.pseq for each in await desk.folded()] == ["1", "2", "3"]

    virtually(tmp_path, scenario)


def test_that_a_fact_was_marked_late_is_noted_until_it_is_taken_note_of(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        desk.producer.state(facts.held(1))
        said = [desk.producer.spoke_late]
        desk.stream.faults.lose(UNKNOWNS_MAX)
        desk.producer.state(facts.held(2))
        while desk.producer.bus_ok:
            await pass_time(0.01)
        desk.producer.state(facts.held(3))
        assert await desk.producer.drained()
        assert [*said, desk.producer.spoke_late] == [False, True]

    virtually(tmp_path, scenario)


def test_the_bus_counts_as_down_after_three_failures_and_as_up_at_the_first_answer(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        desk.stream.faults.lose(2)
        desk.producer.state(facts.held(1))
        assert await desk.producer.drained()
        assert desk.producer.bus_ok
        desk.stream.faults.lose(10_000)
        desk.producer.state(facts.held(2))
        await pass_time(30)
        seen_ok = [desk.producer.bus_ok]
        assert not await desk.producer.drained(1)
        desk.stream.faults.clear()
        assert await desk.producer.drained()
        seen_ok.append(desk.producer.bus_ok)
        assert seen_ok == [False, True]

    virtually(tmp_path, scenario)


def test_a_frozen_bus_for_half_an_hour_costs_no_fact(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        desk.stream.faults.paused = True
        for number in range(1800):
            desk.producer.state(facts.held(number))
            await pass_time(1)
        desk.stream.resume()
        assert await desk.producer.drained()
        assert len(await desk.folded()) == 1800

    virtually(tmp_path, scenario, bytes_max=8 << 20)


def test_facts_beyond_the_spool_are_counted_in_a_summary_that_stands_in_their_place(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        asked: list[int] = []
        desk.producer.overflowed = lambda: asked.append(desk.producer.pseq)
        desk.stream.faults.lose(10_000)
        bases = [desk.producer.state(facts.held(number)) for number in range(400)]
        bases += [desk.producer.state(facts.finished(number)) for number in range(400)]
        kept = bases[-1].pseq - 1
        assert 100 < kept < 400
        assert [basis.pseq for basis in bases] == [*range(1, kept + 1), *[kept + 1] * (800 - kept)]
        await pass_time(10)
        desk.stream.faults.clear()
        assert await desk.producer.drained()
        after = desk.producer.state(facts.held(1))
        assert await desk.producer.drained()
        envelopes = await desk.envelopes()
        assert [int(each.pseq) for each in envelopes] == [*range(1, kept + 3)]
        assert codec.decode_input(envelopes[kept].data) == FactsSummarised(
            counts={"queue.held": 400 - kept, "queue.finished": 400}, first_pseq=kept + 1, last_pseq=kept + 1
        )
        assert (asked, after.pseq) == ([kept + 1], kept + 2)

    virtually(tmp_path, scenario, bytes_max=200_000)


def test_a_fact_that_the_stream_can_never_take_is_replaced_by_a_summary_and_the_next_ones_follow(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        asked: list[int] = []
        desk.producer.overflowed = lambda: asked.append(1)
        desk.producer.state(facts.held(1))
        desk.producer.state(msgspec.structs.replace(facts.held(2), tenant="t" * 3000))
        desk.producer.state(facts.held(3))
        assert await desk.producer.drained()
        assert [each.type for each in await desk.folded()] == ["queue.held", "status.facts_summarised", "queue.held"]
        assert asked == [1]

    virtually(tmp_path, scenario, message_bytes_max=2000)


def test_a_full_stream_is_asked_again_until_it_takes_the_facts(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        desk.stream.faults.refuse(20)
        for number in range(50):
            desk.producer.state(facts.held(number))
        assert await desk.producer.drained(60)
        assert len(await desk.folded()) == 50

    virtually(tmp_path, scenario)


def test_a_broken_disk_stops_no_fact_while_the_bus_is_there(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        for number in range(100):
            desk.producer.state(facts.held(number))
            await pass_time(0.01)
            shutil.rmtree(tmp_path / "spool", ignore_errors=True)
        assert await desk.producer.drained()
        assert [int(each.pseq) for each in await desk.envelopes()] == list(range(1, 101))

    virtually(tmp_path, scenario, bytes_max=40_000)


def test_a_stream_that_began_again_from_one_takes_facts_as_before(tmp_path: Path):
    async def scenario(desk: Desk) -> None:
        for number in range(10):
            desk.producer.state(facts.held(number))
        assert await desk.producer.drained()
        desk.stream.truncate(0)
        desk.producer.state(facts.held(11))
        assert await desk.producer.drained()
        assert [each.pseq for each in await desk.envelopes()] == ["11"]

    virtually(tmp_path, scenario)

"""Whatever a stream does to a producer, once it stops doing so the fold gets every fact, in order."""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.clock import new_incarnation
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from adapters.memory.stream import MemoryStream
from domain.events import codec
from domain.ids import NodeId
from domain.ports import StoredMessage
from tests.support import facts
from tests.support.virtual_loop import LoopClock, pass_time, run_virtually

KEY = b"k" * 32
FAULTS: Final = ("lose_ack", "late", "lose", "twice", "refuse", "let_pass")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("state"), st.integers(1, 20)),
        st.tuples(st.sampled_from(FAULTS), st.integers(1, 8)),
        st.tuples(st.just("wait"), st.integers(0, 3000)),
        st.tuples(st.sampled_from(["deliver_late", "pause", "resume", "kill"]), st.just(0)),
    ),
    max_size=25,
)


def folded(messages: list[StoredMessage]) -> list[tuple[str, int]]:
    """Return (incarnation, pseq) of what the fold accepts: only the next one counts, and a new incarnation ends the old one."""
    over: set[str] = set()
    now, last = "", 0
    accepted: list[tuple[str, int]] = []
    for message in messages:
        envelope = codec.decode_envelope(message.body)
        pseq = int(envelope.pseq)
        if envelope.incarnation not in over and envelope.incarnation != now and pseq == 1:
            over.add(now)
            now, last = envelope.incarnation, 0
        if envelope.incarnation == now and pseq == last + 1:
            last = pseq
            accepted.append((now, pseq))
    return accepted


class Life:
    """A node whose process is killed and started again, over one stream and one spool."""

    def __init__(self, clock: LoopClock, folder: Path) -> None:
        self.clock, self.folder = clock, folder
        self.stream = MemoryStream("LW_EVENTS", clock)
        self.stated: list[tuple[str, int]] = []
        self.start()

    def start(self) -> None:
        self.spool = Spool(self.folder)
        self.producer = Producer(
            self.stream,
            cluster="local",
            node=NodeId("n1"),
            incarnation=new_incarnation(),
            mac_key=KEY,
            clock=self.clock,
            spool=self.spool,
        )
        self.running = asyncio.create_task(self.producer.run())

    async def kill(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.spool.close()

    async def step(self, what: str, number: int) -> None:
        match what:
            case "state":
                for _ in range(number):
                    basis = self.producer.state(facts.held(len(self.stated)))
                    self.stated.append((basis.incarnation, basis.pseq))
            case "wait":
                await pass_time(number / 1000)
            case "deliver_late":
                self.stream.deliver_late()
            case "pause":
                self.stream.faults.paused = True
            case "resume":
                self.stream.resume()
            case "kill":
                await self.kill()
                self.start()
            case _:
                getattr(self.stream.faults, what)(number)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
@example(
    steps=[("state", 2), ("late", 1), ("wait", 0), ("kill", 0), ("state", 1)]
)  # the new life may not overtake the old
def test_every_fact_is_folded_once_and_in_order_whatever_the_stream_did(steps: list[tuple[str, int]]):
    async def scenario(clock: LoopClock) -> None:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(clock, Path(folder))
            for what, number in steps:
                await life.step(what, number)
            life.stream.faults.clear()
            life.stream.resume()
            assert await life.producer.drained(600)
            life.stream.deliver_late()
            await life.kill()
            bounds = await life.stream.bounds()
            stored = [m async for batch in life.stream.read(after=0, until=bounds.last) for m in batch]
            assert folded(stored) == life.stated
            assert life.producer.bus_ok

    run_virtually(scenario)

"""A recorded run: what a simulated cluster says and a real master decides, as stored messages, put through a real projector.

stored = a_life(events=3000, seed=3)                  # families of nodes, bursts, loads, troubles, odd messages
stored = a_scenario(scenario)                         # one drawn run of the simulator
with_stamps(stored, begin_s)                          # so that its first second is this one
await project_all(stored, open_store)                 # through the real projector into ClickHouse
"""

from collections.abc import Callable
from typing import Final

import msgspec

from adapters.clickhouse.store import Store
from domain.events import Fact, Finished
from domain.ids import Incarnation, NodeId
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, LEDGER, fact_subject
from services.simulator.model.scenario import Scenario
from services.simulator.product.cluster import Cluster
from services.simulator.product.names import BEGIN_US
from tests.replay.million.scene import families
from tests.replay.million.virtual import Deciding, Memory, Streamed
from tests.replay.million.world import World
from tests.support.history import START_NS, envelope
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, running

_TWICE, _FORGED = 41, 67
"""Every so many facts one is stored twice, and one comes that nobody believes."""


class Noisy(Deciding):
    """Its nodes' engines state tokens, and its bus holds what real ones do: facts that were sent twice, and forged ones."""

    def hear(self, speaker: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        """Store a fact."""
        if isinstance(fact, Finished):
            number = int(fact.request[-6:], 16)
            fact = msgspec.structs.replace(fact, tokens_in=10 + number % 7, tokens_out=30 + number % 13)
        super().hear(speaker, incarnation, pseq, fact, now_us)
        if self.heard % _TWICE == 0:
            super().hear(speaker, incarnation, pseq, fact, now_us + 1)
        if self.heard % _FORGED == 0:
            said = envelope(speaker, incarnation, pseq + 1_000_000, fact)
            self._keep(fact_subject("test", speaker, fact), said.replace(b'"mac":"', b'"mac":"0')[:-3] + b'"}', now_us)


def a_life(*, events: int, seed: int, nodes: int, job_s: float) -> Streamed:
    """Return the history of families of nodes with bursts, loads and troubles, until all that came has ended."""
    stored = Streamed()
    master = Noisy(stored)
    world = World(families(seed, nodes, job_s), Memory(master), seed, master)
    while len(stored.facts) < events:
        world.timeline.step()
    world.ending = True
    until_us = world.timeline.now_us + 60_000_000
    while not world.all_ended and world.timeline.now_us < until_us:
        world.timeline.step()
    return stored


def a_scenario(scenario: Scenario, *, seed: int = 0) -> tuple[Streamed, Cluster]:
    """Return the history of one run of the simulator, and the cluster as it is at the end."""
    stored = Streamed()
    cluster = Cluster(scenario, master=Deciding(stored), seed=seed)
    cluster.run()
    return stored, cluster


def with_stamps(stored: Streamed, begin_s: int) -> Streamed:
    """Return the same messages, of which the run's first second is `begin_s`: old rows would be dropped."""
    shift = begin_s * 1_000_000_000 - START_NS
    moved = Streamed()
    for into, messages in (
        (moved.facts, stored.facts), (moved.control, stored.control), (moved.ledger, stored.ledger)
    ):  # fmt: skip
        into += [msgspec.structs.replace(one, stamp_ns=one.stamp_ns + shift) for one in messages]
    return moved


async def project_all(stored: Streamed, open_store: Callable[[], Store]) -> None:
    """Put every message through the real projector."""
    clock = SteppedClock(BEGIN_US, step_us=0)
    bus = Bus(clock)
    named: Final[tuple[tuple[str, list[StoredMessage]], ...]] = (
        (EVENTS, stored.facts), (CONTROL, stored.control), (LEDGER, stored.ledger)
    )  # fmt: skip
    for name, messages in named:
        for message in messages:
            clock.now_us = message.stamp_ns // 1000
            await bus[name].publish(message.subject, message.body)
    async with running(a_projector(bus, open_store)) as projector:
        await caught_up(projector, await bus.ends(), timeout_s=60)

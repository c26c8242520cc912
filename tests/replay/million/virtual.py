"""The same life without a bus: stamps are the nodes' virtual time, so that a seed gives the same history to the last byte.

Bytes and MACs are what producers make, the reader, the fold and the commits are the product's; the streams are lists.
"""

from pathlib import Path
from typing import Final

from adapters.keys import Credentials, save_credentials
from adapters.log.bundle import Extra, export
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from domain.actions import OrderKey
from domain.events import ControlEvent, Envelope, Fact, Observation, codec
from domain.events.base import tag_of
from domain.events.commit import Commit, encode_commit
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Incarnation, NodeId
from domain.master.state import encode_state
from domain.ports import StoredMessage
from domain.subjects import (
    CONTROL,
    EVENTS,
    LEDGER,
    control_aggregate,
    control_subject,
    fact_subject,
    ledger_subject,
    observation_subject,
)
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import BEGIN_US
from tests.replay.million.keep import HISTORY, KEY
from tests.replay.million.plan import Lived, Plan, Progress
from tests.replay.million.scene import families
from tests.replay.million.world import Out, World
from tests.support.history import CLUSTER, SECRET, START_NS, Master, envelope

SNAPSHOT_EVERY: Final = 500
_TERM: Final = 1


class Streamed:
    """Three streams as lists."""

    def __init__(self) -> None:
        self.facts: list[StoredMessage] = []
        self.control: list[StoredMessage] = []
        self.ledger: list[StoredMessage] = []
        self.states: list[tuple[int, bytes]] = []

    @staticmethod
    def store(into: list[StoredMessage], subject: str, body: bytes, now_us: int) -> None:
        """Add a message at the end."""
        into.append(StoredMessage(len(into) + 1, START_NS + (now_us - BEGIN_US) * 1000, subject, b"", body))

    def streams(self) -> Streams:
        """Return them as an audit reads them."""
        named = ((EVENTS, self.facts), (CONTROL, self.control), (LEDGER, self.ledger))
        events, control, ledger = (CopiedStream(name, messages) for name, messages in named)
        return Streams(events, control, ledger)


class Deciding(VirtualMaster):
    """The master of this life: it stores what it hears, and judges, folds and commits the stored bytes."""

    def __init__(self, stored: Streamed) -> None:
        super().__init__()
        self._stored, self._master = stored, Master(term=_TERM)
        self.state = self._master.state
        self.kinds: dict[str, int] = {}
        self._now_us = BEGIN_US
        self._seen = self._decreed = self._observed = 0

    def decree(self, event: ControlEvent) -> None:
        """Store an operator's event."""
        said = Envelope(
            id="o", source="/o", type=tag_of(event), cluster=CLUSTER, producer="operator", data=codec.raw(event)
        )
        subject = control_subject(CLUSTER, control_aggregate(event))
        self._stored.store(self._stored.control, subject, codec.encode(said), self._now_us)

    def hear(self, speaker: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        """Store a fact."""
        self._keep(fact_subject(CLUSTER, speaker, fact), envelope(speaker, incarnation, pseq, fact), now_us)

    def observe(self, observation: Observation, now_us: int) -> None:
        """Store what the master saw."""
        self._observed += 1
        said = envelope("master", "0" * 32, self._observed, observation)
        self._keep(observation_subject(CLUSTER, _TERM, observation), said, now_us)

    def _keep(self, subject: str, body: bytes, now_us: int) -> None:
        self.heard += 1
        self._now_us = now_us
        self._stored.store(self._stored.facts, subject, body, now_us)

    def decide(self) -> list[tuple[LeaseEvent | LinkWord, OrderKey]]:
        """Fold what is new and commit until nothing follows; return what nodes must hear."""
        facts, control = self._stored.facts[self._seen :], self._stored.control[self._decreed :]
        self._seen, self._decreed = len(self._stored.facts), len(self._stored.control)
        said: list[tuple[LeaseEvent | LinkWord, OrderKey]] = []

        def stored(made: Commit) -> None:
            self._stored.store(self._stored.ledger, ledger_subject(CLUSTER), encode_commit(made), self._now_us)
            if made.state:
                self._stored.states.append((made.version, encode_state(self._master.state)))
            for index, decision in enumerate(made.decisions):
                kind = type(decision).__name__
                self.kinds[kind] = self.kinds.get(kind, 0) + 1
                if isinstance(decision, LeaseEvent | LinkWord):
                    said.append((decision, (made.generation, made.version, index)))

        with_state = len(self._master.commits) // SNAPSHOT_EVERY >= len(self._stored.states)
        self._master.take(facts, control, with_state=with_state, each=stored)
        return said


class Memory(Out):
    """Says to the master of this life what nodes and operators say."""

    virtual = True

    def __init__(self, master: Deciding) -> None:
        self._master = master
        self.world: World

    def state(self, node: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        """Have a fact stored (Out.state)."""
        self._master.hear(node, incarnation, pseq, fact, now_us)

    def decree(self, event: ControlEvent) -> None:
        """Have an operator's event stored (Out.decree)."""
        self._master.decree(event)


def live(plan: Plan, progress: Progress) -> tuple[Streamed, Lived]:
    """Live until so many events are stored, and let the last requests end."""
    stored = Streamed()
    master = Deciding(stored)
    world = World(families(plan.seed, plan.nodes, plan.job_s), Memory(master), plan.seed, master)
    while len(stored.facts) < plan.events:
        world.timeline.step()
        if world.timeline.happened % 1000 == 0:
            progress(len(stored.facts), f"{len(stored.ledger)} commits")
    world.ending = True
    until_us = world.timeline.now_us + round(plan.end_s * 1e6)
    while not world.all_ended and world.timeline.now_us < until_us:
        world.timeline.step()
    lived = Lived(
        events=len(stored.facts),
        commits=len(stored.ledger),
        decisions=dict(sorted(master.kinds.items())),
        troubles=dict(sorted(world.troubles.items())),
        requests=len(world.clients.jobs),
        lent=world.counts.lent,
        took_s=(world.timeline.now_us - BEGIN_US) / 1e6,
        stood_s=0.0,
    )
    return stored, lived


async def keep(folder: Path, stored: Streamed) -> Path:
    """Write the copy and the key that its MACs are checked with; return the copy's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / HISTORY
    await export(stored.streams(), CLUSTER, path, extra=Extra(states=stored.states))
    key = Credentials(name="operator", role="operator", cluster=CLUSTER, nkey_seed="", cluster_mac_secret=SECRET)
    save_credentials(folder / KEY, key)
    return path

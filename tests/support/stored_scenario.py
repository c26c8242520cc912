"""A scenario of the simulator as stored history: every fact with its MAC, every commit with its digest, as streams."""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from adapters.log.bundle import CopiedStream
from adapters.log.history import Streams
from domain.actions import OrderKey
from domain.events import ControlEvent, Fact, LinkAdded, Observation
from domain.events.commit import Commit, encode_commit
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Generation, Incarnation, NodeId, link_id
from domain.master.decide import Head, decide
from domain.master.step import Position, Range, after, commit
from domain.ports import StoredMessage
from domain.subjects import fact_subject, observation_subject
from services.simulator.model.scenario import Arrival, Scenario
from services.simulator.product.cluster import Cluster
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import BEGIN_US
from tests.support.history import CLUSTER, START_NS, Recorder, envelope

GENERATION = Generation("00010000")


Said = TypeVar("Said")


class Names:
    """Other names for what the simulator numbers: its nodes and models speak of n00 and m00, stored history of these."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._there = {f'"{number}"': f'"{name}"' for number, name in names.items()}
        self._back = {name: number for number, name in self._there.items()}

    def node(self, name: NodeId) -> NodeId:
        return NodeId(self._there.get(f'"{name}"', f'"{name}"').strip('"'))

    def there(self, said: Said) -> Said:
        """Return an event under the other names."""
        return self._renamed(said, self._there)

    def back(self, said: Said) -> Said:
        """Return a decision as the simulator's nodes know it."""
        return self._renamed(said, self._back)

    def link(self, said: LinkAdded) -> LinkAdded:
        """Return a link under the other names; its id is made of them."""
        named = self.there(said)
        ends = (named.owner, named.owner_model, named.helper, named.helper_model)
        named = msgspec.structs.replace(named, link=link_id(*ends))
        self._there[f'"{said.link}"'], self._back[f'"{named.link}"'] = f'"{named.link}"', f'"{said.link}"'
        return named

    @staticmethod
    def _renamed(said: Said, names: Mapping[str, str]) -> Said:
        text = msgspec.json.encode(said).decode()
        for name, other in names.items():
            text = text.replace(name, other)
        return msgspec.json.decode(text, type=type(said))


class StoringMaster(VirtualMaster):
    """Decides as the simulator's does, and keeps what the streams of a real one would hold."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._names = Names(names or {})
        self.recorder, self.commits = Recorder(), list[Commit]()
        self._span, self._position = Range(), Position(GENERATION)

    def decree(self, event: ControlEvent) -> None:
        event = self._names.link(event) if isinstance(event, LinkAdded) else self._names.there(event)
        super().decree(event)
        stored = self.recorder.decree(event)
        early = msgspec.structs.replace(stored, stamp_ns=START_NS - 10**12)
        self.recorder.control[-1] = early
        self._span.control.append(early)

    def hear(self, speaker: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        speaker, fact = self._names.node(speaker), self._names.there(fact)
        super().hear(speaker, incarnation, pseq, fact, now_us)
        self._keep(fact_subject(CLUSTER, speaker, fact), envelope(speaker, incarnation, pseq, fact), now_us)

    def observe(self, observation: Observation, now_us: int) -> None:
        observation = self._names.there(observation)
        super().observe(observation, now_us)
        self._keep(observation_subject(CLUSTER, 1, observation), envelope("master", "m", 1, observation), now_us)

    def _keep(self, subject: str, body: bytes, now_us: int) -> None:
        facts = self.recorder.facts
        facts.append(StoredMessage(len(facts) + 1, START_NS + (now_us - BEGIN_US) * 1000, subject, b"", body))
        self._span.facts.append(facts[-1])

    def decide(self) -> list[tuple[LeaseEvent | LinkWord, OrderKey]]:
        said: list[tuple[LeaseEvent | LinkWord, OrderKey]] = []
        while (decided := decide(self.state, Head(GENERATION, self._position.version + 1))).decisions:
            made = commit(self.state, self._position, self._span, decided, with_state=False)
            self.commits.append(made)
            self._position, self._span = after(made), Range()
            self.plans += decided.n
            said += [
                (self._names.back(decision), (GENERATION, made.version, index))
                for index, decision in enumerate(decided.decisions)
                if isinstance(decision, LeaseEvent | LinkWord)
            ]
        return said

    def streams(self) -> Streams:
        """Return what is stored."""
        last_ns = self.recorder.facts[-1].stamp_ns
        ledger = [
            StoredMessage(made.version, last_ns, f"lw.{CLUSTER}.ledger", b"", encode_commit(made))
            for made in self.commits
        ]
        return Streams(
            CopiedStream("LW_EVENTS", self.recorder.facts),
            CopiedStream("LW_CONTROL", self.recorder.control),
            CopiedStream("LW_LEDGER", ledger),
        )


def stored(scenario: Scenario, seed: int = 0, names: Mapping[str, str] | None = None) -> Streams:
    """Return the history of a scenario that the product ran in the simulator; `names`: other ones, n00 -> studio, m00 -> chat."""
    master = StoringMaster(names)
    Cluster(scenario, master=master, seed=seed).run()
    return master.streams()


def burst(
    jobs: int = 30, *, speeds: tuple[float, ...] = (1.0, 1.0, 3.0), helpers: tuple[int, ...] = (1,), noise: float = 0.0
) -> Scenario:
    """Return a burst at node 0, which may lend to some of the others; all serve one model."""
    factors = [1.0 + noise * (-1 if number % 2 else 1) for number in range(jobs)]
    return Scenario(
        name="burst",
        speeds=speeds,
        loaded=(0,) * len(speeds),
        load_s=(0.0,) * len(speeds),
        links={0: helpers},
        unit_s=(2.0,),
        arrivals=tuple(Arrival(0.0, 0, 1.0, factor, native=False) for factor in factors),
        one_model=True,
    )


THREE = {"n00": "studio", "n01": "attic", "n02": "loft", "m00": "chat"}
GAP_S = 100.0


def twice(scenario: Scenario) -> Scenario:
    """Return a scenario whose arrivals come again a while later."""
    later = tuple(arrival._replace(at_s=arrival.at_s + GAP_S) for arrival in scenario.arrivals)
    return dataclasses.replace(scenario, arrivals=(*scenario.arrivals, *later))


def two_bursts() -> Streams:
    """Return what the how-to of what-if asks about: a burst that taught, and another; loft is fast, and in no link."""
    return stored(twice(burst(40, noise=0.2)), names=THREE)

"""The simulator's cluster with a real bus in the place of its virtual master, and with traffic and troubles that do not end."""

import dataclasses
from typing import Final

from msgspec.structs import replace

from domain.actions import OrderKey
from domain.events import (
    Basis,
    Cancelled,
    ControlEvent,
    DeskState,
    Fact,
    LeaseChecked,
    LinkAdded,
    LinkRemoved,
    NodeSnapshot,
    Observation,
    QueueState,
    SettingChanged,
    SettingCleared,
)
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Incarnation, NodeId
from services.simulator.model.dice import dice_of
from services.simulator.model.parts import Job
from services.simulator.model.scenario import Fault
from services.simulator.product import faults
from services.simulator.product.cluster import Cluster
from services.simulator.product.history import settings_of
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import BEGIN_US, number_of, request_of, seconds, us
from services.simulator.product.node import VirtualNode
from services.simulator.product.timeline import Timeline
from tests.replay.million.scene import TROUBLES, Families, Traffic

_SECOND_US: Final = 1_000_000
_SENT_KEPT: Final = 50_000
"""Send times that are remembered: a grant cites a recent fact of its owner."""
_TROUBLE_EVERY_S: Final = 0.4
_LASTS_S: Final = (0.3, 1.0, 3.0, 8.0)
_SHARE: Final = 200
"""Open requests in one part of a snapshot."""
_LEAVES_SHARE: Final = 0.02
_SETTINGS: Final = (
    ("cluster.offload_lease_ttl", (3_000_000, 8_000_000, 30_000_000)),
    ("cluster.scheduling_min_samples", (2, 10, 20)),
    ("cluster.offload_lent_stall_timeout", (10_000_000, 180_000_000)),
    ("cluster.offload_probe_idle", (0, 1_000_000, 5_000_000)),
)


class Out:
    """Where facts and decrees go."""

    virtual = False
    """Whether the master decides, and hears that nodes fall silent, in the nodes' own time."""

    def state(self, node: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        """Have a fact stored as number `pseq` of the node's life."""
        raise NotImplementedError

    def decree(self, event: ControlEvent) -> None:
        """Have an operator's event stored."""
        raise NotImplementedError


class World(Cluster):
    """Nodes, their clients and what goes wrong with them. `time` is moved by whoever runs it."""

    def __init__(self, scenario: Families, out: Out, seed: int, master: VirtualMaster | None = None) -> None:
        self._out, self._dice = out, dice_of(seed + 2)
        self._setting_turn = 0
        self.troubles: dict[str, int] = {}
        self.ending = False
        """No more requests come, and nothing more goes wrong."""
        self.over = False
        """The nodes say nothing any more, whatever they hear."""
        super().__init__(scenario, master=master, seed=seed)
        self._traffic = Traffic(scenario, seed)
        self.time.at(BEGIN_US, self._next_second, 0)
        self.time.at(BEGIN_US + us(_TROUBLE_EVERY_S), self._trouble)

    @property
    def timeline(self) -> Timeline:
        """The virtual time of all nodes."""
        return self.time

    @property
    def all_ended(self) -> bool:
        """Tell whether no client waits for anything."""
        return not self.clients.waiting

    # -- to and from the bus

    def _introduce(self) -> None:
        """Link the nodes and let their first lives begin: nobody has measured anything yet."""
        for setting in settings_of(self.scenario):
            self._out.decree(setting)
        for link in self._links:
            self._out.decree(link)
        for node in self.nodes:
            self.begin_life(node, node.resident())

    def incarnation(self, node: VirtualNode) -> Incarnation:
        """Return a name that no other node's process has: the bus knows facts that were sent twice by it."""
        return Incarnation(f"{node.number:08x}{node.life + 1:024x}")

    def state(self, node: VirtualNode, fact: Fact) -> None:
        """Have the bus keep what the node states."""
        assert node.alive, f"{node.name}: is dead and says {fact}"
        node.pseq += 1
        incarnation = self.incarnation(node)
        self._sent_us[Basis(node.name, incarnation, node.pseq)] = self.time.now_us
        if len(self._sent_us) > _SENT_KEPT:
            del self._sent_us[next(iter(self._sent_us))]
        self._out.state(node.name, incarnation, node.pseq, self.heard(node, fact), self.time.now_us)
        if self._out.virtual:
            self.decide_in(self._control_us)

    def observe(self, observation: Observation) -> None:
        """Let a virtual master see something; a real one hears itself that a node beats no more."""
        if self._out.virtual:
            super().observe(observation)

    def _count(self, node: VirtualNode, fact: Fact) -> None:
        if isinstance(fact, Cancelled):
            job = self.clients.job(fact.request)
            job.ended_s = seconds(self.time.now_us)
            self.clients.forget(job)
        else:
            super()._count(node, fact)

    def hear(self, event: LeaseEvent | LinkWord, order: OrderKey) -> None:
        """Tell the node that a decision concerns."""
        model = event.helper_model if isinstance(event, LeaseChecked) else event.owner_model
        node = self.nodes[number_of(event.helper if isinstance(event, LeaseChecked) else event.owner)]
        if model in node.runtimes and not self.over:
            self._hear(event, order)

    def snapshot(self, name: NodeId, reason: str) -> None:
        """Let a node say all that is open with it, as it does after an outage of its bus."""
        node, now_us = self.node_of(name), self.time.now_us
        if not node.alive or node.hung or self.over:
            return
        states = [state for runtime in node.runtimes.values() for state in runtime.snapshot(now_us)]
        shares = [
            replace(state, requests=state.requests[at : at + _SHARE])
            for state in states
            for at in range(0, len(state.requests), _SHARE)
        ] or [QueueState(model=node.models[0], requests=())]
        for part, share in enumerate(shares, 1):
            fact = NodeSnapshot(
                part=part,
                parts=len(shares),
                queues=(share,) if isinstance(share, QueueState) else (),
                desks=(share,) if isinstance(share, DeskState) else (),
                reason=reason,
                runtimes=tuple(room.state(now_us) for room in node.rooms()) if part == len(shares) else (),
            )
            self.state(node, fact)

    # -- clients without end

    def _next_second(self, number: int) -> None:
        if self.ending:
            return
        for arrival in self._traffic.second(number):
            job = self.clients.expect(arrival)
            if self._dice.random() < _LEAVES_SHARE:
                patience_us = us(self._dice.expovariate(4))
                self.time.at(BEGIN_US + us(arrival.at_s) + patience_us, self._leave, job)
        self.time.at(BEGIN_US + (number + 1) * _SECOND_US, self._next_second, number + 1)

    def _leave(self, job: Job) -> None:
        """Let a client go away, unless it has its answer."""
        node = self.nodes[job.owner]
        if job.ended_s is None and node.alive and not node.hung:
            runtime = node.runtimes[self.model_of(job)]
            self.do(node, runtime.client_gone(request_of(job.number, job.tries), self.time.now_us))

    # -- troubles

    def _trouble(self) -> None:
        """Let something go wrong, or let an operator change something."""
        if self.ending:
            return
        kind, lasts_s = self._dice.choice(TROUBLES), self._dice.choice(_LASTS_S)
        node, turn = self._dice.choice(self.nodes), self._dice.randrange(1 << 30)
        self.troubles[kind] = self.troubles.get(kind, 0) + 1
        match kind:
            case "unlink":
                self._unlink(self._links[turn % len(self._links)], lasts_s)
            case "asked":
                self.snapshot(node.name, "asked")
            case "setting":
                self._set()
            case "black_hole":
                self._turn_black(node.number)
                self.time.after(us(lasts_s), self._turn_white, node.number)
            case _:
                faults.strike(self, Fault(seconds(self.time.now_us), node.number, kind, lasts_s))
        self.time.after(us(self._dice.expovariate(1 / _TROUBLE_EVERY_S)), self._trouble)

    def _turn_black(self, number: int) -> None:
        self._blacken(self.scenario.black_holes | {number})

    def _turn_white(self, number: int) -> None:
        self._blacken(self.scenario.black_holes - {number})

    def _blacken(self, numbers: frozenset[int]) -> None:
        self.scenario = dataclasses.replace(self.scenario, black_holes=numbers)

    def _unlink(self, link: LinkAdded, lasts_s: float) -> None:
        """Take a link away for a while."""
        self._links.remove(link)
        self._out.decree(LinkRemoved(link=link.link, owner=link.owner, owner_model=link.owner_model))
        self._tell_links(link)
        self.time.after(us(lasts_s), self._link_again, link)

    def _link_again(self, link: LinkAdded) -> None:
        self._links.append(link)
        self._out.decree(link)
        self._tell_links(link)

    def _tell_links(self, changed: LinkAdded) -> None:
        """Let both ends of a link that came or went know the links that they have."""
        for end, model in ((changed.owner, changed.owner_model), (changed.helper, changed.helper_model)):
            node = self.nodes[number_of(end)]
            if node.alive and not node.hung:
                mine = [link.link for link in self._links if (link.owner, link.owner_model) == (end, model)]
                others = [link.link for link in self._links if (link.helper, link.helper_model) == (end, model)]
                self.do(node, node.runtimes[model].set_links(mine, others, self.time.now_us))

    def _set(self) -> None:
        """Change a setting, or let its file's value hold again."""
        name, values = self._dice.choice(_SETTINGS)
        self._setting_turn += 1
        value = self._dice.choice(values)
        self._out.decree(
            SettingChanged(name=name, value=value) if self._setting_turn % 4 else SettingCleared(name=name)
        )

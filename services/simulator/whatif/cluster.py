"""A cluster that goes on from a moment of stored history: its master's state, the product's machines, what clients asked."""

from typing import Final

import msgspec

from domain.actions import Dispatch, OrderKey
from domain.events import Accepting, ControlEvent, Fact, Finished, HeartbeatSeen, Lent
from domain.events.decision import LeaseEvent
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.inputs import EngineResult, NewRequest
from domain.master.control import depth, setting
from domain.master.state import HEALTHY, State
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import BEGIN_US
from services.simulator.product.timeline import Timeline
from services.simulator.product.virtual import VirtualCluster
from services.simulator.whatif.changes import Changes
from services.simulator.whatif.node import HistoricNode
from services.simulator.whatif.recorded import Asked, LoadSeen, Recorded
from services.simulator.whatif.start import links_of, start_of
from services.simulator.whatif.times import Times

_TOKEN: Final = 1_000_000


class Lived(msgspec.Struct, frozen=True):
    """What became of a request in a run on. Moments are of the stream's clock, in microseconds."""

    key: str
    at_us: int
    ended_us: int
    lent: bool


class RanOn(msgspec.Struct, frozen=True):
    """What came of a run on."""

    lived: list[Lived]
    """Every request that got an answer, in order of arrival."""
    loads: list[LoadSeen]
    refused: int


class ResumedMaster(VirtualMaster):
    """The master, from a state of stored history on."""

    def __init__(self, state: State, version: int) -> None:
        super().__init__()
        self.state, self._version = state, version
        self.heard, self._control_seq = state.hi, state.chi
        state.term = 1


class HistoricCluster(VirtualCluster[HistoricNode]):
    """A stretch of history under changes, in progress."""

    def __init__(self, recorded: Recorded, changes: Changes, times: Times) -> None:
        self.recorded, self.changes, self.times = recorded, changes, times
        state = start_of(recorded, changes)
        self._links = links_of(recorded, changes)
        super().__init__(
            Timeline(BEGIN_US),
            ResumedMaster(state, recorded.version),
            control_us=recorded.paths.control_us,
            hop_us=recorded.paths.hop_us,
        )
        self._numbers = {one.request: number for number, one in enumerate(recorded.asked)}
        self._open = {one.request for one in recorded.asked}
        self._lived: dict[int, Lived] = {}
        self._loads: list[LoadSeen] = []
        self._refused = 0
        self._lent_as: dict[tuple[NodeId, RequestId], ModelId] = {}
        self._borrower: dict[NodeId, str] = {}
        self.nodes = {name: HistoricNode(name, state, self._engine) for name in sorted(state.nodes)}
        self._begin(state)
        for one in recorded.asked:
            self.time.at(self._on_timeline(one.at_us), self._ask, one)
        for step in recorded.steps:
            for at_us, given in step.control:
                event = changes.heard(given.event)
                if event is not None and at_us >= recorded.begin_us:
                    self.time.at(self._on_timeline(at_us), self._decree, event)

    def run(self) -> RanOn:
        """Run until every request has ended."""
        while self._open:
            more = self.time.step()
            assert more, (
                f"what-if: {len(self._open)} of {len(self.recorded.asked)} did not end, and nothing more happens"
            )
        lived = [self._lived[number] for number in sorted(self._lived)]
        return RanOn(lived, self._loads, self._refused)

    def _on_timeline(self, at_us: int) -> int:
        return BEGIN_US + max(0, at_us - self.recorded.begin_us)

    def _on_stream(self) -> int:
        """Return the present moment on the stream's clock."""
        return self.recorded.begin_us + self.time.now_us - BEGIN_US

    # -- the beginning

    def _begin(self, state: State) -> None:
        """Put the machines where history left them, and give them what they held."""
        now_us, version = self.time.now_us, self.recorded.version
        self._priced = {link: told for link, told in self.recorded.priced.items() if link in state.control.links}
        for node in self.nodes.values():
            lived_us = state.now_us - node.known.since_us
            for room, resident in node.residents():
                self.do(node, room.begin(resident, now_us - lived_us))
        self._control_changed()
        for _, lease in sorted(state.leases.items()):
            sent_us = now_us - (state.now_us - lease.granted_us)
            if now_us - sent_us < lease.event.ttl_us:
                self._hand_over(lease.event, (self.recorded.generation, version, 0), sent_us)
        for node in self.nodes.values():
            for model, reason in sorted(node.known.not_accepting.items()):
                if reason != "engine_down":
                    self.state(node, Accepting(model=model))
            if node.known.health != HEALTHY and any(one.owner == node.name for one in self.recorded.asked):
                self.observe(HeartbeatSeen(node=node.name))
        self.tell_prices(sorted(self._priced))
        self.decide_in(0)

    def _hand_over(self, event: LeaseEvent, order: OrderKey, sent_us: int) -> None:
        node = self.nodes[event.owner]
        self.do(node, node.runtimes[event.owner_model].take_lease(event, order, sent_us, self.time.now_us))

    def _engine(self, node: HistoricNode, slots: int) -> VirtualEngine:
        return VirtualEngine(
            self.time,
            lambda request: self._begun(node, request),
            lambda request, took_us, status: self._served(node, request, took_us, status),
            lambda model, took_us: self._loaded(node, model, took_us),
            slots,
        )

    # -- operators and clients

    def _decree(self, event: ControlEvent) -> None:
        self.master.decree(event)
        self._control_changed()
        self.decide_in(self._control_us)

    def _control_changed(self) -> None:
        """Pass on to all nodes what holds now of links and settings, as the product does."""
        control, now_us = self.master.state.control, self.time.now_us
        for node in self.nodes.values():
            for room in node.rooms():
                room.set_restore(
                    delay_us=setting(control, "offload_restore_delay"),
                    keep_while_likely=bool(setting(control, "offload_keep_while_likely")),
                )
            for model, runtime in node.runtimes.items():
                key = f"{node.name}/{model}"
                self.do(node, runtime.set_links(control.by_owner.get(key, ()), control.by_helper.get(key, ()), now_us))
                self.do(node, runtime.set_depth(depth(control, node.own_depth), now_us))
                self.do(node, runtime.set_hold(bool(setting(control, "offload_hold_for_faster_helper")), now_us))
                ttl_us, streams = setting(control, "offload_lease_ttl"), bool(setting(control, "offload_streams"))
                self.do(node, runtime.set_lending(ttl_us, streams, now_us))
                self.do(node, runtime.set_stall(setting(control, "offload_lent_stall_timeout"), now_us))

    def _ask(self, one: Asked) -> None:
        new = NewRequest(
            request=one.request,
            work=one.work,
            est_tokens=one.est_tokens or max(1, one.work // _TOKEN),
            streaming=one.streaming,
            lendable=not one.not_lendable,
            not_lendable=one.not_lendable,
            vision=one.vision,
        )
        node = self.nodes[one.owner]
        if one.gone:
            self.time.after(one.ended_us - one.at_us, self._leave, node, one)
        self.do(node, node.runtimes[one.model].submit(new, self.time.now_us))

    def _leave(self, node: HistoricNode, one: Asked) -> None:
        if one.request in self._open:
            self._open.discard(one.request)
            self.do(node, node.runtimes[one.model].client_gone(one.request, self.time.now_us))

    def _asked(self, request: RequestId) -> Asked:
        return self.recorded.asked[self._numbers[request]]

    # -- what happens outside of its machines

    def node_of(self, name: NodeId) -> HistoricNode:
        """Return the node of that name."""
        return self.nodes[name]

    def incarnation(self, node: HistoricNode) -> Incarnation:
        """Return the incarnation of a node's process: it goes on living."""
        return node.incarnation

    def work_of(self, request: RequestId) -> int:
        """Return the work that a request is taken for."""
        return self._asked(request).work

    def link_flags(self, link: LinkId) -> tuple[bool, bool]:
        """Return whether the link lets its helper load the model, and wants what that displaces loaded back."""
        added = self._links[link]
        return added.load_if_unloaded, added.restore_after_borrow

    def model_asked(self, node: HistoricNode, request: RequestId) -> ModelId:
        """Return by which of its models a node serves the request."""
        one = self._asked(request)
        return one.model if one.owner == node.name else self._lent_as[node.name, request]

    def dispatch(self, node: HistoricNode, action: Dispatch) -> None:
        """Give a request to a node's engine."""
        one, model = self._asked(action.request), self.model_asked(node, action.request)
        takes_us = self.times.service_us(self._numbers[action.request], one, node.name, model)
        node.engines[model].take(action.request, takes_us)

    def give_up(self, node: HistoricNode, request: RequestId) -> None:
        """Take a request from the engine that it is in."""
        for engine in {id(engine): engine for engine in node.engines.values()}.values():
            if request in engine.inside():
                engine.give_up(request)

    def refused(self, request: RequestId) -> None:
        """Count an error: its client does not ask again."""
        if request in self._open:
            self._open.discard(request)
            self._refused += 1

    def heard(self, node: HistoricNode, fact: Fact) -> Fact:
        """Take note of a fact."""
        match fact:
            case Finished() if fact.request in self._open:
                self._open.discard(fact.request)
                number = self._numbers[fact.request]
                one = self.recorded.asked[number]
                self._lived[number] = Lived(one.key, one.at_us, self._on_stream(), bool(fact.helper))
            case Lent():
                self._borrower[fact.helper] = f"{node.name}/{fact.model}"
                self._lent_as[fact.helper, fact.request] = self._links[fact.link].helper_model
            case _:
                pass
        return fact

    def load(self, node: HistoricNode, model: ModelId) -> None:
        """Let a node's engine load a model."""
        room = node.room_of(model)
        mine = f"{node.name}/{model}"
        for_own = room is not None and not room.loads_for_borrowed and room.displaced != model
        if for_own:
            self._borrower.pop(node.name, None)
        owner = self._borrower.get(node.name, mine)
        took_us = self.times.load_us(node.name, model)
        self._loads.append(LoadSeen(node.name, model, self._on_stream() + took_us, took_us, owner))
        node.engines[model].load(model, took_us)

    def _begun(self, node: HistoricNode, request: RequestId) -> None:
        if self._asked(request).owner != node.name:
            self.wires.begun(node, request)

    def _served(self, node: HistoricNode, request: RequestId, took_us: int, status: int) -> None:
        self.ended_in_engine(node, request, took_us, EngineResult(status=status, complete=status > 0))

    def _loaded(self, node: HistoricNode, model: ModelId, took_us: int) -> None:
        room = node.room_of(model)
        assert room is not None, f"{node.name}: loads {model}, which it shares with none"
        self.do(node, room.loaded(model, took_us, self.time.now_us))

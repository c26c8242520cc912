"""What every simulated cluster is: the product's own machines of each node, and the master, between simulated wires and engines.

Facts reach the master at once, and what it decides reaches the owner `control_us` after the first of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar, assert_never

from domain.actions import (
    AcceptBorrow,
    Action,
    CancelEngine,
    CancelLend,
    Dispatch,
    Lend,
    LoadModel,
    OrderKey,
    Output,
    Refuse,
    RefuseBorrow,
)
from domain.events import Basis, Fact, LinkPriced, Observation
from domain.events.decision import LeaseChecked, LeaseEvent, LinkWord
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.inputs import EngineResult
from services.simulator.model.world import Counts
from services.simulator.product.machines import MachineNode
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import NEVER_US
from services.simulator.product.timeline import Timeline
from services.simulator.product.wires import Wires

Each = TypeVar("Each", bound=MachineNode)


class VirtualCluster(ABC, Generic[Each]):
    """Nodes and their master in virtual time. What the world outside does is said by who derives from it."""

    def __init__(self, time: Timeline, master: VirtualMaster, *, control_us: int, hop_us: int) -> None:
        self.time, self.master, self._control_us = time, master, control_us
        self.wires = Wires(self, hop_us)
        self.counts = Counts()
        self._looks = False
        self._sent_us: dict[Basis, int] = {}
        self._priced: dict[LinkId, tuple[LinkPriced, OrderKey]] = {}

    # -- what the world outside says

    @abstractmethod
    def node_of(self, name: NodeId) -> Each:
        """Return the node of that name."""

    @abstractmethod
    def incarnation(self, node: Each) -> Incarnation:
        """Return the incarnation of a node's process."""

    @abstractmethod
    def work_of(self, request: RequestId) -> int:
        """Return the work that a request is taken for, in micro-tokens."""

    @abstractmethod
    def link_flags(self, link: LinkId) -> tuple[bool, bool]:
        """Return whether the link lets its helper load the model, and wants what that displaces loaded back."""

    @abstractmethod
    def model_asked(self, node: Each, request: RequestId) -> ModelId:
        """Return by which of its models a node serves the request."""

    @abstractmethod
    def dispatch(self, node: Each, action: Dispatch) -> None:
        """Give a request to a node's engine."""

    @abstractmethod
    def give_up(self, node: Each, request: RequestId) -> None:
        """Take a request from a node's engine."""

    @abstractmethod
    def load(self, node: Each, model: ModelId) -> None:
        """Let a node's engine load a model."""

    @abstractmethod
    def refused(self, request: RequestId) -> None:
        """Let a client hear an error."""

    @abstractmethod
    def heard(self, node: Each, fact: Fact) -> Fact:
        """Take note of a fact; return what the master hears of it."""

    # -- facts and decisions

    def state(self, node: Each, fact: Fact) -> None:
        """Let the node state a fact: the master hears it, and will decide."""
        now_us = self.time.now_us
        node.pseq += 1
        incarnation = self.incarnation(node)
        self._sent_us[Basis(node.name, incarnation, node.pseq)] = now_us
        self.master.hear(node.name, incarnation, node.pseq, self.heard(node, fact), now_us)
        self.decide_in(self._control_us)

    def observe(self, observation: Observation) -> None:
        """Let the master see something itself."""
        self.master.observe(observation, self.time.now_us)
        self.decide_in(self._control_us)

    def decide_in(self, delay_us: int) -> None:
        """Let the master decide after a delay, unless it will already."""
        if not self._looks:
            self._looks = True
            self.time.after(delay_us, self._decide)

    def _decide(self) -> None:
        self._looks = False
        for event, order in self.master.decide():
            self._hear(event, order)
        due_us = self.master.due_in_us()
        if due_us is not None:
            self.time.after(due_us, self._wake, self.master.heard)

    def _wake(self, heard: int) -> None:
        if self.master.heard == heard:  # else domain time has moved, and the timer was looked at again
            self.master.wake(self.time.now_us)
            self.decide_in(0)

    def _hear(self, event: LeaseEvent | LinkWord, order: OrderKey) -> None:
        if isinstance(event, LinkPriced):
            self._priced[event.link] = event, order
        if isinstance(event, LeaseEvent) and event.probe and event.slots:
            self.counts.probes += 1
        self._tell(event.owner, event.owner_model, event, order)
        if isinstance(event, LeaseChecked):
            self._tell(event.helper, event.helper_model, event, order)

    def _tell(self, name: NodeId, model: ModelId, event: LeaseEvent | LinkWord, order: OrderKey) -> None:
        node = self.node_of(name)
        if node.alive:
            self.later(node, 0, self._take_in, node, model, event, order)

    def _take_in(self, node: Each, model: ModelId, event: LeaseEvent | LinkWord, order: OrderKey) -> None:
        now_us = self.time.now_us
        if isinstance(event, LeaseEvent):
            sent_us = self._sent_us.get(event.basis)
            self.do(node, node.runtimes[model].take_lease(event, order, sent_us, now_us))
        else:
            self.do(node, node.runtimes[model].take_word(event, order, now_us))

    def tell_prices(self, links: list[LinkId]) -> None:
        """Tell owners again what was said of these links of theirs."""
        for link in links:
            if link in self._priced:
                self._hear(*self._priced[link])

    # -- a node's doing

    def later(self, node: MachineNode, after_us: int, what: Callable[..., None], *arguments: Any) -> None:
        """Let something reach a node: not in its next life, and not while it hangs."""
        if after_us == 0 and not node.hung:
            what(*arguments)
        else:
            self.time.after(after_us, self._reach, node, node.life, what, arguments)

    def _reach(self, node: MachineNode, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if node.life != life:
            return
        if node.hung:
            node.kept_for_later.append((what, arguments))
        else:
            what(*arguments)

    def catch_up(self, node: Each) -> None:
        """Let a node that came back take what has waited for it."""
        kept, node.kept_for_later = node.kept_for_later, []
        for what, arguments in kept:
            what(*arguments)

    def do(self, node: Each, outputs: list[Output]) -> None:
        """State the facts and do the actions that a machine answered with, in their order."""
        for output in outputs:
            if isinstance(output, Action):
                self._act(node, output)
            else:
                self.state(node, output)
        due_us = node.next_timer_us()
        if due_us is not None and due_us < node.wakes_us:
            node.wakes_us = due_us
            self.time.at(due_us, self._reach, node, node.life, self._tick, (node, due_us))

    def _tick(self, node: Each, due_us: int) -> None:
        if node.wakes_us == due_us:
            node.wakes_us = NEVER_US
            self.do(node, node.tick(self.time.now_us))

    def _act(self, node: Each, action: Action) -> None:
        match action:
            case Dispatch():
                self.dispatch(node, action)
            case Lend():
                self.wires.lend(node, action)
            case AcceptBorrow():
                self.wires.accept(node, action.request)
            case RefuseBorrow():
                self.wires.refuse(action)
            case CancelLend():
                self.wires.cancel(node, action)
            case CancelEngine():
                self.give_up(node, action.request)
            case LoadModel():
                self.load(node, action.model)
            case Refuse():
                self.refused(action.request)
            case never:
                assert_never(never)

    def ended_in_engine(self, node: Each, request: RequestId, took_us: int, result: EngineResult) -> None:
        """Let a node see that its engine is done with a request, well or badly."""
        runtime = node.runtimes[self.model_asked(node, request)]
        self.do(node, runtime.engine_finished(request, result, self.time.now_us))
        self.wires.served(node, request, took_us, result.status)

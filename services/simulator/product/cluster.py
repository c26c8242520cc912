"""Nodes that run the product's own machines, and the master: everything but the wires and the engines is real.

Facts reach the master at once, and what it decides reaches the owner `control_s` after the first of them.
"""

from collections.abc import Callable
from typing import Any, assert_never

from msgspec.structs import replace

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
from domain.events import (
    Basis,
    BorrowFinished,
    Cancelled,
    CutOff,
    Expired,
    Fact,
    Finished,
    LeaseUpdated,
    LendReturned,
    Lent,
    LinkPriced,
    Loaded,
    Observation,
    Registered,
    Restored,
)
from domain.events.decision import LeaseChecked, LeaseEvent, LinkWord
from domain.ids import LinkId, ModelId, RequestId
from domain.inputs import EngineResult
from services.simulator.curves import Recorder, Sample
from services.simulator.model.dice import dice_of, lognormal_factor
from services.simulator.model.measures import Measures, measure
from services.simulator.model.parts import Job, Node
from services.simulator.model.scenario import Scenario
from services.simulator.model.world import Counts
from services.simulator.product import faults
from services.simulator.product.clients import Clients
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.history import history_of, settings_of
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import (
    BEGIN_US,
    NEVER_US,
    UNIT_OF_WORK,
    incarnation_of,
    link_of,
    model_name,
    model_number,
    number_of,
    seconds,
    us,
)
from services.simulator.product.node import VirtualNode
from services.simulator.product.timeline import Timeline
from services.simulator.product.wires import Wires

_BLACK_HOLE_US = 200_000
_STEP_US = 30_000_000
"""The master looks at the clock at least so often before the run: its domain time must not fall behind."""
_OK, _ERROR = 200, 500


class Cluster:
    """A scenario in progress."""

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder | None = None,
        master: VirtualMaster | None = None,
        seed: int = 0,
    ) -> None:
        self.scenario, self._recorder = scenario, recorder
        self.time = Timeline(BEGIN_US - us(scenario.idle_before_s))
        self.dice = dice_of(seed * 7919 + 17)  # of the true load times, as in the model
        self.master = master or VirtualMaster()
        self.wires = Wires(self)
        self.counts = Counts()
        self._looks = False
        self._sent_us: dict[Basis, int] = {}
        self._priced: dict[LinkId, tuple[LinkPriced, OrderKey]] = {}
        self._links = [
            link_of(owner, helper, scenario.model_of(owner))
            for owner, helpers in scenario.links.items()
            for helper in helpers
        ]
        self.nodes = [self._node(number) for number in range(len(scenario.speeds))]
        self._introduce()
        self.clients = Clients(self, scenario)
        for fault in scenario.faults:
            self.time.at(BEGIN_US + us(fault.at_s), faults.strike, self, fault)

    def run(self) -> Measures:
        """Run until every request has ended; return the measures."""
        total = len(self.clients.jobs)
        while self.clients.done < total:
            more = self.time.step()
            assert more, f"{self.scenario.name}: {self.clients.done} of {total} ended, and nothing more happens"
            if self._recorder is not None:
                self._note(self._recorder)
        self.counts.plans = self.master.plans
        nodes = [
            Node(
                number=node.number, speed=1.0, loaded=0, last_own_s=0.0, loads=node.loads, load_time_s=node.load_time_s
            )
            for node in self.nodes
        ]
        return measure(self.scenario, self.clients.jobs, nodes, self.counts)

    # -- the beginning of a run, and of a node's life

    def _node(self, number: int) -> VirtualNode:
        engine = VirtualEngine(
            self.time,
            lambda request: self._begun(self.nodes[number], request),
            lambda request, took_us, status: self._served(self.nodes[number], request, took_us, status),
            lambda model, took_us: self._loaded(self.nodes[number], model, took_us),
        )
        return VirtualNode(self.scenario, number, engine)

    def _introduce(self) -> None:
        """Link the nodes, state what they measured in an earlier life, and let the present one begin."""
        for setting in settings_of(self.scenario):
            self.master.decree(setting)
        for link in self._links:
            self.master.decree(link)
        for node in self.nodes:
            self._register(node, node.resident())
            for fact in history_of(self.scenario, node, self._links):
                self.state(node, fact)
            node.life += 1
            self.begin_life(node, node.resident())
        for moment_us in range(self.time.now_us + _STEP_US, BEGIN_US, _STEP_US):
            self.time.at(moment_us, self._pass_time)

    def _pass_time(self) -> None:
        self.master.wake(self.time.now_us)
        self._decide_in(0)

    def _register(self, node: VirtualNode, resident: ModelId | None) -> None:
        node.pseq = 0
        infos = node.infos(resident)
        self.state(node, Registered(url="http://h", models=infos, version="1", depth=self.scenario.depth))

    def begin_life(self, node: VirtualNode, resident: ModelId | None) -> None:
        """Let a node's process begin with `resident` in its engine: it registers, and learns of its links."""
        now_us = self.time.now_us
        outputs = node.begin(resident, now_us)
        self._register(node, resident)
        self.do(node, outputs)
        for model, runtime in node.runtimes.items():
            mine = [link.link for link in self._links if (link.owner, link.owner_model) == (node.name, model)]
            others = [link.link for link in self._links if (link.helper, link.helper_model) == (node.name, model)]
            self.do(node, runtime.set_links(mine, others, now_us))
        for link in self._links:
            if link.owner == node.name and link.link in self._priced:
                self._hear(*self._priced[link.link])

    # -- facts and decisions

    def state(self, node: VirtualNode, fact: Fact) -> None:
        """Let the node state a fact: the master hears it, and will decide."""
        now_us = self.time.now_us
        node.pseq += 1
        incarnation = incarnation_of(node.life)
        self._sent_us[Basis(node.name, incarnation, node.pseq)] = now_us
        heard = fact if self.scenario.learn or now_us < BEGIN_US else _teaches_nothing(fact)
        self.master.hear(node.name, incarnation, node.pseq, heard, now_us)
        self._count(node, fact)
        self._decide_in(us(self.scenario.control_s))

    def observe(self, observation: Observation) -> None:
        """Let the master see something itself."""
        self.master.observe(observation, self.time.now_us)
        self._decide_in(us(self.scenario.control_s))

    def _count(self, node: VirtualNode, fact: Fact) -> None:
        match fact:
            case Finished():
                self.clients.answered(node, fact) if self.time.now_us >= BEGIN_US else None
            case Cancelled() | Expired():
                raise AssertionError(f"{self.scenario.name}: {fact} though no client leaves and all wait for ever")
            case Lent():
                self.counts.lent += 1
            case LendReturned():
                self.counts.returned += 1
            case CutOff():
                self.counts.cut += 1
            case LeaseUpdated():
                node.slots[fact.link] = fact.slots
            case _:
                pass

    def _decide_in(self, delay_us: int) -> None:
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
            self._decide_in(0)

    def _hear(self, event: LeaseEvent | LinkWord, order: OrderKey) -> None:
        if isinstance(event, LinkPriced):
            self._priced[event.link] = event, order
        if isinstance(event, LeaseEvent) and event.probe and event.slots:
            self.counts.probes += 1
        node = self.nodes[number_of(event.helper if isinstance(event, LeaseChecked) else event.owner)]
        if node.alive:
            self.later(node, 0, self._take_in, node, event, order)

    def _take_in(self, node: VirtualNode, event: LeaseEvent | LinkWord, order: OrderKey) -> None:
        now_us = self.time.now_us
        if isinstance(event, LeaseEvent):
            sent_us = self._sent_us.get(event.basis)
            self.do(node, node.runtimes[event.owner_model].take_lease(event, order, sent_us, now_us))
        else:
            model = event.helper_model if isinstance(event, LeaseChecked) else event.owner_model
            self.do(node, node.runtimes[model].take_word(event, order, now_us))

    # -- a node's doing

    def later(self, node: VirtualNode, after_us: int, what: Callable[..., None], *arguments: Any) -> None:
        """Let something reach a node: not in its next life, and not while it hangs."""
        if after_us == 0 and not node.hung:
            what(*arguments)
        else:
            self.time.after(after_us, self._reach, node, node.life, what, arguments)

    def _reach(self, node: VirtualNode, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if node.life != life:
            return
        if node.hung:
            node.kept_for_later.append((what, arguments))
        else:
            what(*arguments)

    def catch_up(self, node: VirtualNode) -> None:
        """Let a node that came back take what has waited for it."""
        kept, node.kept_for_later = node.kept_for_later, []
        for what, arguments in kept:
            what(*arguments)

    def do(self, node: VirtualNode, outputs: list[Output]) -> None:
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

    def _tick(self, node: VirtualNode, due_us: int) -> None:
        if node.wakes_us == due_us:
            node.wakes_us = NEVER_US
            self.do(node, node.tick(self.time.now_us))

    def _act(self, node: VirtualNode, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatch(node, action)
            case Lend():
                self.wires.lend(node, action)
            case AcceptBorrow():
                self.wires.accept(node, action.request)
            case RefuseBorrow():
                self.wires.refuse(action)
            case CancelLend():
                self.wires.cancel(node, action)
            case CancelEngine():
                node.engine.give_up(action.request)
            case LoadModel():
                self._load(node, action.model)
            case Refuse():
                self.clients.refused(action.request)
            case never:
                assert_never(never)

    def work_of(self, request: RequestId) -> int:
        """Return the work that a request is taken for, in micro-tokens."""
        job = self.clients.job(request)
        size = job.size if self.scenario.size_known else self.scenario.mean_size_of(job.model)
        return max(1, round(size * UNIT_OF_WORK))

    @staticmethod
    def model_of(job: Job) -> ModelId:
        """Return the model that a job asks for."""
        return model_name(job.model)

    def _dispatch(self, node: VirtualNode, action: Dispatch) -> None:
        job, scenario = self.clients.job(action.request), self.scenario
        if action.borrowed and node.number in scenario.black_holes:
            node.engine.take(action.request, _BLACK_HOLE_US, _ERROR)
            return
        takes_us = us(scenario.unit_s[job.model] * job.size * job.noise / scenario.speeds[node.number])
        if node.engine.is_idle and not action.borrowed:
            takes_us += us(scenario.handover_s)
        node.engine.take(action.request, takes_us)

    def _begun(self, node: VirtualNode, request: RequestId) -> None:
        job = self.clients.job(request)
        if job.started_s is None:
            job.started_s = seconds(self.time.now_us)
        if job.owner != node.number and node.number not in self.scenario.black_holes:
            self.wires.begun(node, request)

    def _served(self, node: VirtualNode, request: RequestId, took_us: int, status: int) -> None:
        self.ended_in_engine(node, request, took_us, EngineResult(status=status, complete=status > 0))

    def ended_in_engine(self, node: VirtualNode, request: RequestId, took_us: int, result: EngineResult) -> None:
        """Let a node see that its engine is done with a request, well or badly."""
        model = self.model_of(self.clients.job(request))
        self.do(node, node.runtimes[model].engine_finished(request, result, self.time.now_us))
        self.wires.served(node, request, took_us, result.status)

    def _load(self, node: VirtualNode, model: ModelId) -> None:
        took_s = self.scenario.load_s[node.number] * lognormal_factor(self.dice, self.scenario.load_cv)
        node.loads += 1
        node.load_time_s += took_s
        node.engine.load(model, us(took_s))
        if self._recorder is not None:
            self._recorder.loading(node.number, model_number(model), seconds(self.time.now_us))

    def _loaded(self, node: VirtualNode, model: ModelId, took_us: int) -> None:
        assert node.room is not None, f"{node.name}: loads {model}, which it shares with none"
        if self._recorder is not None:
            self._recorder.loading(node.number, None, seconds(self.time.now_us))
        self.do(node, node.room.loaded(model, took_us, self.time.now_us))

    # -- looking

    def _note(self, recorder: Recorder) -> None:
        if self.time.now_us < BEGIN_US:
            return
        for node in self.nodes:
            counts = [runtime.counts() for runtime in node.runtimes.values()]
            held, in_engine, lent = (
                sum(getattr(count, name) for count in counts) for name in ("held", "in_engine", "lent")
            )
            sample = Sample(seconds(self.time.now_us), held, in_engine, lent, sum(node.slots.values()))
            recorder.note(node.number, sample)


def _teaches_nothing(fact: Fact) -> Fact:
    """Return a fact without the times that a master would learn from."""
    match fact:
        case Finished() | BorrowFinished():
            return replace(fact, service_us=0)
        case Loaded() | Restored():
            return replace(fact, load_us=0)
        case _:
            return fact

"""Nodes that run the product's own machines, and the master: everything but the wires and the engines is real.

Facts reach the master at once, and what it decides reaches the owner `control_s` after the first of them.
"""

from typing import assert_never

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
    Cancelled,
    CutOff,
    Expired,
    Fact,
    Failed,
    Finished,
    LeaseUpdated,
    LendReturned,
    Lent,
    Observation,
    Registered,
)
from domain.events.decision import LeaseEvent
from domain.ids import LinkId, NodeId, RequestId
from domain.inputs import EngineResult, NewRequest, RuntimeConfig
from domain.runtime import ModelRuntime
from services.simulator.curves import Recorder, Sample
from services.simulator.model.measures import Measures, measure
from services.simulator.model.parts import Job, Node
from services.simulator.model.scenario import Scenario
from services.simulator.model.world import Counts
from services.simulator.product import faults
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import (
    BEGIN_US,
    MODEL,
    NEVER_US,
    UNIT_OF_WORK,
    incarnation_of,
    link_of,
    model_info,
    name_of,
    number_of,
    past_request,
    request_number,
    request_of,
    seconds,
    us,
)
from services.simulator.product.timeline import Timeline
from services.simulator.product.wires import Wires

MEASURED = 50
"""Samples of a model whose price the scenario says is known: a full window."""


class VirtualNode:
    """One node: its runtime, its engine, what it has stated."""

    def __init__(self, number: int, runtime: ModelRuntime, engine: VirtualEngine) -> None:
        self.number, self.name = number, name_of(number)
        self.runtime, self.engine = runtime, engine
        self.alive, self.life = True, 0
        self.pseq = 0
        self.wakes_us = NEVER_US
        self.slots: dict[LinkId, int] = {}
        self.loads, self.load_time_s = 0, 0.0


class Cluster:
    """A scenario in progress."""

    def __init__(
        self, scenario: Scenario, recorder: Recorder | None = None, master: VirtualMaster | None = None
    ) -> None:
        self.scenario, self._recorder = scenario, recorder
        self.time = Timeline(BEGIN_US - us(scenario.idle_before_s))
        self.master = master or VirtualMaster()
        self.wires = Wires(self)
        self.jobs = [
            Job(number, a.node, a.node, a.at_s, a.size, a.noise, a.native) for number, a in enumerate(scenario.arrivals)
        ]
        self.counts = Counts()
        self.done = 0
        self._looks = False
        self._sent_us: dict[Basis, int] = {}
        self._links = [link_of(owner, helper) for owner, helpers in scenario.links.items() for helper in helpers]
        self.nodes = [self._node(number) for number in range(len(scenario.speeds))]
        self._introduce()
        for job in self.jobs:
            self.time.at(BEGIN_US + us(job.arrived_s), self._submit, job)
        for fault in scenario.faults:
            self.time.at(BEGIN_US + us(fault.at_s), faults.strike, self, fault)

    def run(self) -> Measures:
        """Run until every request has ended; return the measures."""
        total = len(self.jobs)
        while self.done < total:
            assert self.time.step(), f"{self.scenario.name}: {self.done} of {total} ended, and nothing more happens"
            self._note()
        self.counts.plans = self.master.plans
        nodes = [
            Node(
                number=node.number, speed=1.0, loaded=0, last_own_s=0.0, loads=node.loads, load_time_s=node.load_time_s
            )
            for node in self.nodes
        ]
        return measure(self.scenario, self.jobs, nodes, self.counts)

    # -- the beginning of a run, and of a node's life

    def _node(self, number: int) -> VirtualNode:
        engine = VirtualEngine(
            self.time, self._begun, lambda request, took_us: self._served(self.nodes[number], request, took_us)
        )
        return VirtualNode(number, self._runtime(number), engine)

    def _runtime(self, number: int) -> ModelRuntime:
        config = RuntimeConfig(
            node=name_of(number), model=MODEL, depth=self.scenario.depth, wait_us_max=NEVER_US, held_max=1_000_000
        )
        return ModelRuntime(config)

    def _introduce(self) -> None:
        """State what was measured before, and link the nodes."""
        for link in self._links:
            self.master.decree(link)
        for node in self.nodes:
            self.begin_life(node, ready=True)
            self._state_history(node)

    def begin_life(self, node: VirtualNode, *, ready: bool) -> None:
        """Let a node's process begin: it registers, and knows its links. Without its model it takes nothing yet."""
        now_us = self.time.now_us
        node.pseq, node.wakes_us, node.slots = 0, NEVER_US, {}
        node.runtime = self._runtime(node.number)
        info = model_info(ready=ready)
        self.state(node, Registered(url="http://h", models=(info,), version="1", depth=self.scenario.depth))
        if not ready:
            self.do(node, node.runtime.set_engine_up(up=False, now_us=now_us))
        mine = [link.link for link in self._links if link.owner == node.name]
        others = [link.link for link in self._links if link.helper == node.name]
        self.do(node, node.runtime.set_links(mine, others, now_us))

    def _state_history(self, node: VirtualNode) -> None:
        """State requests that the node has served, unless nobody is to know its price."""
        if (node.number, 0) in self.scenario.bias:
            return
        took_us = us(self.scenario.unit_s[0] / self.scenario.speeds[node.number])
        for number in range(MEASURED):
            request = past_request(node.number, number)
            self.state(node, Finished(request=request, model=MODEL, work=UNIT_OF_WORK, service_us=took_us, status=200))

    # -- facts and decisions

    def state(self, node: VirtualNode, fact: Fact) -> None:
        """Let the node state a fact: the master hears it, and will decide."""
        now_us = self.time.now_us
        node.pseq += 1
        incarnation = incarnation_of(node.life)
        self._sent_us[Basis(node.name, incarnation, node.pseq)] = now_us
        self.master.hear(node.name, incarnation, node.pseq, fact, now_us)
        self._count(node, fact)
        self._decide_in(us(self.scenario.control_s))

    def observe(self, observation: Observation) -> None:
        """Let the master see something itself."""
        self.master.observe(observation, self.time.now_us)
        self._decide_in(us(self.scenario.control_s))

    def _count(self, node: VirtualNode, fact: Fact) -> None:
        match fact:
            case Finished():
                self._ended(node, fact)
            case Failed() | Cancelled() | Expired():
                raise AssertionError(f"{self.scenario.name}: {fact} in a scenario in which every request is answered")
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

    def _ended(self, node: VirtualNode, fact: Finished) -> None:
        number = request_number(fact.request)
        if number is None:
            return
        job = self.jobs[number]
        assert job.ended_s is None, f"{self.scenario.name}: request {number} ended twice"
        job.ended_s = seconds(self.time.now_us)
        job.ran_at = number_of(NodeId(fact.helper)) if fact.helper else node.number
        self.done += 1

    def _decide_in(self, delay_us: int) -> None:
        if not self._looks:
            self._looks = True
            self.time.after(delay_us, self._decide)

    def _decide(self) -> None:
        self._looks = False
        for event, order in self.master.decide():
            self._hear_lease(event, order)
        due_us = self.master.due_in_us()
        if due_us is not None:
            self.time.after(due_us, self._wake, self.master.heard)

    def _wake(self, heard: int) -> None:
        if self.master.heard == heard:  # else domain time has moved, and the timer was looked at again
            self.master.wake(self.time.now_us)
            self._decide_in(0)

    def _hear_lease(self, event: LeaseEvent, order: OrderKey) -> None:
        owner = self.nodes[number_of(event.owner)]
        if owner.alive:
            sent_us = self._sent_us.get(event.basis)
            self.do(owner, owner.runtime.take_lease(event, order, sent_us, self.time.now_us))

    # -- a node's doing

    def do(self, node: VirtualNode, outputs: list[Output]) -> None:
        """State the facts and do the actions that a runtime answered with, in their order."""
        for output in outputs:
            if isinstance(output, Action):
                self._act(node, output)
            else:
                self.state(node, output)
        due_us = node.runtime.next_timer_us()
        if due_us is not None and due_us < node.wakes_us:
            node.wakes_us = due_us
            self.time.at(due_us, self._tick, node, node.life, due_us)

    def _tick(self, node: VirtualNode, life: int, due_us: int) -> None:
        if node.alive and node.life == life and node.wakes_us == due_us:
            node.wakes_us = NEVER_US
            self.do(node, node.runtime.tick(self.time.now_us))

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
            case Refuse() | CancelEngine() | CancelLend() | LoadModel():
                raise AssertionError(f"{self.scenario.name}: {action} though no client leaves and no engine fails")
            case never:
                assert_never(never)

    def _submit(self, job: Job) -> None:
        node, request = self.nodes[job.owner], request_of(job.number)
        new = NewRequest(request=request, work=self.work_of(request))
        self.do(node, node.runtime.submit(new, self.time.now_us))

    def work_of(self, request: RequestId) -> int:
        """Return the work that a request is taken for, in micro-tokens."""
        scenario = self.scenario
        size = self._job(request).size if scenario.size_known else scenario.mean_size_of(0)
        return max(1, round(size * UNIT_OF_WORK))

    def _dispatch(self, node: VirtualNode, action: Dispatch) -> None:
        job = self._job(action.request)
        takes_us = us(self.scenario.unit_s[0] * job.size * job.noise / self.scenario.speeds[node.number])
        if node.engine.is_idle and not action.borrowed:
            takes_us += us(self.scenario.handover_s)
        node.engine.take(action.request, takes_us)

    def _begun(self, request: RequestId) -> None:
        job = self._job(request)
        if job.started_s is None:
            job.started_s = seconds(self.time.now_us)

    def _served(self, node: VirtualNode, request: RequestId, took_us: int) -> None:
        self.do(node, node.runtime.engine_finished(request, EngineResult(status=200), self.time.now_us))
        self.wires.served(node, request, took_us)

    # -- looking

    def _job(self, request: RequestId) -> Job:
        number = request_number(request)
        assert number is not None, f"{self.scenario.name}: request {request} was before the run"
        return self.jobs[number]

    def _note(self) -> None:
        if self._recorder is None or self.time.now_us < BEGIN_US:
            return
        for node in self.nodes:
            counts = node.runtime.counts()
            slots = sum(node.slots.values())
            sample = Sample(seconds(self.time.now_us), counts.held, counts.in_engine, counts.lent, slots)
            self._recorder.note(node.number, sample)

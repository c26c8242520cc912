"""Nodes that run the product's own machines, the links between them, and the master: everything but the wires is real.

Requests, leases and answers take the scenario's delays. A lend is its headers (one hop), the helper's go-ahead (one hop) and
its body (one hop); facts reach the master at once, and what it decides reaches the owner `control_s` after the first of them.
"""

from typing import assert_never

from domain.actions import (
    AcceptBorrow,
    Action,
    CancelEngine,
    CancelLend,
    Dispatch,
    Lend,
    OrderKey,
    Output,
    Refuse,
    RefuseBorrow,
)
from domain.events import (
    Basis,
    Cancelled,
    Expired,
    Fact,
    Failed,
    Finished,
    LeaseUpdated,
    LendAnswered,
    LendReturned,
    Lent,
    LinkAdded,
    ModelInfo,
    Registered,
)
from domain.events.decision import LeaseEvent
from domain.ids import LinkId, ModelId, NodeId, RequestId, link_id
from domain.inputs import BorrowOffer, EngineResult, LendFailure, LendResult, NewRequest, RuntimeConfig
from domain.runtime import ModelRuntime
from services.simulator.curves import Recorder, Sample
from services.simulator.model.measures import Measures, measure
from services.simulator.model.parts import Job, Node
from services.simulator.model.scenario import Scenario
from services.simulator.model.world import Counts
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.master import INCARNATION, VirtualMaster
from services.simulator.product.timeline import Timeline

MODEL = ModelId("m0")
UNIT_OF_WORK = 64_000_000
"""Micro-tokens of a request of size 1."""
MEASURED = 50
"""Samples of a model whose price the scenario says is known: a full window."""
_BEGIN_US = 1_000_000_000_000
_NEVER_US = 10**15
_BLACK_HOLE_US = 200_000


class VirtualNode:
    """One node: its runtime, its engine, what it has stated."""

    def __init__(self, number: int, runtime: ModelRuntime, engine: VirtualEngine) -> None:
        self.number, self.name = number, name_of(number)
        self.runtime, self.engine = runtime, engine
        self.pseq = 0
        self.wakes_us = _NEVER_US
        self.slots: dict[LinkId, int] = {}


class Cluster:
    """A scenario in progress."""

    def __init__(self, scenario: Scenario, recorder: Recorder | None) -> None:
        self.scenario, self._recorder = scenario, recorder
        self.time = Timeline(_BEGIN_US - us(scenario.idle_before_s))
        self.master = VirtualMaster()
        self.jobs = [
            Job(number, a.node, a.node, a.at_s, a.size, a.noise, a.native) for number, a in enumerate(scenario.arrivals)
        ]
        self.counts = Counts()
        self.done = 0
        self._looks = False
        self._lends: dict[RequestId, tuple[int, Lend]] = {}
        self._sent_us: dict[Basis, int] = {}
        self.nodes = [self._node(number) for number in range(len(scenario.speeds))]
        self._hop_us, self._control_us = us(scenario.hop_s), us(scenario.control_s)
        self._introduce()
        for job in self.jobs:
            self.time.at(_BEGIN_US + us(job.arrived_s), self._submit, job)

    def run(self) -> Measures:
        """Run until every request has ended; return the measures."""
        total = len(self.jobs)
        while self.done < total:
            assert self.time.step(), f"{self.scenario.name}: {self.done} of {total} ended, and nothing more happens"
            self._note()
        self.counts.plans = self.master.plans
        nodes = [Node(number=n, speed=s, loaded=0, last_own_s=0.0) for n, s in enumerate(self.scenario.speeds)]
        return measure(self.scenario, self.jobs, nodes, self.counts)

    # -- the beginning

    def _node(self, number: int) -> VirtualNode:
        config = RuntimeConfig(
            node=name_of(number), model=MODEL, depth=self.scenario.depth, wait_us_max=_NEVER_US, held_max=1_000_000
        )
        engine = VirtualEngine(
            self.time,
            lambda request, took_us: self._served(number, request, took_us),
            self._begun,
        )
        return VirtualNode(number, ModelRuntime(config), engine)

    def _introduce(self) -> None:
        """Register the nodes, link them, and state what was measured before."""
        links = [added(owner, helper) for owner, helpers in self.scenario.links.items() for helper in helpers]
        for node in self.nodes:
            info = ModelInfo(id=MODEL, local_id=MODEL)
            self._state(node, Registered(url="http://h", models=(info,), version="1", depth=self.scenario.depth))
            self._state_history(node)
        for link in links:
            self.master.decree(link)
        for node in self.nodes:
            mine = [link.link for link in links if link.owner == node.name]
            others = [link.link for link in links if link.helper == node.name]
            self._do(node, node.runtime.set_links(mine, others, self.time.now_us))

    def _state_history(self, node: VirtualNode) -> None:
        """State requests that the node has served, unless nobody is to know its price."""
        if (node.number, 0) in self.scenario.bias:
            return
        took_us = us(self.scenario.unit_s[0] / self.scenario.speeds[node.number])
        for number in range(MEASURED):
            request = RequestId(f"req_{node.number:08x}{number:024x}")
            past = Finished(request=request, model=MODEL, work=UNIT_OF_WORK, service_us=took_us, status=200)
            self._state(node, past)

    # -- facts and decisions

    def _state(self, node: VirtualNode, fact: Fact) -> None:
        now_us = self.time.now_us
        node.pseq += 1
        self._sent_us[Basis(node.name, INCARNATION, node.pseq)] = now_us
        self.master.hear(node.name, node.pseq, fact, now_us)
        self._count(node, fact)
        self._look_later(self._control_us)

    def _count(self, node: VirtualNode, fact: Fact) -> None:
        match fact:
            case Finished() if self._job(fact.request) is not None:
                self._ended(node, fact)
            case Failed() | Cancelled() | Expired():
                raise AssertionError(f"{self.scenario.name}: {fact} in a scenario in which every request is answered")
            case Lent():
                self.counts.lent += 1
            case LendReturned():
                self.counts.returned += 1
            case LeaseUpdated():
                node.slots[fact.link] = fact.slots
            case LendAnswered():
                self._lends.pop(fact.request, None)
            case _:
                pass

    def _ended(self, node: VirtualNode, fact: Finished) -> None:
        job = self._job(fact.request)
        assert job is not None
        assert job.ended_s is None, f"{self.scenario.name}: request {job.number} ended twice"
        job.ended_s = seconds(self.time.now_us)
        job.ran_at = node.number if not fact.helper else number_of(NodeId(fact.helper))
        self.done += 1

    def _look_later(self, delay_us: int) -> None:
        if not self._looks:
            self._looks = True
            self.time.after(delay_us, self._decide)

    def _decide(self) -> None:
        self._looks = False
        for event, order in self.master.decide():
            self._hear_lease(event, order)
        due_us = self.master.due_in_us()
        if due_us is not None:
            self.time.after(due_us, self._wake, self.master.state.stamp_us)

    def _wake(self, newest_us: int) -> None:
        if self.master.state.stamp_us == newest_us:  # else time has moved, and the timer with it
            self.master.wake(self.time.now_us)
            self._look_later(0)

    def _hear_lease(self, event: LeaseEvent, order: OrderKey) -> None:
        node = self.nodes[number_of(event.owner)]
        sent_us = self._sent_us.get(event.basis)
        self._do(node, node.runtime.take_lease(event, order, sent_us, self.time.now_us))

    # -- a node's doing

    def _do(self, node: VirtualNode, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Action):
                self._act(node, output)
            else:
                self._state(node, output)
        due_us = node.runtime.next_timer_us()
        if due_us is not None and due_us < node.wakes_us:
            node.wakes_us = due_us
            self.time.at(due_us, self._tick, node, due_us)

    def _tick(self, node: VirtualNode, due_us: int) -> None:
        if node.wakes_us == due_us:
            node.wakes_us = _NEVER_US
            self._do(node, node.runtime.tick(self.time.now_us))

    def _act(self, node: VirtualNode, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatch(node, action)
            case Lend():
                self._lends[action.request] = (node.number, action)
                self.time.after(self._hop_us, self._offer, action)
            case AcceptBorrow():
                self._accepted(node, action.request)
            case RefuseBorrow():
                self.time.after(self._hop_us, self._refused, action)
            case Refuse() | CancelEngine() | CancelLend():
                raise AssertionError(f"{self.scenario.name}: {action} though no client leaves and no engine fails")
            case never:
                assert_never(never)

    def _submit(self, job: Job) -> None:
        node = self.nodes[job.owner]
        size = job.size if self.scenario.size_known else self.scenario.mean_size_of(0)
        new = NewRequest(request=request_of(job.number), work=max(1, round(size * UNIT_OF_WORK)))
        self._do(node, node.runtime.submit(new, self.time.now_us))

    def _dispatch(self, node: VirtualNode, action: Dispatch) -> None:
        job = self._job(action.request)
        assert job is not None
        takes_us = us(self.scenario.unit_s[0] * job.size * job.noise / self.scenario.speeds[node.number])
        if node.engine.is_idle and not action.borrowed:
            takes_us += us(self.scenario.handover_s)
        node.engine.take(action.request, takes_us)

    def _begun(self, request: RequestId) -> None:
        job = self._job(request)
        assert job is not None
        if job.started_s is None:
            job.started_s = seconds(self.time.now_us)

    def _served(self, number: int, request: RequestId, took_us: int) -> None:
        node = self.nodes[number]
        lent = self._lends.get(request)
        self._do(node, node.runtime.engine_finished(request, EngineResult(status=200), self.time.now_us))
        if lent is not None and lent[0] != number:
            self.time.after(self._hop_us, self._answered, lent[0], lent[1], took_us)

    # -- a lend on its way

    def _offer(self, lend: Lend) -> None:
        helper = self.nodes[number_of(lend.grant.helper)]
        if helper.number in self.scenario.black_holes:
            self.time.after(_BLACK_HOLE_US, self._failed, lend)
            return
        offer = BorrowOffer(
            request=lend.request,
            owner=lend.grant.owner,
            link=lend.link,
            lease=lend.lease,
            work=self._work_of(lend.request),
            slots=lend.grant.slots,
            remaining_us=lend.remaining_us - self._hop_us,
        )
        self._do(helper, helper.runtime.borrow(offer, self.time.now_us))

    def _work_of(self, request: RequestId) -> int:
        job = self._job(request)
        assert job is not None
        size = job.size if self.scenario.size_known else self.scenario.mean_size_of(0)
        return max(1, round(size * UNIT_OF_WORK))

    def _accepted(self, helper: VirtualNode, request: RequestId) -> None:
        self.time.after(self._hop_us, self._go_ahead, request)
        self.time.after(2 * self._hop_us, self._body, helper, request)

    def _go_ahead(self, request: RequestId) -> None:
        if request in self._lends:
            number, lend = self._lends[request]
            owner = self.nodes[number]
            self._do(owner, owner.runtime.lend_accepted(request, lend.lease, self.time.now_us))

    def _body(self, helper: VirtualNode, request: RequestId) -> None:
        self._do(helper, helper.runtime.borrow_body(request, self.time.now_us))

    def _refused(self, refusal: RefuseBorrow) -> None:
        number, lend = self._lends.pop(refusal.request)
        runtime, now_us = self.nodes[number].runtime, self.time.now_us
        match refusal.status:
            case 409:
                outputs = runtime.lend_returned(refusal.request, lend.lease, "own_work", now_us)
            case 503:
                outputs = runtime.lend_busy(refusal.request, lend.lease, now_us)
            case _:
                outputs = runtime.lend_refused(refusal.request, lend.lease, refusal.code, now_us)
        self._do(self.nodes[number], outputs)

    def _failed(self, lend: Lend) -> None:
        number, _ = self._lends.pop(lend.request)
        owner = self.nodes[number]
        failure = LendFailure(reason="helper_error")
        self._do(owner, owner.runtime.lend_failed(lend.request, lend.lease, failure, self.time.now_us))

    def _answered(self, number: int, lend: Lend, took_us: int) -> None:
        owner = self.nodes[number]
        result = LendResult(status=200, service_us=took_us)
        self._do(owner, owner.runtime.lend_answered(lend.request, lend.lease, result, self.time.now_us))

    # -- looking

    def _job(self, request: RequestId) -> Job | None:
        number = int(request[4:], 16) - _FIRST_REQUEST
        return self.jobs[number] if 0 <= number < len(self.jobs) else None

    def _note(self) -> None:
        if self._recorder is None or self.time.now_us < _BEGIN_US:
            return
        for node in self.nodes:
            counts = node.runtime.counts()
            sample = Sample(
                seconds(self.time.now_us), counts.held, counts.in_engine, counts.lent, sum(node.slots.values())
            )
            self._recorder.note(node.number, sample)


_FIRST_REQUEST = 1 << 112
"""Beyond the numbers of requests that were served before the run."""


def us(duration_s: float) -> int:
    """Return seconds as whole microseconds."""
    return round(duration_s * 1_000_000)


def seconds(moment_us: int) -> float:
    """Return a moment of the timeline in seconds since the run began."""
    return (moment_us - _BEGIN_US) / 1_000_000


def name_of(number: int) -> NodeId:
    """Return a node's id; ids sort as numbers do."""
    return NodeId(f"n{number:02d}")


def number_of(node: NodeId) -> int:
    """Return a node's number."""
    return int(node[1:])


def request_of(number: int) -> RequestId:
    """Return the id of a request by its number."""
    return RequestId(f"req_{_FIRST_REQUEST + number:032x}")


def added(owner: int, helper: int) -> LinkAdded:
    """Return the link from an owner to a helper."""
    ids = (name_of(owner), MODEL, name_of(helper), MODEL)
    return LinkAdded(link=link_id(*ids), owner=ids[0], owner_model=MODEL, helper=ids[2], helper_model=MODEL)

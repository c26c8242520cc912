"""Nodes that run the product's own machines, and the master: everything but the wires and the engines is real.

Facts reach the master at once, and what it decides reaches the owner `control_s` after the first of them.
"""

from msgspec.structs import replace

from domain.actions import Dispatch
from domain.events import (
    BorrowFinished,
    Cancelled,
    CutOff,
    Expired,
    Fact,
    Finished,
    LeaseUpdated,
    LendReturned,
    Lent,
    Loaded,
    Registered,
    Restored,
)
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.inputs import EngineResult
from services.simulator.curves import Recorder, Sample
from services.simulator.model.dice import dice_of, lognormal_factor
from services.simulator.model.measures import Measures, measure
from services.simulator.model.parts import Job, Node
from services.simulator.model.scenario import Scenario
from services.simulator.product import faults
from services.simulator.product.clients import Clients
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.history import history_of, settings_of
from services.simulator.product.master import VirtualMaster
from services.simulator.product.names import (
    BEGIN_US,
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
from services.simulator.product.virtual import VirtualCluster

_BLACK_HOLE_US = 200_000
_STEP_US = 30_000_000
"""The master looks at the clock at least so often before the run: its domain time must not fall behind."""
_OK, _ERROR = 200, 500


class Cluster(VirtualCluster[VirtualNode]):
    """A scenario in progress."""

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder | None = None,
        master: VirtualMaster | None = None,
        seed: int = 0,
    ) -> None:
        time = Timeline(BEGIN_US - us(scenario.idle_before_s))
        super().__init__(time, master or VirtualMaster(), control_us=us(scenario.control_s), hop_us=us(scenario.hop_s))
        self.scenario, self._recorder = scenario, recorder
        self.dice = dice_of(seed * 7919 + 17)  # of the true load times, as in the model
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
        self.decide_in(0)

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
        self.tell_prices([link.link for link in self._links if link.owner == node.name])

    # -- what happens outside of its machines

    def node_of(self, name: NodeId) -> VirtualNode:
        """Return the node of that name."""
        return self.nodes[number_of(name)]

    def incarnation(self, node: VirtualNode) -> Incarnation:
        """Return the incarnation of a node's process."""
        return incarnation_of(node.life)

    def heard(self, node: VirtualNode, fact: Fact) -> Fact:
        """Count a fact, and tell what the master learns of it."""
        self._count(node, fact)
        return fact if self.scenario.learn or self.time.now_us < BEGIN_US else _teaches_nothing(fact)

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

    def link_flags(self, link: LinkId) -> tuple[bool, bool]:
        """Return that every helper may load, and loads back."""
        del link
        return True, True

    def refused(self, request: RequestId) -> None:
        """Let a client hear an error."""
        self.clients.refused(request)

    def give_up(self, node: VirtualNode, request: RequestId) -> None:
        """Take a request from a node's engine."""
        node.engine.give_up(request)

    def work_of(self, request: RequestId) -> int:
        """Return the work that a request is taken for, in micro-tokens."""
        job = self.clients.job(request)
        size = job.size if self.scenario.size_known else self.scenario.mean_size_of(job.model)
        return max(1, round(size * UNIT_OF_WORK))

    @staticmethod
    def model_of(job: Job) -> ModelId:
        """Return the model that a job asks for."""
        return model_name(job.model)

    def model_asked(self, node: VirtualNode, request: RequestId) -> ModelId:
        """Return the model of a request: it has the same name on every node."""
        del node
        return self.model_of(self.clients.job(request))

    def dispatch(self, node: VirtualNode, action: Dispatch) -> None:
        """Give a request to a node's engine."""
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

    def load(self, node: VirtualNode, model: ModelId) -> None:
        """Let a node's engine load a model."""
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

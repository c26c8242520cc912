"""The world of one run: virtual time, runtimes, arrivals and an owner's queue. Policies decide, this does."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from services.simulator.model import faults, lending
from services.simulator.model.dice import dice_of, lognormal_factor
from services.simulator.model.estimator import Estimator
from services.simulator.model.parts import Job, Node
from services.simulator.model.policy import Policy
from services.simulator.model.scenario import Scenario

_PATIENCE_S = 1e6


class Watcher(Protocol):
    """Looks at the world after each event; the reports' plots come from one."""

    def look(self, world: "World") -> None:
        """Note what changed."""


@dataclass(slots=True)
class Counts:
    """What was done how often."""

    lent: int = 0
    returned: int = 0
    cut: int = 0
    plans: int = 0
    probes: int = 0
    kept: int = 0


class World:
    """One run of one scenario under one policy."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int = 0, watcher: Watcher | None = None) -> None:
        self.scenario, self.policy, self.watcher = scenario, policy, watcher
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._turn = 0
        self.dice = dice_of(seed * 7919 + 17)
        self.nodes = [
            Node(number=number, speed=speed, loaded=scenario.loaded[number], last_own_s=-scenario.idle_before_s)
            for number, speed in enumerate(scenario.speeds)
        ]
        self.estimates = Estimator(scenario)
        self.counts = Counts()
        self.done = 0
        self._asked: set[int] = set()
        self.jobs = [
            Job(number, a.node, scenario.model_of(a.node), a.at_s, a.size, a.noise, a.native)
            for number, a in enumerate(scenario.arrivals)
        ]
        for job in self.jobs:
            self.at(job.arrived_s, self._arrive, job)
        for fault in scenario.faults:
            self.at(fault.at_s, faults.strike, self, fault)
        if policy.lending:
            self.at(scenario.tick_s, self._tick)
        policy.start(self)

    # -- time

    def at(self, when_s: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what` at `when_s`; what is scheduled first for a moment happens first."""
        self._turn += 1
        heapq.heappush(self._events, (when_s, self._turn, what, arguments))

    def run(self) -> "World":
        """Run until every request is answered."""
        total = len(self.jobs)
        limit_s = self._limit_s()
        while self._events and self.done < total and self.now_s < limit_s:
            self.now_s, _, what, arguments = heapq.heappop(self._events)
            what(*arguments)
            if self.watcher is not None:
                self.watcher.look(self)
        assert self.done == total, f"{self.scenario.name}, {self.policy.name}: {self.done} of {total} answered"
        return self

    def _limit_s(self) -> float:
        """Return a time by which any policy that does not lose requests is done."""
        scenario = self.scenario
        alone_s = sum(job.size * job.noise * scenario.unit_s[job.model] / min(scenario.speeds) for job in self.jobs)
        return _PATIENCE_S + max(job.arrived_s for job in self.jobs) + 10 * alone_s

    # -- the runtime

    def kick(self, node: Node) -> None:
        """Let an idle runtime take its next job, loading the model first if it must."""
        if not node.alive or node.hung or node.state != "idle":
            return
        while node.pipe and node.pipe[0].ended_s is not None:
            node.pipe.popleft()
        if not node.pipe:
            return
        job = node.pipe[0]
        own = job.owner == node.number
        if node.loaded != job.model:
            if not own and self.policy.lending and node.displaced is None:
                node.displaced = node.loaded
            if own:
                node.displaced = None
            self.begin_load(node, job.model)
            return
        node.pipe.popleft()
        handover_s = self.scenario.handover_s if self.policy.lending and job.fed_s == self.now_s else 0
        took_s = self.scenario.unit_s[job.model] * job.size * job.noise / self.scenario.speeds[node.number] + handover_s
        node.running, node.state, node.run_began_s = job, "run", self.now_s
        node.until_s = self.now_s + took_s
        if job.started_s is None:
            job.started_s = self.now_s
        self.at(node.until_s, self._finish, node, job, node.life, took_s)

    def begin_load(self, node: Node, model: int) -> None:
        """Begin a load, which nothing can stop but a fault."""
        node.state, node.loading = "load", model
        node.loads += 1
        took_s = self.scenario.load_s[node.number] * lognormal_factor(self.dice, self.scenario.load_cv)
        node.load_time_s += took_s
        node.until_s = self.now_s + took_s
        self.at(node.until_s, self._loaded, node, model, node.life, took_s)

    def _loaded(self, node: Node, model: int, life: int, took_s: float) -> None:
        if life != node.life:
            return
        self.estimates.observe_load(node.number, model, took_s)
        node.loaded, node.loading, node.state = model, None, "idle"
        if node.restoring:
            node.restoring, node.displaced, node.last_own_s = False, None, self.now_s
        self.feed(node)
        self.kick(node)
        self.policy.happened(self, node)

    def _finish(self, node: Node, job: Job, life: int, took_s: float) -> None:
        if life != node.life:
            return
        node.running, node.state = None, "idle"
        self.estimates.observe(node.number, job, took_s)
        if job.ended_s is None:
            job.ended_s, job.ran_at = self.now_s, node.number
            self.done += 1
        owner = self.nodes[job.owner]
        if owner is node:
            node.last_own_s = self.now_s
        else:
            owner.out.pop(job.number, None)
            node.barren, node.last_borrow_s = 0, self.now_s
        self.feed(node)
        self.kick(node)
        if owner is not node:
            self.feed(owner)
            self.kick(owner)
            lending.restore_later(self, node)
        self.policy.happened(self, owner, node)

    # -- an owner's queue

    def _arrive(self, job: Job) -> None:
        node = self.nodes[job.owner]
        if node.last_arrival_s is not None:
            node.gaps_s.append(self.now_s - node.last_arrival_s)
        node.last_arrival_s = self.now_s
        if not self.policy.lending:
            self.policy.dispatch(self, job)
            return
        node.held.append(job)
        lending.yield_to_own(self, node)
        self.feed(node)
        self.kick(node)
        self.policy.happened(self, node)

    def feed(self, node: Node) -> None:
        """Hand held jobs to the node's own engine, up to its depth; the second only if the policy lets it go."""
        if not self.policy.lending:
            return
        while node.held and node.alive and node.in_engine() < self.scenario.depth:
            if node.in_engine() >= 1 and self.policy.keeps_second_slot(self, node):
                self.counts.kept += 1
                break
            job = node.held.popleft()
            if job.ended_s is None:
                node.pipe.append(job)
                job.fed_s = self.now_s

    # -- asking for decisions

    def ask(self, owner: Node) -> None:
        """Ask for a plan for `owner` after the control delay; what is asked meanwhile is the same plan."""
        if owner.number in self._asked:
            return
        self._asked.add(owner.number)
        self.at(self.now_s + self.scenario.control_s, self._plan, owner)

    def _plan(self, owner: Node) -> None:
        self._asked.discard(owner.number)
        self.counts.plans += 1
        self.policy.plan(self, owner)

    def _tick(self) -> None:
        if self.done < len(self.jobs):
            self.at(self.now_s + self.scenario.tick_s, self._tick)
        for node in self.nodes:
            if node.held:
                self.ask(node)

    # -- what a policy may ask

    def helpers_of(self, owner: Node) -> list[Node]:
        """Return the nodes that `owner` has a link to, in order of statement."""
        return [self.nodes[helper] for helper in self.scenario.links.get(owner.number, ())]

    def lent_to(self, owner: Node, helper: Node) -> int:
        """Return how many jobs `owner` has at `helper`."""
        return sum(at is helper for _, at in owner.out.values())

    def idle_s(self, helper: Node) -> float:
        """Return how long `helper` has had no work of its own."""
        return self.now_s - helper.last_own_s

    def remaining_s(self, node: Node) -> float:
        """Return the predicted seconds until the node's runtime has served all it has, its present load included."""
        left_s = 0.0
        model = node.loaded
        if node.state == "load" and node.loading is not None:
            # the time since the load should have begun by the true load time: a load's begin is known, its end is not
            since_s = self.now_s - (node.until_s - self.scenario.load_s[node.number])
            left_s += max(0.0, self.estimates.load_time_s(node.number, node.loading) - since_s)
            model = node.loading
        if node.running is not None:
            expected_s = self.estimates.service_s(node.number, node.running)
            so_far_s = self.now_s - node.run_began_s
            overdue_s = 0.1 * expected_s if so_far_s < 3 * expected_s else 0.3 * so_far_s
            left_s += max(expected_s - so_far_s, overdue_s)
        for job in node.pipe:
            if job.model != model:
                left_s += self.estimates.load_time_s(node.number, job.model)
                model = job.model
            left_s += self.estimates.service_s(node.number, job)
        return left_s

    def elapsed_ratio(self, node: int, model: int) -> float | None:
        """Return how much of its expected time the running job of `model` on `node` has taken.

        None if no such job runs there or nobody knows sizes.
        """
        at = self.nodes[node]
        if at.running is None or at.running.model != model or not self.scenario.size_known or at.hung:
            return None
        expected_s = self.scenario.unit_s[model] * at.running.size / self.scenario.speeds[node]
        return (self.now_s - at.run_began_s) / expected_s

"""The rule `water`: leases for the earliest completion slots over owner and helpers, priced in job-seconds."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from services.simulator.model.parts import Job, Node
from services.simulator.model.policies.leases import (
    Lease,
    Price,
    ask_those_touched,
    has_model,
    price,
    probe_wait_s,
    spend,
)
from services.simulator.model.policies.slots import Filled, Machine, fill
from services.simulator.model.policy import Policy

if TYPE_CHECKING:
    from services.simulator.model.world import World

_DEEP_ENOUGH = 4
_QUARANTINE_S, _QUARANTINE_MAX_S = 5, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterRule:
    """The parts of the rule, each with a switch so that its worth can be measured."""

    several_leases: bool = True
    hold: Literal["slots_taken", "lease", "pending"] = "lease"
    """Keep the second slot while a leased helper would be sooner: only if its slots are taken, always, or also while a
    decision is on its way."""
    price_job_seconds: bool = True
    slots_cover_turnaround: bool = True
    shrunken_estimates: bool = True
    keep_while_likely: bool = True
    """Put the restore off while the next visit of lent work is likelier than the next own request."""
    breaker: bool = True
    probes: bool = True
    two_if_faster: bool = True
    turnaround_slack: float = 0.1
    probe_idle_s: float = 5.0
    own_weight: float = 1.0
    """What a second of a helper's own requests counts, against one of the owner's."""
    wear: float = 0.1
    """What a second of loading costs in job-seconds."""


class _Candidate(NamedTuple):
    """A helper that would have to switch."""

    first_answer_s: float
    number: int
    machine: Machine
    price: Price


@dataclass(slots=True)
class _Draft:
    """A plan in the making: the owner first, then its helpers."""

    jobs: int
    lendable: int
    machines: list[Machine]
    numbers: list[int]
    filled: Filled
    candidates: list[_Candidate] = field(default_factory=list)


class Water(Policy):
    """Owners own, leases with slots, nothing recalled, a handed back request is never lent again, own work first."""

    lending = True

    def __init__(self, name: str, rule: WaterRule | None = None) -> None:
        self.name = name
        self.rule = rule or WaterRule()
        self._leases: dict[int, dict[int, Lease]] = {}
        self._planned_s: dict[int, float] = {}

    def start(self, world: "World") -> None:
        """Let the estimates shrink to the first guess and heed running jobs."""
        if self.rule.shrunken_estimates:
            world.estimates.prior_weight = 1.0
            world.estimates.elapsed = world.elapsed_ratio

    def happened(self, world: "World", node: Node, other: Node | None = None) -> None:
        """Plan for those that it touches."""
        ask_those_touched(world, node, other, world.ask)

    def lease_slots(self, owner: Node) -> int:
        """Return the slots of all its leases."""
        return sum(lease.slots for lease in self._leases.get(owner.number, {}).values())

    # -- the plan

    def plan(self, world: "World", owner: Node) -> None:
        """Fill the earliest slots, open the switches that gain, grant, probe, lend."""
        self._leases[owner.number] = {}
        self._planned_s[owner.number] = world.now_s
        if not owner.held:
            return
        draft = self._draft(world, owner)
        self._open_switches(world, draft)
        leases = self._granted(world, owner, draft)
        if self.rule.probes:
            self._probe(world, owner, leases, draft.filled.end_s)
        if not self.rule.several_leases and len(leases) > 1:
            leases = _only_the_first(leases, draft)
        self._leases[owner.number] = leases
        spend(world, owner, leases)
        world.feed(owner)
        world.kick(owner)

    def _draft(self, world: "World", owner: Node) -> _Draft:
        jobs = len(owner.held)
        model = world.scenario.model_of(owner.number)
        size = world.scenario.mean_size_of(model)
        if world.scenario.size_known:
            size = sum(job.size for job in owner.held) / jobs
        turnaround_s = _turnaround_s(world)
        machines = [Machine(world.remaining_s(owner), world.estimates.per_unit_s(owner.number, model) * size)]
        numbers = [owner.number]
        candidates = []
        for helper in world.helpers_of(owner):
            asked = self._price(world, owner, helper)
            if asked.refused:
                continue
            job_s = world.estimates.per_unit_s(helper.number, model) * size
            ready_s = world.remaining_s(helper) + turnaround_s
            if has_model(helper, model):
                machines.append(Machine(ready_s, job_s))
                numbers.append(helper.number)
            else:
                machine = Machine(ready_s + asked.switch_s, job_s)
                candidates.append(_Candidate(ready_s + asked.switch_s + job_s, helper.number, machine, asked))
        lendable = sum(not job.returned for job in owner.held)
        candidates.sort(key=lambda candidate: candidate[:2])
        return _Draft(jobs, lendable, machines, numbers, fill(machines, jobs), candidates)

    def _open_switches(self, world: "World", draft: _Draft) -> None:
        """Open switching helpers in the order of their first possible answer."""
        for candidate in draft.candidates:
            if candidate.machine.ready_s + candidate.machine.job_s > draft.filled.end_s:
                break
            filled = fill([*draft.machines, candidate.machine], draft.jobs)
            if filled.counts[-1] and self._gain(world, draft, candidate, filled) > 0:
                draft.filled = filled
                draft.machines.append(candidate.machine)
                draft.numbers.append(candidate.number)

    def _gain(self, world: "World", draft: _Draft, candidate: _Candidate, filled: Filled) -> float:
        """Return what opening the candidate saves, in job-seconds; its own requests' expected wait is the cost."""
        helper = world.nodes[candidate.number]
        switch_s, back_s, job_s = candidate.price.switch_s, candidate.price.back_s, candidate.machine.job_s
        sooner_s = draft.filled.end_s - filled.end_s
        if not self.rule.price_job_seconds:
            return 0.0 if world.idle_s(helper) < switch_s + back_s else sooner_s - back_s
        rate = _own_rate(world, helper)
        visit_s = min(switch_s + filled.counts[-1] * job_s + back_s, switch_s + back_s + 1 / rate)
        busy = 1 - math.exp(-rate * visit_s)
        saved_s = draft.filled.sum_s - filled.sum_s
        wear_s = self.rule.wear * (switch_s + back_s)
        if saved_s < wear_s or (sooner_s < back_s * busy and draft.lendable < _DEEP_ENOUGH):
            return 0.0
        own_wait_s = busy * (back_s + job_s / 2 + switch_s / 2) * (1 + rate * (back_s + job_s))
        return saved_s * math.exp(-rate * (switch_s + 0.5 * job_s)) - self.rule.own_weight * own_wait_s - wear_s

    def _granted(self, world: "World", owner: Node, draft: _Draft) -> dict[int, Lease]:
        leases = {}
        for number, jobs, machine in zip(draft.numbers[1:], draft.filled.counts[1:], draft.machines[1:], strict=True):
            if jobs <= 0:
                continue
            helper = world.nodes[number]
            most = self._slots_max(world, helper, machine.job_s, draft.machines[0].job_s)
            leases[number] = Lease(min(most, world.lent_to(owner, helper) + jobs))
        return leases

    def _slots_max(self, world: "World", helper: Node, job_s: float, owners_job_s: float) -> int:
        if self.rule.breaker and helper.barren:
            return 1
        slots = 1
        if self.rule.slots_cover_turnaround:
            slots += max(0, math.ceil(_turnaround_s(world) / job_s - self.rule.turnaround_slack))
        return max(slots, 2) if job_s <= owners_job_s and self.rule.two_if_faster else slots

    def _probe(self, world: "World", owner: Node, leases: dict[int, Lease], end_s: float) -> None:
        """Probe a helper that nobody measured yet, if its answer would come before the queue's end."""
        model = world.scenario.model_of(owner.number)
        for helper in world.helpers_of(owner):
            measured = world.estimates.samples(helper.number, model) >= world.scenario.min_samples
            if helper.number in leases or measured or self._price(world, owner, helper).refused:
                continue
            switch_s = 0.0 if has_model(helper, model) else world.estimates.load_time_s(helper.number, model)
            answer_s = world.remaining_s(helper) + switch_s + world.estimates.mean_service_s(helper.number, model)
            if world.idle_s(helper) >= probe_wait_s(helper, model, self.rule.probe_idle_s) and answer_s <= end_s:
                leases[helper.number] = Lease(1, probe=True)

    def _price(self, world: "World", owner: Node, helper: Node) -> Price:
        if self.rule.breaker and helper.barren >= 2:
            quarantine_s = min(_QUARANTINE_MAX_S, _QUARANTINE_S * 2 ** (helper.barren - 2))
            if world.now_s - helper.last_failure_s < quarantine_s:
                return Price("quarantined")
        return price(world, owner, helper)

    # -- the second slot, and the restore

    def keeps_second_slot(self, world: "World", owner: Node) -> bool:
        """Keep it while a leased helper would finish that request sooner, whether its slots are taken or not."""
        helpers = world.helpers_of(owner)
        if not helpers or not owner.held or owner.held[0].returned:
            return False
        job = owner.held[0]
        if self._waits_for_decision(owner, job) and any(at.alive and not at.has_own_work() for at in helpers):
            return True
        mine_s = world.remaining_s(owner) + world.estimates.service_s(owner.number, job)
        for number, lease in self._leases.get(owner.number, {}).items():
            helper = world.nodes[number]
            free = self.rule.hold == "slots_taken" and world.lent_to(owner, helper) < lease.slots
            if lease.probe or not helper.alive or free:
                continue
            if world.remaining_s(helper) + world.estimates.service_s(number, job) < mine_s:
                return True
        return False

    def _waits_for_decision(self, owner: Node, job: Job) -> bool:
        return self.rule.hold == "pending" and job.arrived_s > self._planned_s.get(owner.number, -1)

    def keeps_model(self, world: "World", helper: Node) -> bool:
        """Keep the borrowed model while its next visit, by its cost, is likelier than the next own request by its."""
        if not self.rule.keep_while_likely or not helper.visits_s or helper.displaced is None:
            return False
        assert helper.last_borrow_s is not None
        assert helper.loaded is not None
        quiet_s = world.now_s - helper.last_borrow_s
        visits = len(helper.visits_s) / (sum(helper.visits_s) + quiet_s + 1e-9)
        switch_s = world.estimates.load_time_s(helper.number, helper.loaded)
        back_s = world.estimates.load_time_s(helper.number, helper.displaced)
        return visits * switch_s > self.rule.own_weight * _own_rate(world, helper) * back_s


def _turnaround_s(world: "World") -> float:
    return world.scenario.control_s + 2 * world.scenario.hop_s


def _own_rate(world: "World", helper: Node) -> float:
    """Return the helper's own requests a second, with half a request of doubt."""
    if helper.last_arrival_s is None:
        return 1 / (10 * (world.idle_s(helper) + 60))
    since_s = world.now_s - helper.last_arrival_s
    return (len(helper.gaps_s) + 0.5) / (sum(helper.gaps_s) + since_s + 5)


def _only_the_first(leases: dict[int, Lease], draft: _Draft) -> dict[int, Lease]:
    def rank(number: int) -> tuple[bool, float]:
        machine = draft.machines[draft.numbers.index(number)] if number in draft.numbers else None
        return leases[number].probe, 1e9 if machine is None else machine.ready_s + machine.job_s

    best = min(leases, key=rank)
    return {best: leases[best]}

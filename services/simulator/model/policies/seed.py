"""The rule as it was first written down, in its three readings."""

from typing import TYPE_CHECKING, Literal

from services.simulator.model.parts import Node
from services.simulator.model.policies.leases import (
    Lease,
    ask_those_touched,
    has_model,
    price,
    probe_wait_s,
    spend,
)
from services.simulator.model.policy import Policy

if TYPE_CHECKING:
    from services.simulator.model.world import World

Reading = Literal["single", "probe", "multi"]


class Seed(Policy):
    """A lease goes where switch + way back + the first job cost less than the owner alone needs for everything.

    Readings: `single` is one lease for an owner and probes only when nothing was chosen; `probe` is one lease and probes at
    all that were outranked; `multi` is a lease for each helper that pays.
    """

    lending = True

    def __init__(self, name: str, reading: Reading, *, probe_idle_s: float = 5.0) -> None:
        self.name, self._reading, self._probe_idle_s = name, reading, probe_idle_s
        self._leases: dict[int, dict[int, Lease]] = {}

    def happened(self, world: "World", node: Node, other: Node | None = None) -> None:
        """Plan for those that it touches."""
        ask_those_touched(world, node, other, world.ask)

    def lease_slots(self, owner: Node) -> int:
        """Return the slots of all its leases."""
        return sum(lease.slots for lease in self._leases.get(owner.number, {}).values())

    def plan(self, world: "World", owner: Node) -> None:
        """Grant, probe, lend."""
        leases = self._leases[owner.number] = {}
        head = next((job for job in owner.held if not job.returned), None)
        if head is None:
            return
        estimates = world.estimates
        alone_s = world.remaining_s(owner) + sum(estimates.service_s(owner.number, job) for job in owner.held)
        good: list[tuple[float, int]] = []
        rest: list[Node] = []
        for helper in world.helpers_of(owner):
            asked = price(world, owner, helper)
            if asked.refused:
                continue
            switch_s = asked.switch_s + asked.back_s
            cost_s = asked.switch_s + asked.back_s + estimates.service_s(helper.number, head)
            recently_busy = switch_s > 0 and not has_model(helper, head.model) and world.idle_s(helper) < switch_s
            if recently_busy or cost_s >= alone_s:
                rest.append(helper)
            else:
                good.append((cost_s, helper.number))
        good.sort()
        taken = good if self._reading == "multi" else good[:1]
        for _, number in taken:
            as_fast = estimates.service_s(number, head) <= estimates.service_s(owner.number, head)
            leases[number] = Lease(2 if as_fast else 1)
        if self._reading != "single" or not taken:
            outranked = [world.nodes[number] for _, number in good[len(taken) :]]
            self._probe(world, owner, leases, rest + outranked)
        spend(world, owner, leases)

    def _probe(self, world: "World", owner: Node, leases: dict[int, Lease], helpers: list[Node]) -> None:
        model = world.scenario.model_of(owner.number)
        for helper in helpers:
            wait_s = probe_wait_s(helper, model, self._probe_idle_s)
            idle_s = world.idle_s(helper)
            if idle_s >= wait_s:
                leases[helper.number] = Lease(1, probe=True)
                if self._reading == "single":
                    return
            else:
                world.at(world.now_s + wait_s - idle_s + 1e-3, _ask_if_holding, world, owner)

    def keeps_second_slot(self, world: "World", owner: Node) -> bool:
        """Keep it while every lent slot of a faster helper is taken; never for a probe."""
        job = owner.held[0]
        mine_s = world.remaining_s(owner) + world.estimates.service_s(owner.number, job)
        for number, lease in self._leases.get(owner.number, {}).items():
            helper = world.nodes[number]
            if lease.probe or job.returned or not helper.alive or world.lent_to(owner, helper) < lease.slots:
                continue
            if world.remaining_s(helper) + world.estimates.service_s(number, job) < mine_s:
                return True
        return False


def _ask_if_holding(world: "World", owner: Node) -> None:
    if owner.held:
        world.ask(owner)

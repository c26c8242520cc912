"""What the policies that grant leases share: who may be asked, what a switch costs, and how leases are spent."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from services.simulator.model.lending import lend
from services.simulator.model.parts import Node

if TYPE_CHECKING:
    from services.simulator.model.world import World

_PROBE_SWITCH_FACTOR = 12


class Lease(NamedTuple):
    """How many requests an owner may have at a helper."""

    slots: int
    probe: bool = False


class Price(NamedTuple):
    """What it takes before a helper can begin, in seconds, or why it may not."""

    refused: str = ""
    switch_s: float = 0.0
    back_s: float = 0.0
    """To load back what the switch displaces."""


def price(world: "World", owner: Node, helper: Node) -> Price:
    """Return the price of `helper` for `owner`."""
    model = world.scenario.model_of(owner.number)
    if not helper.alive or helper.has_own_work():
        return Price("helper_not_accepting")
    if any(at is helper for other in world.nodes if other is not owner for _, at in other.out.values()):
        return Price("helper_claimed")
    if has_model(helper, model):
        return Price(switch_s=max(0, helper.until_s - world.now_s) if helper.loading == model else 0.0)
    back_s = 0.0 if helper.loaded is None else world.estimates.load_time_s(helper.number, helper.loaded)
    return Price(switch_s=world.estimates.load_time_s(helper.number, model), back_s=back_s)


def has_model(helper: Node, model: int) -> bool:
    """Return whether `helper` has `model` in, or is loading it."""
    return helper.coming_model() == model


def first_lendable(owner: Node) -> int | None:
    """Return the place of the first held request that was never handed back."""
    return next((place for place, job in enumerate(owner.held) if not job.returned), None)


def probe_wait_s(helper: Node, model: int, idle_s: float) -> float:
    """Return how long `helper` must have been idle before a probe."""
    return idle_s * (1 if has_model(helper, model) else _PROBE_SWITCH_FACTOR)


def spend(world: "World", owner: Node, leases: dict[int, Lease]) -> None:
    """Lend from the head of the queue until the leases are full or nothing may be lent."""
    for number, lease in leases.items():
        helper = world.nodes[number]
        while world.lent_to(owner, helper) < lease.slots:
            place = first_lendable(owner)
            if place is None:
                return
            lend(world, owner, helper, place)
            world.counts.probes += lease.probe


def ask_those_touched(world: "World", node: Node, other: Node | None, ask: Callable[[Node], None]) -> None:
    """Ask for a plan for `node`, and for every owner with a link to `other`, if they hold anything."""
    for owner in world.nodes:
        touched = owner is node or (other is not None and other.number in world.scenario.links.get(owner.number, ()))
        if owner.held and touched:
            ask(owner)

"""Work stealing: any idle linked node pulls the head of an owner's queue, whatever the load costs."""

from typing import TYPE_CHECKING

from services.simulator.model.lending import lend
from services.simulator.model.parts import Node
from services.simulator.model.policies.leases import first_lendable
from services.simulator.model.policy import Policy

if TYPE_CHECKING:
    from services.simulator.model.world import World


class Steal(Policy):
    """Late binding at its purest: nobody ever has a second request."""

    name = "steal"
    lending = True

    def happened(self, world: "World", _node: Node, _other: Node | None = None) -> None:
        """Plan for every owner that holds something."""
        for owner in world.nodes:
            if owner.held:
                world.ask(owner)

    def plan(self, world: "World", owner: Node) -> None:
        """Give each idle helper one request."""
        for helper in world.helpers_of(owner):
            place = first_lendable(owner)
            if place is not None and _is_idle(world, helper):
                lend(world, owner, helper, place)

    def keeps_second_slot(self, world: "World", owner: Node) -> bool:
        """Keep it wherever anybody could pull."""
        return bool(world.scenario.links.get(owner.number))


def _is_idle(world: "World", helper: Node) -> bool:
    return (
        helper.alive
        and not helper.has_own_work()
        and not helper.pipe
        and helper.running is None
        and helper.state == "idle"
        and not any(at is helper for owner in world.nodes for _, at in owner.out.values())
    )

"""The seam between the world and a policy: what a policy sees, and what it may do.

A policy sees the whole `World`: nodes, queues, what is lent, the estimates. There are two kinds. One *binds* each request
to a node when it comes (`lending` is False): it is asked `dispatch`. The other leaves requests held at their owner
(`lending` is True): it is told what `happened`, asks the world to `ask` for a plan, and in `plan` lends with
`services.simulator.model.lending.lend`. A whole other machinery, such as the product's own master and nodes, is no policy
but a `Driver` (services/simulator/drivers.py): it gets the same scenario and answers with the same measures.
"""

from typing import TYPE_CHECKING

from services.simulator.model.parts import Job, Node

if TYPE_CHECKING:
    from services.simulator.model.world import World


class Policy:
    """Does nothing of its own accord. A base class, since most policies want most of these left as they are."""

    name = ""
    lending = False

    def start(self, world: "World") -> None:
        """Prepare for a run; called once, before anything happens."""

    def dispatch(self, world: "World", job: Job) -> None:
        """Give `job` to a node's engine at once. Only asked of a policy that binds."""
        raise NotImplementedError

    def happened(self, world: "World", node: Node, other: Node | None = None) -> None:
        """Hear that something changed at `node`, and at `other` if a lent job ended there."""

    def plan(self, world: "World", owner: Node) -> None:
        """Decide for `owner`, after the control delay; lend what should be lent."""

    def keeps_second_slot(self, _world: "World", _owner: Node) -> bool:
        """Return whether `owner` should keep its next held job for a helper rather than queue it behind its own running one."""
        return False

    def keeps_model(self, _world: "World", _helper: Node) -> bool:
        """Return whether `helper` should leave the borrowed model in rather than restore its own now."""
        return False

    def lease_slots(self, _owner: Node) -> int:
        """Return how many requests `owner` may have out now, for the plots."""
        return 0

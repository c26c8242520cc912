"""Faults of nodes: a crash loses what the node has, a hang keeps it silent. Both end after a time."""

from typing import TYPE_CHECKING

from services.simulator.model import lending
from services.simulator.model.parts import Job, Node
from services.simulator.model.scenario import Fault

if TYPE_CHECKING:
    from services.simulator.model.world import World

_NOTICED_S = 0.1
_CLIENT_GIVES_UP_S = 60


def strike(world: "World", fault: Fault) -> None:
    """Let `fault` happen now."""
    node = world.nodes[fault.node]
    node.life += 1
    node.barren += 1
    node.last_failure_s = world.now_s
    lost = ([node.running] if node.running is not None else []) + list(node.pipe)
    node.running, node.state, node.loading, node.restoring = None, "idle", None, False
    node.pipe.clear()
    if fault.kind == "crash":
        node.alive, node.loaded, node.displaced = False, None, None
        for job in lost:
            _lost_in_crash(world, node, job)
    else:
        node.hung = True
        for job in lost:
            _lost_in_hang(world, node, job)
    world.at(world.now_s + fault.lasts_s, _recover, world, node)


def _lost_in_crash(world: "World", node: Node, job: Job) -> None:
    if job.ended_s is not None:
        return
    if world.policy.lending and job.owner != node.number:
        world.at(world.now_s + _NOTICED_S, lending.hand_back, world, job)
    elif world.policy.lending:
        node.held.appendleft(job)
    else:
        world.at(world.now_s + _NOTICED_S, world.policy.dispatch, world, job)


def _lost_in_hang(world: "World", node: Node, job: Job) -> None:
    # lent jobs stay out until their owner cuts them off: nobody tells it
    if world.policy.lending and job.owner == node.number:
        node.held.appendleft(job)
    elif not world.policy.lending:
        world.at(world.now_s + _CLIENT_GIVES_UP_S, _dispatch_again, world, job)


def _dispatch_again(world: "World", job: Job) -> None:
    if job.ended_s is None:
        world.policy.dispatch(world, job)


def _recover(world: "World", node: Node) -> None:
    node.alive, node.hung = True, False
    world.feed(node)
    world.kick(node)
    for owner in world.nodes:
        if owner.held:
            world.ask(owner)

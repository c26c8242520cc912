"""How lent work travels: lent, delivered, yielded to a helper's own work, handed back, cut off, and the restore after it."""

from typing import TYPE_CHECKING

from services.simulator.model.parts import Job, Node

if TYPE_CHECKING:
    from services.simulator.model.world import World

_BLACK_HOLE_S = 0.2


def lend(world: "World", owner: Node, helper: Node, place: int) -> None:
    """Send the held job at `place` of `owner`'s queue to `helper`."""
    job = owner.held[place]
    del owner.held[place]
    owner.out[job.number] = (job, helper)
    world.counts.lent += 1
    helper.restore_turn += 1
    model = job.model
    switch_s = 0.0 if helper.loaded == model else world.estimates.load_time_s(helper.number, model)
    _note_visit(world, job, helper)
    world.at(world.now_s + world.scenario.hop_s, _deliver, world, job, helper)
    limit_s = 3 * (switch_s + world.estimates.service_s(helper.number, job)) + 30
    world.at(world.now_s + limit_s, _cut_off, world, job, helper, job.tries)


def _note_visit(world: "World", job: Job, helper: Node) -> None:
    if helper.last_borrow_s is not None:
        quiet_s = world.now_s - helper.last_borrow_s
        others = any(at is helper for node in world.nodes for lent, at in node.out.values() if lent is not job)
        if quiet_s > world.scenario.restore_after_s and not others:
            helper.visits_s.append(quiet_s)
    helper.last_borrow_s = world.now_s


def _deliver(world: "World", job: Job, helper: Node) -> None:
    if not helper.alive or helper.has_own_work() or helper.restoring:
        hand_back(world, job)
    elif helper.number in world.scenario.black_holes:
        helper.barren += 1
        helper.last_failure_s = world.now_s
        world.at(world.now_s + _BLACK_HOLE_S, hand_back, world, job)
    else:
        helper.pipe.append(job)
        world.kick(helper)


def yield_to_own(world: "World", node: Node) -> None:
    """Hand back borrowed jobs that have not claimed the runtime, since own work came; the one waiting inside the engine stays."""
    node.restore_turn += 1
    if not node.alive:
        return
    next_model = node.pipe[0].model if node.pipe else node.loaded
    stays = 1 if node.loaded == next_model and node.state == "run" else 0
    for job in [job for job in node.pipe if job.owner != node.number][stays:]:
        node.pipe.remove(job)
        world.at(world.now_s + world.scenario.hop_s, hand_back, world, job)


def hand_back(world: "World", job: Job, *, cut: bool = False) -> None:
    """Put a lent job back at the head of its owner's queue, never to be lent again."""
    owner = world.nodes[job.owner]
    if job.ended_s is not None:
        return
    owner.out.pop(job.number, None)
    job.returned = True
    job.tries += 1
    if cut:
        world.counts.cut += 1
    else:
        world.counts.returned += 1
    owner.held.appendleft(job)
    world.feed(owner)
    world.kick(owner)
    world.policy.happened(world, owner)


def _cut_off(world: "World", job: Job, helper: Node, tries: int) -> None:
    if job.ended_s is not None or job.tries != tries or job.number not in world.nodes[job.owner].out:
        return
    if helper.running is job and not helper.hung:  # it has begun to answer
        return
    if job in helper.pipe:
        helper.pipe.remove(job)
    hand_back(world, job, cut=True)


def restore_later(world: "World", node: Node) -> None:
    """Look after the restore delay whether `node` may load back what lent work displaced."""
    node.restore_turn += 1
    _look_again(world, node, node.restore_turn)


def _look_again(world: "World", node: Node, turn: int) -> None:
    world.at(world.now_s + world.scenario.restore_after_s, _try_restore, world, node, turn)


def _try_restore(world: "World", node: Node, turn: int) -> None:
    if turn != node.restore_turn or not world.policy.lending or node.displaced is None or not node.alive:
        return
    borrowed = any(at is node for owner in world.nodes for _, at in owner.out.values())
    busy = borrowed or node.has_own_work() or node.state != "idle" or bool(node.pipe)
    if busy or world.policy.keeps_model(world, node):
        _look_again(world, node, turn)
        return
    node.restoring = True
    world.begin_load(node, node.displaced)

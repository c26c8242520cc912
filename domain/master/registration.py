"""A node's life: incarnations, registration, snapshots, which models are ready."""

from bisect import insort

from domain.events import ModelInfo, NodeSnapshot, OpenRequest, Registered
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.master import rooms, slots, traffic
from domain.master.queue import EngineJob, HeldJob, Queue
from domain.master.state import (
    ENGINE_MAX,
    INCARNATIONS_KEPT,
    OPEN_PER_NODE_MAX,
    OPEN_PER_QUEUE_MAX,
    QUEUES_PER_NODE_MAX,
    WORK_MAX,
    Node,
    Orphan,
    SnapshotPart,
    State,
    orphan_key,
    owner_key,
    split_key,
    touch,
    touch_lenders,
)


def open_incarnation(state: State, name: NodeId, node: Node, incarnation: Incarnation) -> None:
    """Begin a new incarnation: what the older one had open is orphaned, its slots are closed, its leases are planned again."""
    close_incarnation(node)
    for key in keys_of(state, name):
        _orphan_all(state, key)
    slots.began_anew(state, name)
    state.presuming.pop(name, None)
    _forget_hints(state, name)
    node.incarnation = incarnation
    node.pseq = 0
    node.incomplete = node.late = node.draining = False
    node.not_accepting = {}
    node.since_us, node.borrowed, node.rooms = state.now_us, {}, {}
    node.parts, node.part = [], 0
    if node.silent_us:
        node.silent_us = 0
        state.silent[name] = 0


def _forget_hints(state: State, name: NodeId) -> None:
    """Forget what a node was told of its links: a new process of it knows nothing of that."""
    for link in sorted(link for link, owner in state.hints.items() if owner == name):
        del state.hints[link]


def close_incarnation(node: Node) -> None:
    """Believe nothing more of the node until it registers anew."""
    if node.incarnation:
        node.closed.append(node.incarnation)
        del node.closed[:-INCARNATIONS_KEPT]
        node.incarnation = Incarnation("")


def keys_of(state: State, node: NodeId) -> list[str]:
    """Return the keys of a node's queues, sorted."""
    known = state.nodes.get(node)
    return [owner_key(node, model) for model in known.queues] if known is not None else []


def _orphan_all(state: State, key: str) -> None:
    queue = state.queues.pop(key)
    node, model = split_key(key)
    for request in sorted({*queue.held, *queue.engine, *queue.lent}):
        state.orphans[orphan_key(node, model, request)] = Orphan(node, model, request)
    state.queues[key] = Queue(arrival_us=queue.arrival_us, gaps_us=queue.gaps_us)
    state.planned_us.pop(key, None)
    state.probe_due.pop(key, None)
    touch(state, key, "health")


def registered(state: State, name: NodeId, fact: Registered) -> None:
    """Take what the node says of itself.

    The same process may say it again, where an engine that came up has another context window: it has idled and failed as
    before, and what its runtimes do goes on. What was measured stays too, unless another model bears the name now.
    """
    node = state.nodes[name]
    node.url = fact.url
    node.depth = fact.depth
    _forget_models(state, name, node, {model.id for model in fact.models})
    for model in fact.models:
        if model.id in node.models and _served_as(node.models[model.id]) != _served_as(model):
            state.fits.pop(owner_key(name, model.id), None)
    node.models = {model.id: model for model in fact.models}
    rooms.furnish(node)
    for key in [owner_key(name, model) for model in sorted(node.models)]:
        state.refit[key] = ""
        if key in state.breakers:
            state.failing[key] = ""
    touch_node(state, name, "health")


def _served_as(model: ModelInfo) -> tuple[str, str, str]:
    """Return what is served under a model's name, as far as its node states it: it is this that was measured."""
    return model.engine, model.local_id, model.hash


def _forget_models(state: State, name: NodeId, node: Node, served: set[ModelId]) -> None:
    """Forget what was measured of models that the node serves no more, and their queues unless something is in them."""
    for model in sorted({*node.models, *node.queues} - served):
        key = owner_key(name, model)
        touch(state, key, "health")
        touch_lenders(state, key, "health")
        _forget_model(state, node, key, model)


def _forget_model(state: State, node: Node, key: str, model: ModelId) -> None:
    state.fits.pop(key, None)
    state.refit[key] = ""
    if key in state.breakers:
        state.failing[key] = ""
    node.not_accepting.pop(model, None)
    node.borrowed.pop(model, None)
    queue = state.queues.get(key)
    if queue is not None and not (queue.held or queue.engine or queue.lent):
        del state.queues[key]
        node.queues.remove(model)


def forget(state: State, name: NodeId) -> None:
    """Forget a retired node of which nothing is open, but for the processes that it had: these are believed nothing more.

    Names come and go for as long as a cluster lives. One that is enrolled again is a node that nobody knows.
    """
    node = state.nodes[name]
    close_incarnation(node)
    slots.began_anew(state, name)
    _forget_hints(state, name)
    for model in sorted({*node.models, *node.queues}):
        _forget_model(state, node, owner_key(name, model), model)
    node.url, node.models, node.rooms = "", {}, {}
    node.parts, node.part = [], 0


def touch_node(state: State, name: NodeId, trigger: str) -> None:
    """Touch the owners at a node, and those that may lend to it."""
    for model in sorted(state.nodes[name].models):
        key = owner_key(name, model)
        touch(state, key, trigger)
        touch_lenders(state, key, trigger)


# ---- snapshots -------------------------------------------------------------------------------------------------------


def snapshot(state: State, name: NodeId, fact: NodeSnapshot) -> None:
    """Collect the parts; with the last one, replace all that is known of the node's queues and desks."""
    node = state.nodes[name]
    if fact.part == 1:
        node.parts, node.part = [], 0
    if fact.part != node.part + 1 or len(node.parts) > OPEN_PER_NODE_MAX:
        node.parts, node.part, node.late = [], 0, True  # not whole: what is known stays out of date
        return
    node.part = fact.part
    for owned in fact.queues:
        node.parts += [_part(owned.model, request, desk=False) for request in owned.requests]
    for desk in fact.desks:
        node.parts += [_part(desk.model, request, desk=True) for request in desk.requests]
    if fact.part < fact.parts:
        return
    parts, node.parts, node.part = node.parts, [], 0
    missed = node.late
    node.late = node.incomplete = False
    _replace_queues(state, name, [part for part in parts if not part.desk])
    _replace_slots(state, name, parts)
    rooms.restated(state, node, fact.runtimes, missed=missed)
    touch_node(state, name, "health")


def _part(model: ModelId, request: OpenRequest, *, desk: bool) -> SnapshotPart:
    return SnapshotPart(
        model,
        desk,
        request.request,
        request.state,
        request.work,
        request.lendable,
        request.age_us,
        request.link,
        request.owner,
        request.est_tokens,
        request.vision,
        request.helper,
    )


def _replace_queues(state: State, name: NodeId, parts: list[SnapshotPart]) -> None:
    node = state.nodes[name]
    known: dict[str, Queue] = {}
    for key in keys_of(state, name):
        known[key] = old = state.queues[key]
        state.queues[key] = Queue(arrival_us=old.arrival_us, gaps_us=old.gaps_us, freed_us=old.freed_us)
        state.planned_us.pop(key, None)
        state.probe_due.pop(key, None)
    over = {(sides[2]): key for key in sorted(state.uses) if (sides := slots.sides(key))[0] == name}
    for part in parts:
        if part.model not in node.models:
            continue
        key = owner_key(name, part.model)
        queue = state.queues.get(key)
        if queue is None:
            if len(node.queues) >= QUEUES_PER_NODE_MAX:
                continue
            queue = state.queues[key] = Queue()
            insort(node.queues, part.model)
        if part.request in queue.held or part.request in queue.engine or part.request in queue.lent:
            continue
        before = known[key].held.get(part.request) if key in known else None
        _place(state, queue, part, before, over)


def _place(state: State, queue: Queue, part: SnapshotPart, before: HeldJob | None, over: dict[LinkId, str]) -> None:
    """Put one open request of a snapshot where it says that it is; `before` is what was known of it while it was held."""
    work = min(part.work, WORK_MAX)
    if len(queue.held) + len(queue.engine) + len(queue.lent) >= OPEN_PER_QUEUE_MAX:
        return
    if part.state == "held":
        tokens, vision = part.tokens, part.vision
        if before is not None:  # a node of an older build does not say
            tokens, vision = tokens or before.tokens, vision or before.vision
        queue.hold(part.request, HeldJob(work, part.lendable, tokens, vision), state.now_us)
    elif part.state == "engine" and len(queue.engine) < ENGINE_MAX:
        queue.engine[part.request] = EngineJob(work, max(0, state.now_us - part.age_us))
    elif part.link is not None:
        queue.lent[part.request] = over.get(part.link, "")


def _replace_slots(state: State, name: NodeId, parts: list[SnapshotPart]) -> None:
    """Set the node's own side of every slot count to what it says it has."""
    as_owner: dict[tuple[LinkId, RequestId], SnapshotPart] = {}
    as_helper: dict[tuple[LinkId, RequestId], SnapshotPart] = {}
    for part in parts:
        if part.link is not None and part.desk:
            as_helper[part.link, part.request] = part
        elif part.link is not None:
            as_owner[part.link, part.request] = part
    for key in sorted(key for key in state.uses if name in slots.sides(key)[:2]):
        owner, helper, link = slots.sides(key)
        for request in sorted(state.uses[key]):
            if name == owner and (link, request) not in as_owner:
                slots.left_by_owner(state, key, request)
            if name == helper and (link, request) not in as_helper:
                slots.left_by_helper(state, key, request)
    _open_slots(state, name, as_owner, as_helper)


def _open_slots(
    state: State,
    name: NodeId,
    as_owner: dict[tuple[LinkId, RequestId], SnapshotPart],
    as_helper: dict[tuple[LinkId, RequestId], SnapshotPart],
) -> None:
    for (link, _), part in sorted(as_owner.items(), key=lambda item: item[0]):
        if part.helper:
            _lent_unheard(state, name, slots.use_key(link, name, part.helper), part)
    for (link, request), part in sorted(as_helper.items(), key=lambda item: item[0]):
        if part.owner is not None:
            key = slots.use_key(link, part.owner, name)
            if request not in state.uses.get(key, {}) and slots.accepted(state, key, request, name):
                traffic.of(state, key, name)
                traffic.changed(state, key)


def _lent_unheard(state: State, name: NodeId, key: str, part: SnapshotPart) -> None:
    """Count what a node has lent though its own word on that is lost: else nobody would ask whether its helper still works."""
    if slots.is_lent(state, key, part.request):
        return
    if slots.lent(state, key, part.request, part.work, name):
        went = traffic.of(state, key, name)
        if went is not None:
            went.owner_model = part.model
    traffic.changed(state, key)

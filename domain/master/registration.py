"""A node's life: incarnations, registration, snapshots, which models are ready."""

import msgspec

from domain.events import NodeSnapshot, OpenRequest, Registered
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.master import slots
from domain.master.state import (
    INCARNATIONS_KEPT,
    EngineJob,
    HeldJob,
    Node,
    Orphan,
    Queue,
    SnapshotPart,
    State,
    owner_key,
    split_key,
    touch,
)


def open_incarnation(state: State, name: NodeId, node: Node, incarnation: Incarnation) -> None:
    """Begin a new incarnation: what the older one had open is orphaned, its slots are closed, its leases are planned again."""
    if node.incarnation:
        node.closed.append(node.incarnation)
        del node.closed[:-INCARNATIONS_KEPT]
        for key in _keys_of(state, name):
            _orphan_all(state, key)
        slots.began_anew(state, name)
    node.incarnation = incarnation
    node.pseq = 0
    node.incomplete = node.late = node.draining = False
    node.not_accepting = {}
    node.parts = []
    if node.silent_us:
        node.silent_us = 0
        state.silent[name] = 0


def _keys_of(state: State, node: NodeId) -> list[str]:
    prefix = f"{node}/"
    return sorted(key for key in state.queues if key.startswith(prefix))


def _orphan_all(state: State, key: str) -> None:
    queue = state.queues.pop(key)
    node, model = split_key(key)
    for request in sorted({*queue.held, *queue.engine, *queue.lent}):
        state.orphans.append(Orphan(node, model, request))
    state.queues[key] = Queue(arrival_us=queue.arrival_us, gaps_us=queue.gaps_us)
    touch(state, key, "health")


def registered(state: State, name: NodeId, fact: Registered) -> None:
    """Take what the node says of itself."""
    node = state.nodes[name]
    node.url = fact.url
    node.depth = fact.depth
    node.models = {model.id: model for model in fact.models}
    touch_node(state, name, "health")


def set_ready(state: State, name: NodeId, model: ModelId, *, ready: bool) -> None:
    """Note that a model is in the engine, or is not."""
    node = state.nodes[name]
    info = node.models.get(model)
    if info is not None and info.ready != ready:
        node.models[model] = msgspec.structs.replace(info, ready=ready)
        touch_lenders(state, owner_key(name, model), "health")


def touch_lenders(state: State, helper_key: str, trigger: str) -> None:
    """Touch every owner that may lend to a helper's model."""
    for link in state.control.by_helper.get(helper_key, ()):
        added = state.control.links[link]
        touch(state, owner_key(added.owner, added.owner_model), trigger)


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
        node.parts = []
    for owned in fact.queues:
        node.parts += [_part(owned.model, request, desk=False) for request in owned.requests]
    for desk in fact.desks:
        node.parts += [_part(desk.model, request, desk=True) for request in desk.requests]
    if fact.part < fact.parts:
        return
    parts, node.parts = node.parts, []
    node.late = node.incomplete = False
    _replace_queues(state, name, [part for part in parts if not part.desk])
    _replace_slots(state, name, parts)
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
    )


def _replace_queues(state: State, name: NodeId, parts: list[SnapshotPart]) -> None:
    for key in _keys_of(state, name):
        old = state.queues[key]
        state.queues[key] = Queue(arrival_us=old.arrival_us, gaps_us=old.gaps_us)
    for part in parts:
        queue = state.queues.setdefault(owner_key(name, part.model), Queue())
        if part.state == "held":
            queue.held[part.request] = HeldJob(part.work, part.lendable, 0)
            queue.held_work += part.work
            queue.lendable += part.lendable
        elif part.state == "engine":
            queue.engine[part.request] = EngineJob(part.work, max(0, state.now_us - part.age_us))
        elif part.link is not None:
            queue.lent[part.request] = part.link


def _replace_slots(state: State, name: NodeId, parts: list[SnapshotPart]) -> None:
    """Set the node's own side of every slot count to what it says it has."""
    as_owner: dict[tuple[LinkId, RequestId], SnapshotPart] = {}
    as_helper: dict[tuple[LinkId, RequestId], SnapshotPart] = {}
    for part in parts:
        if part.link is not None:
            (as_helper if part.desk else as_owner)[part.link, part.request] = part
    for key in sorted(state.uses):
        owner, helper, link = key.split(">")
        for request in sorted(state.uses.get(key, {})):
            if name == owner and (LinkId(link), request) not in as_owner:
                slots.closed_by_owner(state, key, request)
            if name == helper and (LinkId(link), request) not in as_helper:
                slots.closed_by_helper(state, key, request)
    for (link, request), part in sorted(as_helper.items()):
        if part.owner is not None:
            key = slots.use_key(link, part.owner, name)
            if request not in state.uses.get(key, {}):
                slots.accepted(state, key, request)

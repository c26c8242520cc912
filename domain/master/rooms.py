"""What a node's runtimes hold: which model is in, which is being loaded, and what a run of borrowed work drove out.

Models of a node that name the same runtime share it, and one of them is in at a time; a model that names none has its own.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from domain.events import (
    Loaded,
    LoadFailed,
    LoadStarted,
    ModelInfo,
    RestoreCancelled,
    Restored,
    RuntimeState,
    Unloaded,
)
from domain.ids import ModelId, NodeId
from domain.master.queue import Queue
from domain.master.state import Node, Room, State, owner_key, touch, touch_lenders

NONE: Final = ModelId("")
BORROWED: Final = "borrowed"
RESTORE: Final = "restore"
_ALONE: Final = "/"
_KEEP_DISPLACED: Final = frozenset({BORROWED, "guardian"})
"""Loads after which what they drove out is loaded back."""


def room_name(info: ModelInfo) -> str:
    """Return the key of a model's runtime at its node."""
    return f"={info.runtime}" if info.runtime else f"{_ALONE}{info.id}"


def room_of(node: Node, model: ModelId) -> Room | None:
    """Return what is known of a model's runtime; None if it is not registered, or has its own and nothing happened there."""
    info = node.models.get(model)
    return node.rooms.get(room_name(info)) if info is not None else None


def models_of(node: Node, model: ModelId) -> list[ModelId]:
    """Return the models that share a model's runtime, itself among them."""
    room = room_of(node, model)
    return room.models if room is not None else [model]


def entered(node: Node, model: ModelId) -> Room | None:
    """Return the room of a model that the node registered, remembered from now on."""
    info = node.models.get(model)
    if info is None:
        return None
    name = room_name(info)
    room = node.rooms.get(name)
    if room is None:
        room = node.rooms[name] = Room(models=[model], resident=model if info.ready else NONE)
    return room


def furnish(node: Node) -> None:
    """Take the rooms as a registration states them: of models that share one the first that says so is in.

    What a process did before it registered again is remembered of runtimes whose models are the same.
    """
    before, node.rooms = node.rooms, {}
    for model in sorted(node.models):
        info = node.models[model]
        if info.runtime:
            room = node.rooms.setdefault(room_name(info), Room(models=[]))
            room.models.append(model)
            if info.ready and not room.resident:
                room.resident = model
    _go_on(node, before)
    for room in node.rooms.values():
        _tell_models(node, room)


def _go_on(node: Node, before: dict[str, Room]) -> None:
    """Let the runtimes that a process had before it registered again do what they did; what they hold is as it says now."""
    alone = {room_name(info): model for model, info in sorted(node.models.items()) if not info.runtime}
    for name, old in sorted(before.items()):
        room = node.rooms.get(name)
        if room is None and name in alone:
            room = node.rooms[name] = Room(models=[alone[name]])
            room.resident = alone[name] if node.models[alone[name]].ready else NONE
        if room is None or room.models != old.models:
            continue
        room.own_us, room.freed_us, room.began_us = old.own_us, old.freed_us, old.began_us
        room.displaced = old.displaced if old.displaced != room.resident else NONE
        if old.loading and not room.resident:
            room.loading, room.since_us, room.cause = old.loading, old.since_us, old.cause


def _tell_models(node: Node, room: Room) -> None:
    """Let each model's `ready` say what is in."""
    for model in room.models:
        info, ready = node.models[model], model == room.resident
        if info.ready != ready:
            node.models[model] = msgspec.structs.replace(info, ready=ready)


def _changed(state: State, name: NodeId, node: Node, room: Room) -> None:
    _tell_models(node, room)
    for model in room.models:
        key = owner_key(name, model)
        touch(state, key, "health")
        touch_lenders(state, key, "health")


# ---- facts -----------------------------------------------------------------------------------------------------------


def load_started(state: State, name: NodeId, fact: LoadStarted) -> None:
    """A load drives out what is in; one for the node itself, and nothing is owed any more."""
    node = state.nodes[name]
    room = entered(node, fact.model)
    if room is None:
        return
    if fact.cause not in _KEEP_DISPLACED and fact.cause != RESTORE:
        room.displaced = NONE
    elif fact.cause != RESTORE and not room.displaced and room.resident != fact.model:
        room.displaced = room.resident
    room.resident = NONE
    room.loading, room.since_us, room.cause = fact.model, state.now_us, fact.cause
    _changed(state, name, node, room)


def loaded(state: State, name: NodeId, fact: Loaded | Restored) -> None:
    """A model is in. What is owed after a load for others is what they drove out; after one for the node itself, nothing."""
    node = state.nodes[name]
    room = entered(node, fact.model)
    if room is None:
        return
    keeps = isinstance(fact, Loaded) and fact.cause in _KEEP_DISPLACED
    driven_out = (fact.displaced or room.displaced) if isinstance(fact, Loaded) and keeps else NONE
    room.displaced = driven_out if driven_out in room.models and driven_out != fact.model else NONE
    if not keeps:
        room.own_us = state.now_us
    room.resident, room.loading, room.since_us, room.cause = fact.model, NONE, 0, ""
    room.freed_us = state.now_us
    _changed(state, name, node, room)


def unloaded(state: State, name: NodeId, fact: Unloaded | LoadFailed) -> None:
    """A model is not in, whether it left or its load failed; the first to leave for others is what is loaded back after them."""
    node = state.nodes[name]
    room = entered(node, fact.model)
    if room is None:
        return
    if room.loading == fact.model:
        room.loading, room.since_us, room.cause = NONE, 0, ""
    if room.resident == fact.model:
        room.resident = NONE
    if isinstance(fact, Unloaded) and fact.cause in _KEEP_DISPLACED and not room.displaced:
        room.displaced = fact.model
    _changed(state, name, node, room)


def restore_cancelled(state: State, name: NodeId, fact: RestoreCancelled) -> None:
    """Nothing is loaded back: the node's own work decides from here on."""
    node = state.nodes[name]
    room = room_of(node, fact.model)
    if room is not None:
        room.displaced = NONE
        _changed(state, name, node, room)


def restated(state: State, node: Node, said: tuple[RuntimeState, ...], *, missed: bool) -> None:
    """Take what a snapshot says of the runtimes that models share.

    `missed`: facts were lost before it. It does not tell of a runtime that one model has alone: a load there whose end may be
    among them counts as done, or its helper would seem to load for ever.
    """
    if missed:
        _end_loads(node)
    for each in said:
        room = node.rooms.get(f"={each.runtime}")
        if room is None:
            continue
        room.resident = each.resident if each.resident in room.models else NONE
        room.loading = each.loading if each.loading in room.models else NONE
        room.displaced = each.displaced if each.displaced in room.models else NONE
        if room.loading:
            room.resident = NONE
            room.since_us = max(0, state.now_us - each.loading_us)
        else:
            room.since_us, room.cause = 0, ""
        _tell_models(node, room)


def _end_loads(node: Node) -> None:
    for name, alone in sorted(node.rooms.items()):
        if alone.loading and name.startswith(_ALONE):
            alone.resident, alone.loading, alone.since_us, alone.cause = alone.loading, NONE, 0, ""
            _tell_models(node, alone)


# ---- what the plan asks ----------------------------------------------------------------------------------------------


def own_work(queues: Iterable[Queue | None]) -> bool:
    """Tell whether a node holds or serves work of its own in any of these queues."""
    for queue in queues:  # noqa: SIM110  # asked for every candidate, and a generator costs more than the loop
        if queue is not None and (queue.held or queue.engine):
            return True
    return False


def idle_us(state: State, since_us: int, room: Room | None, queues: Iterable[Queue | None], *, busy: bool) -> int:
    """Return how long a node has done nothing of its own in a runtime; since its registration at `since_us` if it never did.

    `queues`: of the models that share it; None for one without. `busy`: it has work of its own there (`own_work`).
    """
    last_us = since_us
    if room is not None:
        if room.loading and room.cause != BORROWED:
            return 0
        last_us = max(last_us, room.own_us)
    if busy:
        return 0
    for queue in queues:
        if queue is not None:
            last_us = max(last_us, queue.arrival_us, queue.freed_us)
    return state.now_us - last_us


def goes_back_to(room: Room, model: ModelId) -> ModelId:
    """Return the model that has to be loaded again after a visit of `model`; empty if nothing is driven out."""
    driven_out = room.displaced or room.loading or room.resident
    return driven_out if driven_out != model else NONE

"""What follows from the state: health first, then orphans, then the plans of the first dirty owners in id order."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from domain.events import (
    BreakerChanged,
    Decision,
    LeaseChanged,
    LeaseChecked,
    LeaseCleared,
    LeaseGranted,
    LeaseStalled,
    LinkPriced,
    NodeHealthChanged,
    OwnerPlanned,
    RequestOrphaned,
    RequestPresumedLost,
)
from domain.events.codec import encode
from domain.ids import LinkId, NodeId, RequestId
from domain.master import breaker, health, hints, registration, rooms, slots, stall, timers, traffic
from domain.master.fold import unhold
from domain.master.lease_events import Head, of_owner
from domain.master.links import forget_ways
from domain.master.state import (
    HEALTHY,
    OFFLINE,
    UNHEALTHY,
    Lease,
    State,
    is_plannable,
    mark,
    orphan_key,
    owner_key,
    split_key,
    touch_lenders,
)

OWNERS_PER_COMMIT_MAX = 64
NODE_BYTES_MAX = 64 * 1024
"""Decisions about nodes and lost requests in one commit; the rest goes into the next."""
DECISION_BYTES_MAX = 96 * 1024
"""No owner is begun beyond this, so that with one owner's decisions and its other fields a commit stays under 256 KiB."""


class Decided(msgspec.Struct, frozen=True):
    """What one look at the state decided; its decisions are evolved, the commit is not finished yet."""

    decisions: list[Decision]
    n: int
    """Dirty owners covered."""
    said: bool
    """Nothing about nodes and links was left for the next commit."""


def decide(state: State, head: Head, n: int | None = None) -> Decided:
    """Decide; each decision is evolved before the next is taken.

    `n` is what a stored commit says; None takes as many owners as a commit holds. If nothing follows, the state is as it was.
    """
    merge_touched(state)
    dirty = dirty_owners(state)
    decisions: list[Decision] = []
    size = 0
    for decision in chain(_of_nodes(state), _of_links(state)):  # looks at the state again after each
        evolve(state, decision)
        decisions.append(decision)
        size += len(encode(decision))
        if size > NODE_BYTES_MAX:
            break
    said = size <= NODE_BYTES_MAX
    taken = 0
    for key in dirty[: OWNERS_PER_COMMIT_MAX if n is None else n]:
        if n is None and size > DECISION_BYTES_MAX:
            break
        for decision in list(of_owner(state, key, head, len(decisions))):
            evolve(state, decision)
            decisions.append(decision)
            size += len(encode(decision)) if n is None else 0
        taken += 1
    return Decided(decisions, taken, said)


def finish(state: State, *, said: bool = False) -> None:
    """End a commit: forget what is said and what needs no saying. `said`: see Decided; who only follows looks for himself."""
    state.touched = {key: state.touched[key] for key in dirty_owners(state)}
    state.silent = {name: us for name, us in state.silent.items() if _health(us) != state.nodes[name].health}
    for name in sorted(state.presuming):
        if next(_open_requests(state, name, state.presuming[name]), None) is None:
            del state.presuming[name]
    control = state.control
    for name in sorted(control.retiring):
        if next(_open_requests(state, name), None) is None:
            del control.retiring[name]
            if name in state.nodes:
                registration.forget(state, name)
                said = False  # its models had prices and breakers
    _finish_links(state, said=said)


def _finish_links(state: State, *, said: bool) -> None:
    """Forget what was said about links, and all about those that are gone for good."""
    control = state.control
    for link in sorted(control.gone):
        key = slots.key_of(control.gone[link])
        if link not in state.leases and key not in state.uses:
            del control.gone[link]
            forget_ways(control)
            state.hints.pop(link, None)
            traffic.forget(state, key)
            said = False  # its failures held a breaker
    traffic.sweep(state)
    if said or next(_of_links(state), None) is None:  # else some of it goes into the next commit
        state.refit, state.failing, control.added = {}, {}, {}
        timers.settle(state)


def merge_touched(state: State) -> None:
    """Mark the owners that control events concern (domain.master.fold on why not at once)."""
    control = state.control
    for key in sorted(control.touched):
        mark(state, key, control.touched[key])
    control.touched = {}
    if control.touched_all:
        for key in sorted(control.by_owner):
            mark(state, key, "link")
        control.touched_all = False
    timers.ring(state)


def dirty_owners(state: State) -> list[str]:
    """Return the owner queues that have something to decide, in id order."""
    return sorted(key for key in state.touched if is_plannable(state, key))


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _of_nodes(state: State) -> Iterator[Decision]:
    """Yield what follows about nodes and lost requests; whoever takes one evolves it before asking for the next."""
    for name in sorted(state.silent):
        silent_us = state.silent[name]
        if _health(silent_us) != state.nodes[name].health:
            yield NodeHealthChanged(node=name, state=_health(silent_us), reason=f"silent for {silent_us} us")
    for name in sorted(state.presuming):
        for key, request in _open_requests(state, name, state.presuming[name]):
            yield RequestPresumedLost(node=name, model=split_key(key)[1], request=request)
    for key in sorted(state.orphans):
        orphan = state.orphans[key]
        yield RequestOrphaned(node=orphan.node, model=orphan.model, request=orphan.request)
    for name in sorted(state.control.retiring):
        for key, request in _open_requests(state, name):
            yield RequestOrphaned(node=name, model=split_key(key)[1], request=request)


def _health(silent_us: int) -> str:
    if silent_us >= health.OFFLINE_AFTER_US:
        return OFFLINE
    return UNHEALTHY if silent_us else HEALTHY


def _open_requests(state: State, name: NodeId, after: Sequence[str] = ("", "")) -> Iterator[tuple[str, RequestId]]:
    """Yield a node's open requests in order of (queue, request), those after `after`."""
    said_key, said = after
    for key in registration.keys_of(state, name):
        if key < said_key:
            continue
        queue = state.queues[key]
        for request in sorted({*queue.held, *queue.engine, *queue.lent}):
            if key > said_key or request > said:
                yield key, request


# ---- links and helpers -----------------------------------------------------------------------------------------------


def _of_links(state: State) -> Iterator[Decision]:
    """Yield what follows about breakers, stalled helpers and hints; whoever takes one evolves it before asking for the next."""
    yield from breaker.changes(state)
    if state.woken_us:
        yield from stall.words(state, state.woken_us)
    yield from hints.words(state)


# ---- decisions into state --------------------------------------------------------------------------------------------


def evolve(state: State, decision: Decision) -> None:
    """Apply one decision. Never refuses: it has been taken. Safe mode changes nothing that a rule reads."""
    evolver = _EVOLVERS.get(type(decision))
    if evolver is not None:
        evolver(state, decision)


def _planned(state: State, decision: OwnerPlanned) -> None:
    key = owner_key(decision.owner, decision.model)
    if not decision.more:
        state.touched.pop(key, None)
    state.planned_us.pop(key, None)
    state.probe_due.pop(key, None)
    if decision.held:
        state.planned_us[key] = state.now_us
        waits_us = [verdict.probe_in_us for verdict in decision.verdicts if verdict.probe_in_us >= 0]
        if waits_us:
            state.probe_due[key] = state.now_us + min(waits_us)


def _leased(state: State, decision: LeaseGranted | LeaseChanged) -> None:
    key = owner_key(decision.owner, decision.owner_model)
    state.leases[decision.link] = Lease(decision, state.now_us)
    state.leased[key] = sorted({*state.leased.get(key, ()), decision.link})


def _cleared(state: State, decision: LeaseCleared) -> None:
    _drop_lease(state, decision.link, owner_key(decision.owner, decision.owner_model))
    # what is free now may be what another owner was refused, for this model or for another one of its runtime
    node = state.nodes.get(decision.helper)
    for model in rooms.models_of(node, decision.helper_model) if node is not None else [decision.helper_model]:
        touch_lenders(state, owner_key(decision.helper, model), "slots_freed", but=decision.link)


def _presumed_lost(state: State, decision: RequestPresumedLost) -> None:
    state.presuming[decision.node] = [owner_key(decision.node, decision.model), decision.request]


def _health_changed(state: State, decision: NodeHealthChanged) -> None:
    state.nodes[decision.node].health = decision.state
    if decision.state == OFFLINE:
        state.presuming[decision.node] = ["", ""]
    else:
        state.presuming.pop(decision.node, None)


def _drop_lease(state: State, link: LinkId, key: str) -> None:
    state.leases.pop(link, None)
    left = [other for other in state.leased.get(key, ()) if other != link]
    if left:
        state.leased[key] = left
    else:
        state.leased.pop(key, None)


def _orphaned(state: State, decision: RequestOrphaned) -> None:
    if state.orphans.pop(orphan_key(decision.node, decision.model, decision.request), None) is not None:
        return  # it was open in an older incarnation; what the living one has open is another matter
    key = owner_key(decision.node, decision.model)
    queue = state.queues.get(key)
    if queue is not None:
        unhold(state, key, queue, decision.request)
        queue.engine.pop(decision.request, None)
        over = queue.lent.pop(decision.request, None)
        if over:
            slots.left_by_owner(state, over, decision.request)


_EVOLVERS: Final[dict[type[Decision], Callable[[State, Any], None]]] = {
    OwnerPlanned: _planned,
    LeaseGranted: _leased,
    LeaseChanged: _leased,
    LeaseCleared: _cleared,
    LinkPriced: hints.evolve,
    LeaseChecked: stall.evolve,
    LeaseStalled: stall.evolve,
    BreakerChanged: breaker.evolve,
    NodeHealthChanged: _health_changed,
    RequestPresumedLost: _presumed_lost,
    RequestOrphaned: _orphaned,
}

__all__ = [
    "DECISION_BYTES_MAX",
    "NODE_BYTES_MAX",
    "OWNERS_PER_COMMIT_MAX",
    "Decided",
    "Head",
    "decide",
    "dirty_owners",
    "evolve",
    "finish",
    "merge_touched",
]

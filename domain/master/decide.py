"""What follows from the state: health first, then orphans, then the plans of the first dirty owners in id order."""

from collections.abc import Iterator, Sequence

import msgspec

from domain.events import (
    Decision,
    LeaseChanged,
    LeaseCleared,
    LeaseGranted,
    NodeHealthChanged,
    OwnerPlanned,
    RequestOrphaned,
    RequestPresumedLost,
)
from domain.events.codec import encode
from domain.events.envelope import Basis
from domain.ids import Generation, LinkId, NodeId, RequestId, lease_id
from domain.master import health, reasons, registration, slots
from domain.master.fold import unhold
from domain.master.planner import Candidate, Plan, plan
from domain.master.registration import close_incarnation
from domain.master.state import (
    HEALTHY,
    LEASE_TTL_US,
    OFFLINE,
    UNHEALTHY,
    Lease,
    State,
    is_plannable,
    mark,
    orphan_key,
    owner_key,
    split_key,
)

OWNERS_PER_COMMIT_MAX = 64
NODE_BYTES_MAX = 64 * 1024
"""Decisions about nodes and lost requests in one commit; the rest goes into the next."""
DECISION_BYTES_MAX = 96 * 1024
"""No owner is begun beyond this, so that with one owner's decisions and its other fields a commit stays under 256 KiB."""
LEASE_EVENTS_PER_PLAN_MAX = 24
"""Lease events of one plan; an owner with more to say is planned again in the next commit."""


class Head(msgspec.Struct, frozen=True):
    """The commit that the decisions will stand in: it names the leases."""

    generation: Generation
    version: int


class Decided(msgspec.Struct, frozen=True):
    """What one look at the state decided; its decisions are evolved, the commit is not finished yet."""

    decisions: list[Decision]
    n: int
    """Dirty owners covered."""


def decide(state: State, head: Head, n: int | None = None) -> Decided:
    """Decide; each decision is evolved before the next is taken.

    `n` is what a stored commit says; None takes as many owners as a commit holds. If nothing follows, the state is as it was.
    """
    merge_touched(state)
    dirty = dirty_owners(state)
    decisions: list[Decision] = []
    size = 0
    for decision in _of_nodes(state):  # looks at the state again after each
        evolve(state, decision)
        decisions.append(decision)
        size += len(encode(decision))
        if size > NODE_BYTES_MAX:
            break
    taken = 0
    for key in dirty[: OWNERS_PER_COMMIT_MAX if n is None else n]:
        if n is None and size > DECISION_BYTES_MAX:
            break
        for decision in list(_of_owner(state, key, head, len(decisions))):
            evolve(state, decision)
            decisions.append(decision)
            size += len(encode(decision)) if n is None else 0
        taken += 1
    return Decided(decisions, taken)


def finish(state: State) -> None:
    """End a commit: forget what is said and what needs no saying."""
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
                close_incarnation(state.nodes[name])
    for link in sorted(control.gone):
        if link not in state.leases and slots.key_of(control.gone[link]) not in state.uses:
            del control.gone[link]


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


# ---- owners ----------------------------------------------------------------------------------------------------------


def _of_owner(state: State, key: str, head: Head, index: int) -> Iterator[Decision]:
    """Yield the owner's plan, then the lease events that make its leases what the plan says."""
    planned = plan(state, key, state.touched[key])
    events = list(_lease_events(state, key, planned, head, index + 1))
    more = len(events) > LEASE_EVENTS_PER_PLAN_MAX
    yield msgspec.structs.replace(planned.row, more=True) if more else planned.row
    yield from events[:LEASE_EVENTS_PER_PLAN_MAX]


def _lease_events(state: State, key: str, planned: Plan, head: Head, index: int) -> Iterator[Decision]:
    """Yield what ends leases first, then what gives them, each in order of links."""
    links = sorted({*planned.grants, *state.leased.get(key, ())}, key=lambda link: (link in planned.grants, link))
    for link in links:
        candidate = planned.grants.get(link)
        lease = state.leases.get(link)
        decision: Decision | None
        if candidate is None:
            decision = _clear(state, lease, planned.refusals.get(link, reasons.LINK_REMOVED)) if lease else None
        else:
            decision = _grant(state, candidate, lease, head, index)
        if decision is not None:
            index += 1
            yield decision


def _clear(state: State, lease: Lease, reason: str) -> LeaseCleared | None:
    """Return the event that ends the lease; None while it lives and the last of the backlog is out under it.

    What was just lent is still on its way, and a helper that has heard of the end turns it away.
    """
    event = lease.event
    over = slots.use_key(event.link, event.owner, event.helper)
    if reason == reasons.NOTHING_LENDABLE and health.is_live(state, lease) and slots.count_open(state, over):
        return None
    fields = {name: getattr(lease.event, name) for name in LeaseCleared.__struct_fields__}
    return LeaseCleared(**{**fields, "slots": 0, "reason": reason, "basis": _basis(state, lease.event.owner)})


def _basis(state: State, owner: NodeId) -> Basis:
    node = state.nodes[owner]
    return Basis(owner, node.incarnation, node.pseq)


def _grant(
    state: State, candidate: Candidate, lease: Lease | None, head: Head, index: int
) -> LeaseGranted | LeaseChanged | None:
    """Return the event that gives the link its slots; None while the live lease says so already and is young."""
    ttl_us = state.control.settings.get("cluster.offload_lease_ttl", LEASE_TTL_US)
    if lease is not None and lease.event.slots == candidate.slots and state.now_us - lease.granted_us < ttl_us // 3:
        return None
    added = candidate.added
    kind: type[LeaseGranted | LeaseChanged] = LeaseGranted if lease is None else LeaseChanged
    return kind(
        link=added.link,
        owner=added.owner,
        owner_model=added.owner_model,
        helper=added.helper,
        helper_model=added.helper_model,
        helper_url=state.nodes[added.helper].url,
        lease=lease_id(head.generation, head.version, index) if lease is None else lease.event.lease,
        slots=candidate.slots,
        ttl_us=ttl_us,
        basis=_basis(state, added.owner),
        switch_us=candidate.switch_us,
        job_us=candidate.job_us,
        source=candidate.source,
        gain_us=candidate.gain_us,
        reason="pays",
    )


# ---- decisions into state --------------------------------------------------------------------------------------------


def evolve(state: State, decision: Decision) -> None:
    """Apply one decision. Never refuses: it has been taken."""
    match decision:
        case OwnerPlanned():
            key = owner_key(decision.owner, decision.model)
            if not decision.more:
                state.touched.pop(key, None)
            if decision.held:
                state.planned_us[key] = state.now_us
            else:
                state.planned_us.pop(key, None)
        case LeaseGranted() | LeaseChanged():
            key = owner_key(decision.owner, decision.owner_model)
            state.leases[decision.link] = Lease(decision, state.now_us)
            state.leased[key] = sorted({*state.leased.get(key, ()), decision.link})
        case LeaseCleared():
            _drop_lease(state, decision.link, owner_key(decision.owner, decision.owner_model))
            # what is free now may be what another owner was refused
            helper_key = owner_key(decision.helper, decision.helper_model)
            registration.touch_lenders(state, helper_key, "slots_freed", but=decision.link)
        case NodeHealthChanged():
            _health_changed(state, decision)
        case RequestPresumedLost(node=name, request=request):
            state.presuming[name] = [owner_key(name, decision.model), request]
        case RequestOrphaned():
            _orphaned(state, decision)
        case _:
            pass  # safe mode changes nothing that a rule reads


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

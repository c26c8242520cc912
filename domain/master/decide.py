"""What follows from the state: health first, then orphans, then the plans of the first dirty owners in id order."""

from collections.abc import Iterator
from itertools import islice

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
from domain.master import health, reasons, slots
from domain.master.fold import unhold
from domain.master.planner import Candidate, Plan, plan
from domain.master.registration import touch_lenders
from domain.master.state import (
    HEALTHY,
    LEASE_TTL_US,
    OFFLINE,
    UNHEALTHY,
    Lease,
    State,
    mark,
    owner_key,
    split_key,
)

OWNERS_PER_COMMIT_MAX = 64
DECISION_BYTES_MAX = 160 * 1024
"""The decisions of one commit stay under this, so that with its other fields the commit stays under 256 KiB."""
ORPHANS_PER_COMMIT_MAX = 256


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
    for decision in list(_of_nodes(state)):
        evolve(state, decision)
        decisions.append(decision)
        size += len(encode(decision)) if n is None else 0
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
    """End a commit: who has nothing to decide is clean, and every node's health has been looked at."""
    state.touched = {key: state.touched[key] for key in dirty_owners(state)}
    state.silent = {}


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
    return sorted(key for key in state.touched if _plannable(state, key))


def _plannable(state: State, key: str) -> bool:
    queue = state.queues.get(key)
    return key in state.leased or (key in state.control.by_owner and queue is not None and bool(queue.held))


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _of_nodes(state: State) -> Iterator[Decision]:
    for name in sorted(state.silent):
        node = state.nodes[name]
        health_now = _health(node.silent_us)
        if health_now != node.health:
            yield NodeHealthChanged(node=name, state=health_now, reason=f"silent for {node.silent_us} us")
            if health_now == OFFLINE:
                yield from _presume_lost(state, name)
    for orphan in state.orphans[:ORPHANS_PER_COMMIT_MAX]:
        yield RequestOrphaned(node=orphan.node, model=orphan.model, request=orphan.request)
    for name in sorted(name for name, enrolled in state.control.roster.items() if enrolled.retired):
        for key, request in islice(_open_requests(state, name), ORPHANS_PER_COMMIT_MAX):
            yield RequestOrphaned(node=name, model=split_key(key)[1], request=request)


def _health(silent_us: int) -> str:
    if silent_us >= health.OFFLINE_AFTER_US:
        return OFFLINE
    return UNHEALTHY if silent_us else HEALTHY


def _open_requests(state: State, name: NodeId) -> Iterator[tuple[str, RequestId]]:
    prefix = f"{name}/"
    for key in sorted(key for key in state.queues if key.startswith(prefix)):
        queue = state.queues[key]
        for request in sorted({*queue.held, *queue.engine, *queue.lent}):
            yield key, request


def _presume_lost(state: State, name: NodeId) -> Iterator[Decision]:
    for key, request in islice(_open_requests(state, name), ORPHANS_PER_COMMIT_MAX):
        yield RequestPresumedLost(node=name, model=split_key(key)[1], request=request)


# ---- owners ----------------------------------------------------------------------------------------------------------


def _of_owner(state: State, key: str, head: Head, index: int) -> Iterator[Decision]:
    """Yield the owner's plan, then the lease events that make its leases what the plan says."""
    planned = plan(state, key, state.touched[key])
    events = [planned.row, *_lease_events(state, key, planned, head, index + 1)]
    yield from events


def _lease_events(state: State, key: str, planned: Plan, head: Head, index: int) -> Iterator[Decision]:
    links = sorted({*planned.grants, *state.leased.get(key, ())})
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
    """Return the event that ends the lease; None while the last of the backlog is out under it.

    What was just lent is still on its way, and a helper that has heard of the end turns it away.
    """
    event = lease.event
    if reason == reasons.NOTHING_LENDABLE and slots.count_open(
        state, slots.use_key(event.link, event.owner, event.helper)
    ):
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
            touch_lenders(state, owner_key(decision.helper, decision.helper_model), "slots_freed")
        case NodeHealthChanged(node=name, state=now):
            state.nodes[name].health = now
        case RequestOrphaned():
            _orphaned(state, decision)
        case _:
            pass  # presumed lost and safe mode change nothing that a rule reads


def _drop_lease(state: State, link: LinkId, key: str) -> None:
    state.leases.pop(link, None)
    left = [other for other in state.leased.get(key, ()) if other != link]
    if left:
        state.leased[key] = left
    else:
        state.leased.pop(key, None)


def _orphaned(state: State, decision: RequestOrphaned) -> None:
    state.orphans = [orphan for orphan in state.orphans if orphan.request != decision.request]
    queue = state.queues.get(owner_key(decision.node, decision.model))
    if queue is not None:
        unhold(queue, decision.request)
        queue.engine.pop(decision.request, None)
        queue.lent.pop(decision.request, None)

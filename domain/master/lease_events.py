"""An owner's plan as decisions: its row, then what makes its leases as the plan says."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from domain.events import Decision, LeaseChanged, LeaseCleared, LeaseGranted
from domain.events.envelope import Basis
from domain.ids import Generation, NodeId, lease_id
from domain.master import leases, reasons, slots
from domain.master.candidates import Candidate
from domain.master.control import setting
from domain.master.planner import Plan, plan
from domain.master.state import Lease, State

LEASE_EVENTS_PER_PLAN_MAX: Final = 24
"""Lease events of one plan; an owner with more to say is planned again in the next commit."""


class Head(msgspec.Struct, frozen=True):
    """The commit that the decisions will stand in: it names the leases."""

    generation: Generation
    version: int


def of_owner(state: State, key: str, head: Head, index: int) -> Iterator[Decision]:
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
            decision = _end(state, lease, planned.refusals.get(link)) if lease is not None else None
        else:
            decision = _grant(state, planned, candidate, lease, head, index)
        if decision is not None:
            index += 1
            yield decision


def _end(state: State, lease: Lease, refused: Candidate | None) -> LeaseChanged | LeaseCleared | None:
    """Return the event that ends the lease; or narrows it to what is out, or None, while some of that is on its way.

    A helper that has heard of the end turns away what comes after, and that may never be lent again. So a lease that ends for
    want of lendable work lives until what was lent under it is home, and one that pays no more until the helper has it: under a
    narrowed one, whatever comes home is followed by another. What lives on follows the helper, as any lease does.
    """
    event = lease.event
    reason = refused.code if refused is not None else reasons.LINK_REMOVED
    kept = _slots_kept(state, lease, reason) if refused is not None else 0
    last: dict[str, Any] = {"slots": kept, "reason": reason, "basis": _basis(state, event.owner)}
    if refused is None or not kept:
        return LeaseCleared(**{**_fields(lease), **last})
    url = state.nodes[event.helper].url
    if (event.slots, event.helper_url, event.context, event.vision) == (kept, url, refused.window, refused.sees):
        return None
    return LeaseChanged(
        **{**_fields(lease), **last, "helper_url": url, "context": refused.window, "vision": refused.sees}
    )


def _slots_kept(state: State, lease: Lease, reason: str) -> int:
    """Return how many slots a lease keeps for now that is refused for this reason; 0 if it is over."""
    event = lease.event
    over = slots.use_key(event.link, event.owner, event.helper)
    out = slots.count_open(state, over)
    if not out or not leases.is_live(state, lease):
        return 0
    if reason == reasons.NOTHING_LENDABLE:
        return event.slots
    return min(out, event.slots) if reason in reasons.PRICED_OUT and slots.is_on_its_way(state, over) else 0


def _fields(lease: Lease) -> dict[str, Any]:
    return {name: getattr(lease.event, name) for name in LeaseCleared.__struct_fields__}


def _basis(state: State, owner: NodeId) -> Basis:
    node = state.nodes[owner]
    return Basis(owner, node.incarnation, node.pseq)


def _says_so(lease: Lease, candidate: Candidate, url: str, ttl_us: int) -> bool:
    """Tell whether the lease says what its owner acts on: how much, for how long, where to, and which requests fit there.

    Times and gains change with every plan and wait; a helper that has registered anew does not.
    """
    event = lease.event
    said = (event.slots, event.probe, event.ttl_us, event.helper_url, event.context, event.vision)
    return said == (candidate.slots, candidate.probe, ttl_us, url, candidate.window, candidate.sees)


def _grant(
    state: State, planned: Plan, candidate: Candidate, lease: Lease | None, head: Head, index: int
) -> LeaseGranted | LeaseChanged | None:
    """Return the event that gives the link its slots; None while the live lease says so already and is young."""
    ttl_us = setting(state.control, "offload_lease_ttl")
    added = candidate.way.added
    url = state.nodes[added.helper].url
    is_young = lease is not None and state.now_us - lease.granted_us < ttl_us // 3
    if lease is not None and is_young and _says_so(lease, candidate, url, ttl_us):
        return None
    kind: type[LeaseGranted | LeaseChanged] = LeaseGranted if lease is None else LeaseChanged
    return kind(
        link=added.link,
        owner=added.owner,
        owner_model=added.owner_model,
        helper=added.helper,
        helper_model=added.helper_model,
        helper_url=url,
        lease=lease_id(head.generation, head.version, index) if lease is None else lease.event.lease,
        slots=candidate.slots,
        ttl_us=ttl_us,
        basis=_basis(state, added.owner),
        switch_us=candidate.switch_us,
        job_us=candidate.job_us,
        source=candidate.source,
        gain_us=candidate.gain_us,
        reason=reasons.PROBE if candidate.probe else reasons.PAYS,
        probe=candidate.probe,
        owner_job_us=planned.owner_job_us,
        work=planned.work,
        ready_us=candidate.ready_us,
        context=candidate.window,
        vision=candidate.sees,
    )

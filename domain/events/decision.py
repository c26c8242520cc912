"""What the master derives from facts. Decisions are the body of a commit; all but plans are also published on the feed."""

import msgspec

from domain.events.base import EventBody
from domain.events.envelope import Basis
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId


class _Lease(EventBody, frozen=True, kw_only=True):
    """The whole state of a link's lease, so that the newest event alone is enough."""

    link: LinkId
    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId
    helper_url: str
    lease: LeaseId
    slots: int
    """Requests of this owner that may be at this helper at once; 0 when cleared."""
    ttl_us: int
    """Lifetime from the basis' send time on the owner's monotonic clock."""
    basis: Basis
    """The newest fact of the owner that the decision had folded."""
    probe: bool = False
    switch_us: int = 0
    """Predicted model switch at the helper before the first job."""
    job_us: int = 0
    """Predicted service time of one job at the helper."""
    source: str = ""
    """Where job_us comes from: helper (own fit) or owner_fallback."""
    gain_us: int = 0
    """Job-microseconds of waiting that the lease saves (notes on the price: docs/reference/reasons)."""
    reason: str = ""


class LeaseGranted(_Lease, frozen=True, kw_only=True, tag="lease.granted"):
    """A new lease."""


class LeaseChanged(_Lease, frozen=True, kw_only=True, tag="lease.changed"):
    """The same lease with new slots, or renewed with a newer basis."""


class LeaseCleared(_Lease, frozen=True, kw_only=True, tag="lease.cleared"):
    """The lease is over: lend nothing more under it. Requests already lent stay out."""


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What the plan found for one candidate helper. Compact, since it stands in each commit: code and numbers."""

    helper: NodeId
    link: LinkId
    outcome: str
    """granted, probe or skipped."""
    code: str
    """Why, from domain.master.reasons; empty for a plain grant."""
    slots: int = 0
    first_answer_us: int = 0
    """Until the helper would hand back a first job, switch included."""
    job_us: int = 0
    switch_us: int = 0
    back_us: int = 0
    """Loading the displaced model again."""
    gain_us: int = 0
    idle_us: int = -1
    """Since the helper's own last work; -1 if unknown."""
    source: str = ""
    out: int = 0
    """Requests of this owner at the helper now."""
    quota: int = 0
    """How many of the held requests the earliest completion slots give to this helper."""


class OwnerPlanned(EventBody, frozen=True, kw_only=True, tag="plan.planned"):
    """One owner's plan: a verdict for each candidate, the leases that follow stand after it in the commit."""

    owner: NodeId
    model: ModelId
    trigger: str
    """enqueued, completed, borrowed_completed, drained, slots_freed, probe_due, tick, link or health."""
    held: int
    lendable: int
    in_engine: int
    out: int
    drain_us: int
    """What the owner alone needs for all it has; -1 if unpriced."""
    lent_drain_us: int = -1
    """The same with the leases of this plan; -1 if none."""
    owner_job_us: int = -1
    verdicts: tuple[Verdict, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()
    """Candidates beyond the first 16: (code, how many), by code."""
    more: bool = False
    """More lease events follow from this plan than one commit may hold: the owner is planned again in the next one."""


class NodeHealthChanged(EventBody, frozen=True, kw_only=True, tag="health.changed"):
    """A node's health: healthy, stale, unhealthy, offline or recovered."""

    node: NodeId
    state: str
    reason: str


class RequestPresumedLost(EventBody, frozen=True, kw_only=True, tag="request.presumed_lost"):
    """The node that owns this request is silent; it may still come back with it."""

    node: NodeId
    model: ModelId
    request: RequestId


class RequestOrphaned(EventBody, frozen=True, kw_only=True, tag="request.orphaned"):
    """The owner's process ended with this request open. Terminal."""

    node: NodeId
    model: ModelId
    request: RequestId


class SafeModeEntered(EventBody, frozen=True, kw_only=True, tag="safe_mode.entered"):
    """No leases from here on: stored history is in doubt."""

    reason: str


class SafeModeLeft(EventBody, frozen=True, kw_only=True, tag="safe_mode.left"):
    """An operator began a new generation after looking."""

    reason: str
    old_generation: str
    old_version: int
    old_digest: str


Decision = (
    OwnerPlanned
    | LeaseGranted
    | LeaseChanged
    | LeaseCleared
    | NodeHealthChanged
    | RequestPresumedLost
    | RequestOrphaned
    | SafeModeEntered
    | SafeModeLeft
)
"""Every decision."""
LeaseEvent = LeaseGranted | LeaseChanged | LeaseCleared
"""The decisions that nodes act on."""

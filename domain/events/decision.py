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
    owner_job_us: int = 0
    """Predicted service time of the same job at the owner; 0 if unpriced."""
    work: int = 0
    """The mean work that job_us and owner_job_us are for, in micro-units; 0 if unpriced."""
    ready_us: int = 0
    """Predicted time from this decision until the helper could begin a next job, switch included."""
    context: int = 0
    """The helper's context window in tokens; 0 if not stated."""
    vision: bool = False
    """The helper sees images."""


class LeaseGranted(_Lease, frozen=True, kw_only=True, tag="lease.granted"):
    """A new lease."""


class LeaseChanged(_Lease, frozen=True, kw_only=True, tag="lease.changed"):
    """The same lease with new slots, or renewed with a newer basis."""


class LeaseCleared(_Lease, frozen=True, kw_only=True, tag="lease.cleared"):
    """The lease is over: lend nothing more under it. Requests already lent stay out."""


class LinkPriced(EventBody, frozen=True, kw_only=True, tag="lease.priced"):
    """What is measured of a link now lets its owner wait for a decision, or no longer does (hold for a faster helper)."""

    link: LinkId
    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId
    faster: bool
    """Both are measured, and the helper needs less time for the same work."""
    job_us: int = 0
    owner_job_us: int = 0
    work: int = 0


class LeaseChecked(EventBody, frozen=True, kw_only=True, tag="lease.checked"):
    """Nothing has changed for long in what is lent over a link: the helper is asked what it still runs (`still_running`)."""

    link: LinkId
    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId
    quiet_us: int


class LeaseStalled(EventBody, frozen=True, kw_only=True, tag="lease.stalled"):
    """The helper did not say that it works: its owner takes back, all at once, what it lent over the link."""

    link: LinkId
    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId
    quiet_us: int


class BreakerChanged(EventBody, frozen=True, kw_only=True, tag="breaker.changed"):
    """A helper's model failed lent requests one after another, or serves them again."""

    helper: NodeId
    model: ModelId
    state: str
    """opened, half_open or closed."""
    failures: int
    """Without a completion between."""
    quarantine_us: int = 0
    """While it is open nothing is leased there, probes included."""


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    ready_us: int = 0
    """Until the helper could begin the first job, switch included."""
    samples: int = 0
    """Measured requests that its own fit has."""
    probe_in_us: int = -1
    """A probe is held back only because the helper has not idled long enough: how long yet; -1 if it is not."""


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
    public: str = ""
    """nkey public key of whoever began it: the operator's, or the master's after facts that a relaxed bus has lost."""
    signature: str = ""
    """ed25519 (hex) of `leaseway/generation/1|`, the cluster, `|` and the commit with this and its digest empty."""


Decision = (
    OwnerPlanned
    | LeaseGranted
    | LeaseChanged
    | LeaseCleared
    | LinkPriced
    | LeaseChecked
    | LeaseStalled
    | BreakerChanged
    | NodeHealthChanged
    | RequestPresumedLost
    | RequestOrphaned
    | SafeModeEntered
    | SafeModeLeft
)
"""Every decision."""
LeaseEvent = LeaseGranted | LeaseChanged | LeaseCleared
"""The decisions that give and take slots."""
LinkWord = LinkPriced | LeaseChecked | LeaseStalled
"""What else the master says to the two ends of a link."""

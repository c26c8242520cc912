"""Facts of an owner's queue. A model in no link emits only the terminal one of each request."""

from domain.events.base import EventBody
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId


class Held(EventBody, frozen=True, kw_only=True, tag="queue.held"):
    """A request waits in the router at its owner, given to no engine yet; said again of a held one whose size is known now."""

    request: RequestId
    model: ModelId
    lane: str
    work: int
    """Size of the work in micro-units: estimated tokens, or size x steps x images, times one million."""
    size_bytes: int
    est_tokens: int
    streaming: bool
    replayable: bool
    """Its body is buffered, so that it can run again after a fenced first try."""
    lendable: bool
    not_lendable: str = ""
    """Why not: returned, relay_refused, cut_off, streaming_off, too_large; empty if lendable."""
    tenant: str = ""
    """A hash of the tenant; never a key or a name."""
    waiting: int
    """Held requests of this model after this event."""
    vision: bool = False
    """It holds an image: only a helper that sees may have it."""


class Kept(EventBody, frozen=True, kw_only=True, tag="queue.kept"):
    """A held request is kept on purpose for a faster helper."""

    request: RequestId
    model: ModelId
    helper: NodeId
    link: LinkId
    owner_finish_us: int
    helper_finish_us: int
    waited_us: int
    owner_job_us: int = 0
    """Predicted service time of one job at the owner."""
    helper_job_us: int = 0
    """The same job at the helper."""


class Started(EventBody, frozen=True, kw_only=True, tag="queue.started"):
    """A request was given to the owner's own engine."""

    request: RequestId
    model: ModelId
    work: int
    wait_us: int
    in_engine: int
    """Requests inside the engine after this event."""


class _Terminal(EventBody, frozen=True, kw_only=True):
    request: RequestId
    model: ModelId
    work: int = 0
    wait_us: int = 0
    """From arrival to the start of service, or to this event if it was never served."""
    service_us: int = 0
    """Time in service alone, without waiting inside the engine; 0 if it was never served."""
    status: int = 0
    """HTTP status that the client got; 0 if it was gone."""
    code: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    helper: str = ""
    """Node that served it; empty when the owner's own engine did."""


class Finished(_Terminal, frozen=True, kw_only=True, tag="queue.finished"):
    """The client got a whole answer. Terminal."""


class Failed(_Terminal, frozen=True, kw_only=True, tag="queue.failed"):
    """The engine or the path to it failed, and the client was told. Terminal."""


class Cancelled(_Terminal, frozen=True, kw_only=True, tag="queue.cancelled"):
    """The client went away first. `code` says where the request was: held, engine or lent. Terminal."""


class Rejected(_Terminal, frozen=True, kw_only=True, tag="queue.rejected"):
    """The request was refused before it was held (queue full, draining). Terminal."""


class Expired(_Terminal, frozen=True, kw_only=True, tag="queue.expired"):
    """The request waited longer than its bound and never started. Terminal."""


class QueueSnapshot(EventBody, frozen=True, kw_only=True, tag="queue.snapshot"):
    """A sign of life of one queue: stated at least every third of a lease's lifetime while it has held work or leases."""

    model: ModelId
    held: int
    in_engine: int
    lent: int
    lease: LeaseId | None = None


QueueFact = Held | Kept | Started | Finished | Failed | Cancelled | Rejected | Expired | QueueSnapshot
"""Every fact of a queue."""

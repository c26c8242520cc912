"""What the node tells a model's machines."""

import msgspec

from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same while a model's machines live (the depth may be changed later by `set_depth`)."""

    node: NodeId
    model: ModelId
    lane: str = "text"
    slots: int = 1
    """Requests that the engine works on at once."""
    depth: int = 2
    """Requests given to the engine at once while the model is in a link."""
    held_max: int = 10_000
    """Held requests; beyond it 503 queue_full."""
    wait_us_max: int = 600_000_000
    """Longest wait of a held request; beyond it 504 queue_timeout."""
    lease_ttl_us: int = 30_000_000
    """A queue with held work or leases states a fact at least every third of it."""
    offload_streams: bool = True
    """Whether a stream may be lent while it is held."""
    hold_for_faster_helper: bool = True
    """Whether a request may be kept from the engine's second slot for a helper that ends it sooner."""
    stall_us: int = 180_000_000
    """Silence after which the master asks a helper what it still runs."""
    runtime: str = ""
    """The runtime that it shares with other models of the node (domain.engine_room); empty if it has its own."""


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request, body read whole, checked and admitted."""

    request: RequestId
    work: int
    """Micro-units."""
    size_bytes: int = 0
    est_tokens: int = 0
    streaming: bool = False
    replayable: bool = True
    """Its body is buffered (a stream is replayable too while nothing of it was sent; see the runtime)."""
    lendable: bool = True
    """Whether anything about the request itself forbids lending it; links and settings are the runtime's business."""
    not_lendable: str = ""
    """Why not (too_large, image, ...)."""
    tenant: str = ""
    """A hash."""
    vision: bool = False
    """It holds an image."""


class NewSize(msgspec.Struct, frozen=True, kw_only=True):
    """What is known by now of a request that came before its model was measured."""

    est_tokens: int = 0
    """0: still unknown. One that is known already stays."""
    work: int = 0
    """Micro-units; 0: as it was stated."""


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a request left the own engine, well or badly; also after `CancelEngine`."""

    status: int = 200
    """HTTP status that the engine answered with; 0 if it did not."""
    complete: bool = True
    """The answer came whole."""
    not_started: bool = False
    """It provably did not start (refused, DNS, connect or TLS failure): it is held again, and the engine counts as down."""
    code: str = ""
    """Why it is not complete: engine_failed (default), engine_timeout, ..."""
    tokens_in: int = 0
    tokens_out: int = 0
    work: int = 0
    """What the request is estimated at by now, in the unit of requests that come now (micro-units); 0: as it was stated.

    An estimate all the same, not what was counted: a price is of what can be known before.
    """


class LendResult(msgspec.Struct, frozen=True, kw_only=True):
    """The helper's whole answer, given to the client."""

    status: int = 200
    service_us: int = 0
    """Stated by the helper; 0 if it did not say."""
    load_us: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class LendFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The lend failed and the helper is fenced: its connection is closed, so that no second answer can come."""

    reason: str
    """helper_failed (connection lost), helper_error (5xx), answer_late, stalled, unwatched."""
    sent: bool = False
    """A byte of the answer went to the client already: the request may not run again."""
    may_have_run: bool = True
    poison: bool = False
    """The helper's engine died under it: it does not run again anywhere (one engine at most)."""


class BorrowOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of a lend, checked: signature, roster and the desk's own copy of the grant are the node service's business."""

    request: RequestId
    owner: NodeId
    link: LinkId
    lease: LeaseId
    work: int
    slots: int
    """Of the lease, as the helper's own copy of the grant says."""
    remaining_us: int
    lease_live: bool = True
    may_load: bool = True
    """The link allows to load the model for it (`load_if_unloaded`)."""
    restore: bool = False
    """The link wants what it displaces loaded back (`restore_after_borrow`)."""


class RoomConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same while a runtime that models share lives."""

    node: NodeId
    runtime: str
    restore_delay_us: int = 1_500_000
    """Quiet time, on every lane of the node, before what borrowed work displaced is loaded back."""
    keep_while_likely: bool = True
    """Put the restore off while the next borrow is likelier, by its cost, than the node's own next request by its."""

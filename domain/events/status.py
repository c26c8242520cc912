"""Facts about a node as a whole."""

import msgspec

from domain.events.base import EventBody
from domain.ids import Generation, LeaseId, LinkId, ModelId, NodeId, RequestId


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """The newest point of the ledger that someone outside it has seen; the ledger must not be behind it."""

    generation: Generation
    version: int
    digest: str = ""
    signed: str = ""
    """A decision of that commit with the master's signature: without it nobody has to believe that there was one."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a node serves, as its configuration states it."""

    id: ModelId
    local_id: str
    """The engine's own name for it."""
    lane: str = "text"
    engine: str = ""
    slots: int = 1
    """Requests that the engine works on at once."""
    context: int = 0
    """Context window in tokens; 0 if not stated."""
    hash: str = ""
    """Hash of the weights; empty if not stated."""
    capabilities: tuple[str, ...] = ()
    ready: bool = True
    runtime: str = ""
    """Models of a node that name the same runtime share it: one of them is loaded at a time. Empty: it has its own."""


class Registered(EventBody, frozen=True, kw_only=True, tag="status.registered"):
    """The first fact of an incarnation. Closes what the older incarnation had open."""

    url: str
    models: tuple[ModelInfo, ...]
    version: str
    depth: int
    """Requests given to an engine at once for a linked model."""
    witness: Witness | None = None


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a snapshot."""

    request: RequestId
    state: str
    """held, engine, lent, waiting (at a desk) or running (a borrowed one)."""
    work: int
    lendable: bool = False
    age_us: int = 0
    """Time since it was held (held) or given to the engine (engine, running)."""
    link: LinkId | None = None
    lease: LeaseId | None = None
    owner: NodeId | None = None
    est_tokens: int = 0
    """Of the node's own; 0 while nobody knows."""
    vision: bool = False
    """It is the node's own and holds an image."""
    helper: NodeId = NodeId("")
    """Where it is lent to; empty if it is not."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """One owner queue in a snapshot; a large queue spans parts, and then stands in each with a share of its requests."""

    model: ModelId
    requests: tuple[OpenRequest, ...]


class DeskState(msgspec.Struct, frozen=True, kw_only=True):
    """One helper desk in a snapshot."""

    model: ModelId
    requests: tuple[OpenRequest, ...]


class RuntimeState(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime that models share holds, in a snapshot."""

    runtime: str
    resident: ModelId | None = None
    loading: ModelId | None = None
    loading_us: int = 0
    """How long it has been loading."""
    displaced: ModelId | None = None
    """What a run of borrowed work drove out, and what a restore would load back."""


class NodeSnapshot(EventBody, frozen=True, kw_only=True, tag="status.snapshot"):
    """The whole of a node's queues and desks, in parts of at most 64 KiB, applied at the last part."""

    part: int
    """From 1."""
    parts: int
    queues: tuple[QueueState, ...]
    desks: tuple[DeskState, ...]
    reason: str
    """start, gap, overflow, generation, context (an engine told another one) or asked."""
    accepting: bool = True
    runtimes: tuple[RuntimeState, ...] = ()
    """In the last part."""


class Accepting(EventBody, frozen=True, kw_only=True, tag="status.accepting"):
    """The node takes borrowed work (again)."""

    model: ModelId


class NotAccepting(EventBody, frozen=True, kw_only=True, tag="status.not_accepting"):
    """The node takes no borrowed work for now: own_work, restoring, draining or engine_down."""

    model: ModelId
    reason: str


class Draining(EventBody, frozen=True, kw_only=True, tag="status.draining"):
    """The node ends what it has and takes nothing new."""


class Stopped(EventBody, frozen=True, kw_only=True, tag="status.stopped"):
    """The last fact of an incarnation that ended in order."""


class FactsSummarised(EventBody, frozen=True, kw_only=True, tag="status.facts_summarised"):
    """The spool was full: these facts are lost as such, and a snapshot follows."""

    counts: dict[str, int]
    """Facts left out, by tag."""
    first_pseq: int
    last_pseq: int


StatusFact = Registered | NodeSnapshot | Accepting | NotAccepting | Draining | Stopped | FactsSummarised
"""Every fact about a node as a whole."""

"""What the master knows: the fold of every input and decision so far. Mutable, integers only, encodable to the last bit.

Nothing here depends on the order in which a dict was filled: whoever iterates sorts first, since a state restored from a
snapshot has its keys in another order than the one that grew.
"""

from typing import Final

import msgspec

from domain.events import (
    LeaseChanged,
    LeaseGranted,
    LinkAdded,
    ModelInfo,
)
from domain.ids import Incarnation, LinkId, ModelId, NodeId, RequestId
from domain.master.fits import Fit
from domain.master.queue import Queue

POLICY: Final = "water-3"
"""The rules that this code decides by. A change of a rule, of a field that rules read, or of a tag is a new policy."""
STAMP_STEP_US_MAX: Final = 60_000_000
"""A gap between two stamps counts at most this much, so that a stepped server clock cannot rush domain time."""
INCARNATIONS_KEPT: Final = 256
"""Closed incarnations remembered for each node, so that a late first fact of one cannot reopen it."""
OPEN_PER_QUEUE_MAX: Final = 16_000
"""Open requests remembered of one queue (a node holds at most 10,000); what is stated beyond them is not remembered."""
OPEN_PER_NODE_MAX: Final = 64_000
OPEN_FREE: Final = 1_000
"""So many open requests a queue may have whatever its node's other queues hold."""
QUEUES_PER_NODE_MAX: Final = 512
"""Queues remembered of one node: those of the 256 models that it may register, and as many of others that are not empty yet."""
ENGINE_MAX: Final = 1_024
"""Requests inside one engine that are remembered."""
USES_PER_NODE_MAX: Final = 4_096
"""Slots in use that are remembered on one node's word."""
TRAFFIC_PER_NODE_MAX: Final = 4_096
"""Links whose traffic is remembered on one node's word."""
WORK_MAX: Final = 10**15
"""More work than this counts as this: the sums of a full queue stay inside 64 bits."""

HEALTHY, UNHEALTHY, OFFLINE = "healthy", "unhealthy", "offline"


class SlotUse(msgspec.Struct, gc=False):
    """One request over one link, counted from both sides (domain.master.slots)."""

    work: int
    maker: NodeId
    """On whose word it was opened."""
    lent: int = 0
    lent_closed: int = 0
    accepted: int = 0
    accepted_closed: int = 0
    opened_us: int = 0
    """Domain time at which a side first spoke of it."""
    started_us: int = 0
    """Domain time at which the helper's engine began it; 0 before."""


class Traffic(msgspec.Struct):
    """What went over a link, as its two ends state it; by domain.master.slots.use_key."""

    maker: NodeId
    """On whose word it is remembered."""
    owner_model: ModelId = ModelId("")
    changed_us: int = 0
    """Domain time of the last change in what is out: lent, accepted, started, still running, closed."""
    checked_us: int = 0
    """Domain time of the last word on a stall, as decided; 0 if nothing was said since the last change."""
    stalled: bool = False
    """That word told the owner to take back what is out; else it asked the helper what it still runs."""
    failures: int = 0
    """Failed lends since the last that was answered over this link."""
    failed_us: int = 0
    answered_us: int = 0
    freed_us: int = 0
    """The helper ended the only one that was out, while more was lendable: 0 once the next is lent or something else came."""
    turning: RequestId = RequestId("")
    """The next one after that, on its way."""
    turns_us: list[int] = []
    """The last 8 times from the end of one to the start of the next."""
    failed_at_us: list[int] = []
    """Domain times of the newest 16 of `failures`."""


class Breaker(msgspec.Struct, frozen=True):
    """A helper's model that is not closed, as last decided."""

    state: str
    failures: int
    quarantine_us: int
    since_us: int
    """Domain time of the last failure: the quarantine counts from there."""


class Borrowed(msgspec.Struct):
    """What a helper says itself of how its borrowed work ended, for one of its models."""

    failures: int = 0
    """Failed since the last that went well."""
    failed_us: int = 0


class Room(msgspec.Struct):
    """What one runtime of a node holds: one of its models at a time."""

    models: list[ModelId]
    """Those that share it, sorted; one alone if it shares with none."""
    resident: ModelId = ModelId("")
    """The model that is ready; empty while none is."""
    loading: ModelId = ModelId("")
    since_us: int = 0
    """Domain time at which that load began."""
    cause: str = ""
    displaced: ModelId = ModelId("")
    """What a run of borrowed work drove out, and what is loaded back after it."""
    freed_us: int = 0
    """Domain time of the last end of borrowed work or of a load."""
    began_us: int = 0
    """Domain time of the last start of borrowed work."""
    own_us: int = 0
    """Domain time of the last end of a load for the node itself, a restore included."""


class Lease(msgspec.Struct):
    """The live lease of a link, as last granted or changed."""

    event: LeaseGranted | LeaseChanged
    granted_us: int
    """Domain time of the commit that granted or last changed it."""


class Enrolled(msgspec.Struct, frozen=True):
    """A node as an operator enrolled it."""

    public_key: str
    url: str
    retired: bool = False


class Control(msgspec.Struct, dict=True):
    """What operators decided. Control events change nothing else, and facts do not change this: so the two commute."""

    links: dict[LinkId, LinkAdded] = {}
    by_owner: dict[str, list[LinkId]] = {}
    """Links of each owner queue, sorted."""
    by_helper: dict[str, list[LinkId]] = {}
    """Links to each helper model, sorted."""
    gone: dict[LinkId, LinkAdded] = {}
    """Removed links whose lease or requests may still be out; forgotten by a commit that finds neither."""
    retiring: dict[NodeId, bool] = {}
    """Nodes retired since, whose open requests are not all orphaned yet."""
    roster: dict[NodeId, Enrolled] = {}
    settings: dict[str, int] = {}
    """Operators' overrides, by full name."""
    stated: dict[str, int] = {}
    """What the configuration file states, by full name."""
    touched: dict[str, str] = {}
    """Owner queues whose links changed since the last commit."""
    added: dict[LinkId, bool] = {}
    """Links that were made, or made anew, since the last commit: nobody knows anything of them."""
    touched_all: bool = False
    """A setting changed: every owner with work is planned again."""


class Node(msgspec.Struct):
    """A node, as its own facts and the master's observations tell it."""

    incarnation: Incarnation = Incarnation("")
    pseq: int = 0
    """The newest fact folded."""
    incomplete: bool = False
    """A fact is missing: nothing later is folded until the producer sends it again."""
    late: bool = False
    """It speaks from its spool; not planned until its next snapshot."""
    closed: list[Incarnation] = []
    url: str = ""
    depth: int = 0
    models: dict[ModelId, ModelInfo] = {}
    queues: list[ModelId] = []
    """Models that have a queue, sorted."""
    since_us: int = 0
    """Domain time of its registration."""
    rooms: dict[str, Room] = {}
    """By domain.master.rooms.room_name: every runtime that models share; of the others those that something happened to."""
    borrowed: dict[ModelId, Borrowed] = {}
    uses: int = 0
    """Slots in use that are remembered on its word."""
    traffic: int = 0
    """Links whose traffic is remembered on its word."""
    not_accepting: dict[ModelId, str] = {}
    draining: bool = False
    silent_us: int = 0
    """How long it had been silent at the last observation; 0 when it beats."""
    health: str = HEALTHY
    """The health last decided."""
    parts: list["SnapshotPart"] = []
    """Parts of a snapshot whose last part has not come."""
    part: int = 0
    """The last of these; 0 outside a snapshot."""


class SnapshotPart(msgspec.Struct):
    """One open request of a snapshot in the making."""

    model: ModelId
    desk: bool
    request: RequestId
    state: str
    work: int
    lendable: bool
    age_us: int
    link: LinkId | None
    owner: NodeId | None
    tokens: int = 0
    vision: bool = False
    helper: NodeId = NodeId("")


class Orphan(msgspec.Struct, frozen=True):
    """A request whose owner's process ended; not yet said."""

    node: NodeId
    model: ModelId
    request: RequestId


class State(msgspec.Struct):
    """The whole state of the master aggregate."""

    policy: str = POLICY
    term: int = 0
    now_us: int = 0
    """Domain time: a fold over the stored stamps."""
    stamp_us: int = 0
    """The newest stamp."""
    hi: int = 0
    chi: int = 0
    nodes: dict[NodeId, Node] = {}
    queues: dict[str, Queue] = {}
    fits: dict[str, Fit] = {}
    control: Control = msgspec.field(default_factory=Control)
    leases: dict[LinkId, Lease] = {}
    leased: dict[str, list[LinkId]] = {}
    """Links with a live lease of each owner queue, sorted."""
    uses: dict[str, dict[RequestId, SlotUse]] = {}
    """What is out over each link, by domain.master.slots.use_key."""
    traffic: dict[str, Traffic] = {}
    """What went over each link, by domain.master.slots.use_key."""
    breakers: dict[str, Breaker] = {}
    """Helper models whose breaker is not closed."""
    failing: dict[str, str] = {}
    """Since the last commit something failed or went well again: keys of `traffic`, and of helper models."""
    hints: dict[LinkId, NodeId] = {}
    """Links whose owner was told that the helper is faster, with the owner."""
    refit: dict[str, str] = {}
    """Models of which something was measured since the last commit."""
    woken_us: int = 0
    """Domain time of the last alarm whose timers are not all dealt with; 0 without one."""
    touched: dict[str, str] = {}
    """Owner queues that something happened to since their last plan, with the first trigger."""
    planned_us: dict[str, int] = {}
    """Domain time of the last plan of each owner that still held work then."""
    probe_due: dict[str, int] = {}
    """Domain time at which a helper of each owner will have idled long enough for a probe."""
    orphans: dict[str, Orphan] = {}
    """Requests whose owner's process ended, not said yet, by `orphan_key`."""
    presuming: dict[NodeId, list[str]] = {}
    """Nodes that went offline with so much open that it takes several commits to say: (queue, request) said last."""
    silent: dict[NodeId, int] = {}
    """Nodes whose health is to be looked at again, with their silence."""


def owner_key(node: NodeId, model: ModelId) -> str:
    """Return the key of a node's model: node ids have no slash, so it is unambiguous and sorts by node."""
    return f"{node}/{model}"


def orphan_key(node: NodeId, model: ModelId, request: RequestId) -> str:
    """Return the key of a request of an ended process; requests of two nodes may bear one id."""
    return f"{node}/{model}\x1f{request}"


def split_key(key: str) -> tuple[NodeId, ModelId]:
    """Return the node and model of a key."""
    node, _, model = key.partition("/")
    return NodeId(node), ModelId(model)


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(State)


def encode_state(state: State) -> bytes:
    """Return the one byte form of `state`."""
    return _ENCODER.encode(state)


def decode_state(encoded: bytes) -> State:
    """Return the state in `encoded`; raise msgspec.DecodeError if it is none."""
    return _DECODER.decode(encoded)


def is_plannable(state: State, key: str) -> bool:
    """Tell whether there is anything to decide for an owner queue: it has a lease, or work and somewhere to lend it."""
    if key in state.leased:
        return True
    queue = state.queues.get(key)
    return queue is not None and bool(queue.held) and key in state.control.by_owner


_WEAK: Final = {"link": 1, "health": 0, "slots_freed": 0}
"""Triggers that give way to those of the owner's own queue.

What reaches an owner through a link (rank 0) depends on whether the link's control event was folded before or after the fact;
the control event itself (rank 1) marks the same owner and is stronger, so that the order does not show.
"""


def touch(state: State, key: str, trigger: str) -> None:
    """Mark an owner queue for planning, if it holds work or a lease: else there is nothing to decide."""
    queue = state.queues.get(key)
    if (queue is not None and queue.held) or key in state.leased:
        mark(state, key, trigger)


def mark(state: State, key: str, trigger: str) -> None:
    """Mark an owner queue whatever it holds; the strongest trigger stays, of equal ones the first."""
    marked = state.touched.get(key)
    if marked is None or _WEAK.get(trigger, 2) > _WEAK.get(marked, 2):
        state.touched[key] = trigger


def touch_lenders(state: State, helper_key: str, trigger: str, *, but: str = "") -> None:
    """Touch every owner that may lend to a helper's model, except over the link `but`."""
    for link in state.control.by_helper.get(helper_key, ()):
        if link != but:
            added = state.control.links[link]
            touch(state, owner_key(added.owner, added.owner_model), trigger)

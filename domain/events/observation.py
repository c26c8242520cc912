"""What the active master saw, stored before it may decide on it."""

from domain.events.base import EventBody
from domain.ids import Generation, NodeId


class HeartbeatMissed(EventBody, frozen=True, kw_only=True, tag="obs.heartbeat_missed"):
    """A node's heartbeats stopped."""

    node: NodeId
    silent_us: int


class HeartbeatSeen(EventBody, frozen=True, kw_only=True, tag="obs.heartbeat_seen"):
    """A node that was silent beats again."""

    node: NodeId


class Due(EventBody, frozen=True, kw_only=True, tag="obs.due"):
    """The earliest timer of the state ran out."""

    elapsed_us: int
    """Monotonic time of the master for which domain time had stood still."""
    since_us: int = 0
    """The domain time at which it stood; what was stored in between moved it by itself and is not counted twice."""


class Checkpoint(EventBody, frozen=True, kw_only=True, tag="obs.checkpoint"):
    """Where the ledger stood when the master signed this; no rule reads it."""

    cluster: str
    generation: Generation
    version: int
    digest: str
    """Of the commit of that version."""
    hi: int
    """Facts folded by it: up to this sequence of LW_EVENTS."""
    chi: int
    """Control events folded by it: up to this sequence of LW_CONTROL."""
    state: str = ""
    """Digest of the state after it, where the commit states one."""
    tail_hi: int = 0
    """Facts read since, that no commit had folded yet: up to this sequence of LW_EVENTS; 0 if not stated."""
    tail_chi: int = 0
    tail: str = ""
    """blake2b-16 over those control events and facts."""
    at_us: int
    """The master's wall clock, since the epoch: for people, and for the age of what is gone."""
    public: str = ""
    """nkey public key of the master."""
    signature: str = ""
    """ed25519 (hex) of `leaseway/checkpoint/1|` and this object with an empty signature."""


Observation = HeartbeatMissed | HeartbeatSeen | Due | Checkpoint
"""Every observation."""

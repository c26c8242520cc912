"""What the active master saw, stored before it may decide on it."""

from domain.events.base import EventBody
from domain.ids import NodeId


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


Observation = HeartbeatMissed | HeartbeatSeen | Due
"""Every observation."""

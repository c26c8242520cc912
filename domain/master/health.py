"""Heartbeats, as the active master observes them."""

from domain.events import HeartbeatMissed, HeartbeatSeen
from domain.master import registration, stall
from domain.master.leases import is_live, lease_life_us
from domain.master.state import State
from domain.master.timers import next_due_us

OFFLINE_AFTER_US = 10_000_000
"""Silent for so long, a node counts as gone and its requests as presumed lost (the promise is 15 s)."""
UNHEALTHY_AFTER_US = 3_000_000


def missed(state: State, fact: HeartbeatMissed) -> None:
    """Note a silence; what follows from it is decided."""
    node = state.nodes.get(fact.node)
    if node is not None:
        node.silent_us = max(node.silent_us, fact.silent_us)
        state.silent[fact.node] = node.silent_us
        registration.touch_node(state, fact.node, "health")


def seen(state: State, fact: HeartbeatSeen) -> None:
    """Note that a node beats again."""
    node = state.nodes.get(fact.node)
    if node is not None:
        node.silent_us = 0
        stall.heard(state, fact.node)
        state.silent[fact.node] = 0
        registration.touch_node(state, fact.node, "health")


__all__ = [
    "OFFLINE_AFTER_US",
    "UNHEALTHY_AFTER_US",
    "is_live",
    "lease_life_us",
    "missed",
    "next_due_us",
    "seen",
]

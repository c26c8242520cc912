"""Observations of the active master: heartbeats and timers."""

from domain.events import Due, HeartbeatMissed, HeartbeatSeen
from domain.master import registration
from domain.master.state import LEASE_TTL_US, REFRESH_US, State, touch

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
        state.silent[fact.node] = 0
        registration.touch_node(state, fact.node, "health")


def due(state: State, fact: Due) -> None:
    """Touch every owner whose timer ran out: its refresh interval, or a lease of it that is over."""
    del fact
    for key in sorted(state.planned_us):
        if state.planned_us[key] + REFRESH_US <= state.now_us:
            touch(state, key, "tick")
    for link in sorted(state.leases):
        lease = state.leases[link]
        if lease.granted_us + lease_life_us(lease.event.ttl_us) <= state.now_us:
            touch(state, f"{lease.event.owner}/{lease.event.owner_model}", "tick")


def lease_life_us(ttl_us: int) -> int:
    """Return how long after its commit the master counts a lease: a tenth longer than its owner, on any clock."""
    return ttl_us + ttl_us // 10


def next_due_us(state: State) -> int | None:
    """Return the domain time of the earliest timer, or None if no owner holds work or a lease."""
    times = [planned + REFRESH_US for planned in state.planned_us.values()]
    times += [lease.granted_us + lease_life_us(lease.event.ttl_us) for lease in state.leases.values()]
    return min(times, default=None)


__all__ = [
    "LEASE_TTL_US",
    "OFFLINE_AFTER_US",
    "UNHEALTHY_AFTER_US",
    "due",
    "lease_life_us",
    "missed",
    "next_due_us",
    "seen",
]

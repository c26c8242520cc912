"""Observations of the active master: heartbeats and timers."""

from domain.events import Due, HeartbeatMissed, HeartbeatSeen
from domain.master import registration
from domain.master.state import LEASE_TTL_US, REFRESH_US, Lease, State, is_plannable, owner_key, touch

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
    for key in sorted(key for key, planned in state.planned_us.items() if planned + REFRESH_US <= state.now_us):
        touch(state, key, "tick")
    for link in sorted(link for link, lease in state.leases.items() if not is_live(state, lease)):
        lease = state.leases[link]
        touch(state, owner_key(lease.event.owner, lease.event.owner_model), "tick")


def lease_life_us(ttl_us: int) -> int:
    """Return how long after its commit the master counts a lease: a tenth longer than its owner, on any clock."""
    return ttl_us + ttl_us // 10


def is_live(state: State, lease: Lease) -> bool:
    """Tell whether the owner may still lend under a lease; one that is over waits only to be cleared."""
    return state.now_us < lease.granted_us + lease_life_us(lease.event.ttl_us)


def next_due_us(state: State) -> int | None:
    """Return the domain time of the earliest timer, or None if no owner that a plan can help holds work or a lease."""
    times = [planned + REFRESH_US for key, planned in state.planned_us.items() if is_plannable(state, key)]
    times += [lease.granted_us + lease_life_us(lease.event.ttl_us) for lease in state.leases.values()]
    return min(times, default=None)


__all__ = [
    "LEASE_TTL_US",
    "OFFLINE_AFTER_US",
    "UNHEALTHY_AFTER_US",
    "due",
    "is_live",
    "lease_life_us",
    "missed",
    "next_due_us",
    "seen",
]

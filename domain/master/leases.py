"""How long a lease lives."""

from domain.master.state import Lease, State


def lease_life_us(ttl_us: int) -> int:
    """Return how long after its commit the master counts a lease: a tenth longer than its owner, on any clock."""
    return ttl_us + ttl_us // 10


def is_live(state: State, lease: Lease) -> bool:
    """Tell whether the owner may still lend under a lease; one that is over waits only to be cleared."""
    return state.now_us < lease.granted_us + lease_life_us(lease.event.ttl_us)

"""Everything that is due at a time rather than after a fact. Domain time stands still between facts, so an alarm is one (`Due`).

The alarm is folded as a mere mark. What it makes due also depends on settings, so it is looked at where decisions are taken,
after facts and control events of the range are folded: their order must not show.
"""

from collections.abc import Iterator
from typing import Final

from domain.events import Due
from domain.master import breaker, stall
from domain.master.control import setting
from domain.master.leases import lease_life_us
from domain.master.state import State, is_plannable, mark, owner_key

ELAPSED_US_MAX: Final = 600_000_000
"""An alarm moves domain time no further: whoever waits for longer rings on the way (services.master.alarm)."""


def due(state: State, fact: Due) -> None:
    """Note that the alarm rang: domain time is what the master's own clock says, unless its stamps have led it further.

    They lead it no further than a minute a message (state.STAMP_STEP_US_MAX), however long nobody spoke.
    """
    stood_us = min(fact.since_us, state.now_us)
    state.now_us = max(state.now_us, stood_us + min(fact.elapsed_us, ELAPSED_US_MAX))
    state.woken_us = max(1, state.now_us)


def ring(state: State) -> None:
    """Mark the owners whose timer ran out by the last alarm: a probe, a refresh, a lease that is over."""
    at_us = state.woken_us
    if not at_us:
        return
    for key, trigger, due_us in sorted(_owners(state)):
        if due_us <= at_us:
            mark(state, key, trigger)


def settle(state: State) -> None:
    """Forget the alarm once nothing is left of what it made due."""
    if state.woken_us and not any(due_us <= state.woken_us for due_us in _all(state)):
        state.woken_us = 0


def next_due_us(state: State) -> int | None:
    """Return the domain time of the earliest timer; None if nothing is due at any time."""
    return min(_all(state), default=None)


def _all(state: State) -> Iterator[int]:
    for _, _, due_us in _owners(state):
        yield due_us
    yield from stall.next_due_us(state)
    for each in state.breakers.values():
        ends_us = breaker.ends_us(each)
        if ends_us is not None:
            yield ends_us


def _owners(state: State) -> Iterator[tuple[str, str, int]]:
    """Yield (owner, trigger, domain time) of every timer of an owner that a plan can help."""
    for key, due_us in state.probe_due.items():
        if is_plannable(state, key):
            yield key, "probe_due", due_us
    refresh_us = setting(state.control, "scheduling_refresh_interval")
    for key, planned_us in state.planned_us.items():
        if is_plannable(state, key):
            yield key, "tick", planned_us + refresh_us
    for lease in state.leases.values():
        over_us = lease.granted_us + lease_life_us(lease.event.ttl_us)
        yield owner_key(lease.event.owner, lease.event.owner_model), "tick", over_us

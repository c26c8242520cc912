"""A breaker for each helper model: a helper that fails lent requests one after another gets no more of them for a while.

Failures are counted from both sides, as slots are: by what its owners had of it, and by what it says itself; the larger counts.
An owner's answer resets what owners had of it before, the helper's own success what it says itself: a helper that only says that
all went well stays shut. A process that begins anew begins without failures. One outage counts once, though it may
show in several requests, one long after the other (domain.master.traffic).

After one failure it gets one slot until a request completes. After two without a completion it is *opened* for 5 s, twice as
long with each further failure up to 120 s; then *half open*, with one slot for all owners, first for one whose own lends did not
fail; a completion closes it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from domain.events import BreakerChanged
from domain.ids import NodeId
from domain.master import slots
from domain.master.links import Way, ways_to
from domain.master.state import Breaker, Node, State, owner_key, split_key, touch_lenders

OPENED: Final = "opened"
HALF_OPEN: Final = "half_open"
CLOSED: Final = "closed"
OPENS_AT: Final = 2
"""Failures without a completion between."""
QUARANTINE_US: Final = 5_000_000
QUARANTINE_US_MAX: Final = 120_000_000
YIELD_US: Final = 10_000_000
"""How long owners whose lends failed leave a half-open helper to the others."""


def quarantine_us(failures: int) -> int:
    """Return how long a helper gets nothing after so many failures without a completion."""
    if failures < OPENS_AT:
        return 0
    return min(QUARANTINE_US << min(failures - OPENS_AT, 10), QUARANTINE_US_MAX)


def failures_of(state: State, helper_key: str) -> tuple[int, int]:
    """Return (failures of a helper's model without a completion between, domain time of the last)."""
    name, model = split_key(helper_key)
    node = state.nodes.get(name)
    if node is None or model not in node.models:  # what is served no more does not fail
        return 0, 0
    times = _uncompleted(state, node, ways_to(state, helper_key))
    said = node.borrowed.get(model)
    failures = max(len(times), said.failures if said is not None else 0)
    if said is not None and said.failures:
        times.append(said.failed_us)
    return failures, max(times, default=0)


def _uncompleted(state: State, node: Node, ways: Sequence[Way]) -> list[int]:
    """Return when lends failed since the helper last began anew or answered any of its owners."""
    known = [traffic for way in ways if (traffic := state.traffic.get(way.over)) is not None]
    if not any(traffic.failed_at_us for traffic in known):
        return []
    past_us = max([node.since_us, *(traffic.answered_us for traffic in known)])
    return [failed_us for traffic in known for failed_us in traffic.failed_at_us if failed_us > past_us]


def has_failed(state: State, over: Way, ways: Sequence[Way]) -> bool:
    """Tell whether a lend to the helper's model failed since the last that was answered: over this very link, or to anyone.

    What it says itself counts too. `ways`: all by which something may be lent there.
    """
    mine = state.traffic.get(over.over)
    if mine is not None and mine.failures:
        return True
    node = state.nodes[over.added.helper]
    said = node.borrowed.get(over.added.helper_model)
    if said is not None and said.failures:
        return True
    if len(ways) == 1 and (
        mine is None or not mine.failed_at_us
    ):  # it is the only one, and nothing is known to have failed
        return False
    return bool(_uncompleted(state, node, ways))


def is_open(state: State, helper_key: str) -> bool:
    """Tell whether nothing may be leased there now."""
    breaker = state.breakers.get(helper_key)
    return breaker is not None and breaker.state == OPENED


def yields(state: State, over: Way, ways: Sequence[Way]) -> bool:
    """Tell whether the one slot of a half-open helper is first for another owner: one over whose link nothing has failed.

    It may be the way from this owner to the helper that is broken; then the first to try would shut the helper to all, again
    and again. For a few seconds, since the other may have reasons of its own not to lend.
    """
    breaker, mine = state.breakers.get(over.helper), state.traffic.get(over.over)
    if breaker is None or mine is None or not mine.failures or state.now_us >= breaker.since_us + YIELD_US:
        return False
    for other in ways:
        traffic = state.traffic.get(other.over)
        queue = state.queues.get(other.owner)
        if (traffic is None or not traffic.failures) and queue is not None and queue.lendable:
            return True
    return False


def slots_left(state: State, helper_key: str) -> int | None:
    """Return how many slots all owners together may have there: one while it is half open; None if no breaker limits them."""
    return 1 if helper_key in state.breakers else None


def ends_us(breaker: Breaker) -> int | None:
    """Return the domain time at which an opened breaker goes half open; None if it is not opened."""
    return breaker.since_us + breaker.quarantine_us if breaker.state == OPENED else None


def changes(state: State) -> Iterator[BreakerChanged]:
    """Yield what changes; whoever takes one evolves it before asking for the next."""
    keys = {_helper_of(state, key) for key in state.failing}
    if state.woken_us:
        keys.update(key for key, each in state.breakers.items() if each.state == OPENED)
    for key in sorted(keys - {""}):
        change = _change(state, key)
        if change is not None:
            yield change


def _helper_of(state: State, key: str) -> str:
    """Return the helper model that a key of `failing` concerns; empty if its link is none of ours."""
    if key not in state.traffic:
        return key
    link = slots.sides(key)[2]
    added = state.control.links.get(link) or state.control.gone.get(link)
    return owner_key(added.helper, added.helper_model) if added is not None and slots.key_of(added) == key else ""


def _change(state: State, key: str) -> BreakerChanged | None:
    failures, failed_us = failures_of(state, key)
    known = state.breakers.get(key)
    shut_us = quarantine_us(failures)
    still_shut = state.now_us < failed_us + shut_us
    wanted = (OPENED if still_shut else HALF_OPEN) if shut_us else CLOSED
    if known is None:
        if wanted == CLOSED:
            return None
    elif wanted == known.state and (wanted == HALF_OPEN or failed_us + shut_us == ends_us(known)):
        return None
    name, model = split_key(key)
    left_us = shut_us - (state.now_us - failed_us) if wanted == OPENED else 0
    return BreakerChanged(helper=name, model=model, state=wanted, failures=failures, quarantine_us=left_us)


def evolve(state: State, decision: BreakerChanged) -> None:
    """Apply a change; who may lend there is planned again."""
    key = owner_key(NodeId(decision.helper), decision.model)
    if decision.state == CLOSED:
        state.breakers.pop(key, None)
    else:
        state.breakers[key] = Breaker(decision.state, decision.failures, decision.quarantine_us, state.now_us)
    touch_lenders(state, key, "health")

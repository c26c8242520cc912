"""What things cost: time until a machine is free, time of one job there, and what opening a model switch wins or loses."""

import msgspec

from domain import fixed
from domain.events import LinkAdded
from domain.master import fits, slots
from domain.master.control import setting
from domain.master.fits import FitRules, Price, cost_us
from domain.master.health import is_live
from domain.master.state import Queue, State, owner_key, split_key

TURNAROUND_US = 20_000
"""From a slot that falls free to the next lent request in it: one decision and two hops."""
WEAR = fixed.ONE // 10
"""Share of a switch and its way back that must be won besides: a load wears, and predictions err."""
OWN_WEIGHT = fixed.ONE
"""How much a second of the helper's own requests counts against a second of the owner's."""
GAIN_US_MAX = 10**18
"""A gain or loss beyond this means nothing; held here it fits 64 bits."""
LATE_FLOOR_NUM, LATE_FLOOR_DEN = 1, 10
"""A job that runs over its estimate is taken to need at least a tenth of it more."""


def fit_rules(state: State, key: str) -> FitRules:
    """Return the rules that the price of a model follows."""
    node, model = split_key(key)
    known = state.nodes.get(node)
    info = known.models.get(model) if known is not None else None
    return fits.rules_of(lambda name: setting(state.control, name), info.lane if info is not None else "text")


def owner_price(state: State, key: str, work: int) -> Price | None:
    """Return what a job of `work` costs on an owner's own engine; None if that was never measured."""
    return fits.price(state.fits.get(key), None, fit_rules(state, key), state.now_us, work)


def helper_price(state: State, key: str, owner: str, work: int) -> Price | None:
    """Return what a job of `work` costs at a helper, in whose stead the owner's samples stand while there are few."""
    return fits.price(state.fits.get(key), state.fits.get(owner), fit_rules(state, key), state.now_us, work)


def remaining_us(expected_us: int, elapsed_us: int) -> int:
    """Return what a running job still needs: never nothing, and more the longer it overruns."""
    if elapsed_us < 3 * expected_us:
        return max(expected_us - elapsed_us, expected_us * LATE_FLOOR_NUM // LATE_FLOOR_DEN)
    return elapsed_us * 3 // 10


def engine_free_us(queue: Queue, unit: int, now_us: int, slots_at_once: int) -> int:
    """Return the time until the owner's engine has served all that is inside it."""
    if not queue.engine:
        return 0
    jobs = sorted(queue.engine.items(), key=lambda item: (item[1].since_us, item[0]))
    total = 0
    for place, (_, job) in enumerate(jobs):
        expected = cost_us(unit, job.work)
        if place < slots_at_once:
            total += remaining_us(expected, now_us - max(job.since_us, queue.freed_us if place == 0 else 0))
        else:
            total += expected
    return total // max(1, slots_at_once)


def helper_free_us(state: State, helper_key: str, unit: int) -> int:
    """Return the time until a helper has served its own work inside the engine and all that it borrowed."""
    queue = state.queues.get(helper_key)
    total = engine_free_us(queue, unit, state.now_us, 1) if queue is not None else 0
    for added in _links_to(state, helper_key):
        for use in slots.open_uses(state, slots.key_of(added)):
            expected = cost_us(unit, use.work)
            total += remaining_us(expected, state.now_us - use.started_us) if use.started_us else expected
    return total


def idle_us(state: State, helper_key: str) -> int:
    """Return how long ago the helper's own work last arrived or left; -1 if it never had any."""
    queue = state.queues.get(helper_key)
    if queue is None or not queue.arrival_us:
        return -1
    return 0 if queue.engine or queue.held else state.now_us - max(queue.arrival_us, queue.freed_us)


class Switch(msgspec.Struct, frozen=True):
    """A model switch that a lease would open."""

    switch_us: int
    back_us: int
    job_us: int


def switch_gain_us(state: State, helper_key: str, switch: Switch, jobs: int, saved_us: int) -> int:
    """Return the job-microseconds that opening a switch wins: what it saves, less what it is expected to cost others.

    saved * exp(-rate (switch + job/2)) - w busy (back + job/2 + switch/2)(1 + rate (back + job)) - wear (switch + back), where
    `rate` is the helper's own arrivals and busy = 1 - exp(-rate * visit): the chance that own work comes during the visit.
    Source: rule `water`, docs/discussions/pricing.md.
    """
    rate_q32 = own_rate_q32(state, helper_key)
    there_and_back = switch.switch_us + switch.back_us
    visit = min(
        there_and_back + jobs * switch.job_us, there_and_back + (fixed.ONE // rate_q32 if rate_q32 else 1 << 60)
    )
    busy = fixed.ONE - fixed.exp_q32(-rate_q32 * visit)
    kept = fixed.exp_q32(-rate_q32 * (switch.switch_us + switch.job_us // 2))
    queueing = fixed.ONE + rate_q32 * (switch.back_us + switch.job_us)
    harm = fixed.times(switch.back_us + switch.job_us // 2 + switch.switch_us // 2, fixed.times(busy, queueing))
    gain = fixed.times(saved_us, kept) - fixed.times(harm, OWN_WEIGHT) - fixed.times(there_and_back, WEAR)
    return max(-GAIN_US_MAX, min(gain, GAIN_US_MAX))


def own_rate_q32(state: State, helper_key: str) -> int:
    """Return the helper's own arrivals per microsecond in Q32, the gap since the newest one counted as a gap."""
    queue = state.queues.get(helper_key)
    if queue is None or not queue.arrival_us:
        return 0
    since = state.now_us - queue.arrival_us
    # Half an arrival more and five seconds more keep the rate of a node that was seen once between zero and one.
    return ((2 * len(queue.gaps_us) + 1) << 31) // (sum(queue.gaps_us) + since + 5_000_000)


def free_slots(state: State, added: LinkAdded, depth: int) -> int:
    """Return how many slots the helper can give over this link: its depth less what others have out or may yet lend."""
    helper_key = owner_key(added.helper, added.helper_model)
    taken = 0
    for other in _links_to(state, helper_key):
        if other.link != added.link:
            lease = state.leases.get(other.link)
            live = lease.event.slots if lease is not None and is_live(state, lease) else 0
            taken += max(slots.count_open(state, slots.key_of(other)), live)
    return depth - taken


def _links_to(state: State, helper_key: str) -> list[LinkAdded]:
    """Return every link by which something may be at the helper's model: the removed ones whose rest is still out as well."""
    control = state.control
    links = [control.links[link] for link in control.by_helper.get(helper_key, ())]
    for link in sorted(control.gone):
        added = control.gone[link]
        if owner_key(added.helper, added.helper_model) == helper_key:
            links.append(added)
    return links

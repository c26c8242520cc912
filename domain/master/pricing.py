"""What things cost: time until a machine is free, time of one job there, and what opening a model switch wins or loses."""

from typing import Final

import msgspec

from domain import fixed
from domain.events import LinkAdded
from domain.master import reasons, slots
from domain.master.fits import MIN_SAMPLES, WINDOW, cost_us
from domain.master.health import is_live
from domain.master.state import Queue, State, owner_key

TURNAROUND_US = 20_000
"""From a slot that falls free to the next lent request in it: one decision and two hops."""
WEAR = fixed.ONE // 10
"""Share of a switch and its way back that must be won besides: a load wears, and predictions err."""
OWN_WEIGHT = fixed.ONE
"""How much a second of the helper's own requests counts against a second of the owner's."""
GAIN_US_MAX = 10**18
"""A gain or loss beyond this means nothing; held here it fits 64 bits."""
_MIN_SAMPLES: Final = "cluster.scheduling_min_samples"
LATE_FLOOR_NUM, LATE_FLOOR_DEN = 1, 10
"""A job that runs over its estimate is taken to need at least a tenth of it more."""


def owner_log(state: State, key: str) -> int | None:
    """Return the mean ln(us per unit of work) of an owner's own engine in Q32; None if it was never measured."""
    fit = state.fits.get(key)
    return fit.mean_log() if fit is not None else None


def helper_log(state: State, key: str, prior_log: int | None) -> tuple[int | None, str]:
    """Return a helper's log cost, shrunk towards the owner's, and where it comes from."""
    fit = state.fits.get(key)
    if fit is None or not fit.logs:
        return prior_log, reasons.OWNER_FALLBACK
    own = len(fit.logs) >= min(state.control.settings.get(_MIN_SAMPLES, MIN_SAMPLES), WINDOW)
    source = reasons.HELPER_FIT if own else reasons.OWNER_FALLBACK
    return fit.shrunk_log(prior_log), source


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

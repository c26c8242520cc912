"""What things cost: time until a machine is free, time of one job there, and what opening a model switch wins or loses."""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain import fixed
from domain.estimates import rest_us
from domain.events import ModelInfo
from domain.ids import ModelId, NodeId, RequestId
from domain.master import breaker, rooms, slots
from domain.master.control import depth, lane_rules
from domain.master.fits import FitRules, cost_us, unit_q64
from domain.master.leases import is_live
from domain.master.links import Way, ways_to
from domain.master.queue import Queue
from domain.master.state import Node, Room, SlotUse, State, owner_key, split_key

TURNAROUND_US: Final = 20_000
"""From a slot that falls free to the next lent request in it, where none was measured: one decision and two hops."""
WEAR: Final = fixed.ONE // 11
"""Share of a switch and its way back that must be won besides: a load wears, and predictions err."""
OWN_WEIGHT: Final = fixed.ONE
"""How much a second of the helper's own requests counts against a second of the owner's."""
GAIN_US_MAX: Final = 10**18
"""A gain or loss beyond this means nothing; held here it fits 64 bits."""
_HALF_ARRIVAL_US: Final = 5_000_000
_UNSEEN_US, _UNSEEN_FACTOR = 60_000_000, 10


def fit_rules(state: State, key: str) -> FitRules:
    """Return the rules that the price of a model follows."""
    node, model = split_key(key)
    known = state.nodes.get(node)
    info = known.models.get(model) if known is not None else None
    return lane_rules(state.control, info.lane if info is not None else "text")


def load_us(state: State, key: str, window_us: int) -> int | None:
    """Return what a load of a model costs; None if none was measured in the window."""
    fit = state.fits.get(key)
    return fit.load_us(state.now_us, window_us) if fit is not None else None


def likely_load_us(state: State, key: str, owner: str, window_us: int) -> int | None:
    """Return what a load may cost that was never measured: as any load there, else as the owner's own model takes; or None."""
    name, _ = split_key(key)
    node = state.nodes.get(name)
    loads: list[int] = []
    for model in node.models if node is not None else ():
        fit = state.fits.get(owner_key(name, model))
        if fit is not None:
            since_us = state.now_us - window_us
            loads += [load for load, at_us in zip(fit.loads_us, fit.loads_at_us, strict=True) if at_us >= since_us]
    return sorted(loads)[len(loads) // 2] if loads else load_us(state, owner, window_us)


# ---- until a machine is free -----------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True, gc=False):
    """A model at its node."""

    name: NodeId
    model: ModelId
    key: str
    """Of the model (state.owner_key)."""
    room: Room | None
    """None: it has its runtime for itself, and nothing happened there yet."""
    models: Sequence[ModelId]
    """Those that share its runtime, itself among them."""
    queues: Sequence[Queue | None]
    """Of each of these models; None for one without."""
    ways: Sequence[Way]
    """By which something may be lent to it."""


def place_of(state: State, key: str, name: NodeId, model: ModelId, info: ModelInfo | None) -> Place:
    """Return where a model is served; `info` is what its node registered of it, None if nothing."""
    room = state.nodes[name].rooms.get(rooms.room_name(info)) if info is not None else None
    queues = state.queues
    if room is None or len(room.models) == 1:
        return Place(name, model, key, room, (model,), (queues.get(key),), ways_to(state, key))
    of_all = [queues.get(owner_key(name, each)) for each in room.models]
    return Place(name, model, key, room, room.models, of_all, ways_to(state, key))


def served_at_once(state: State, node: Node | None, info: ModelInfo | None) -> int:
    """Return how many requests a model's engine works on at a time: no more than it gets, which is the scheduling depth."""
    if node is None or info is None:
        return 1
    return max(1, min(info.slots, depth(state.control, node.depth)))


class Machine(msgspec.Struct, frozen=True, gc=False):
    """A model's engine as a plan sees it."""

    free_us: int
    """Until it has served all that is inside it and all that it borrowed, with the rest of a load in progress."""
    unit: int
    """What a unit of work costs (fits.unit_q64), jobs in service heeded."""


_Inside = tuple[int, RequestId, int, ModelId]
"""A job inside an engine: (domain time at which it began, request, work, model)."""


def machine(state: State, at: Place, unit: int, window_us: int, *, samples: int = 0, at_once: int = 1) -> Machine:
    """Return the engine of a model for which a unit of work is taken to cost `unit`; it works on `at_once` requests at a time.

    What other models that share the runtime have to do counts at their own measured price, else at this one's. `samples` are
    the measured runs of this very model that the price rests on: a running job is one more, of which is known that it takes as
    long as it did so far at least.
    """
    inside: list[_Inside] = []
    coming: list[tuple[ModelId, int]] = []
    room = at.room
    freed_us = room.freed_us if room is not None else 0
    for model, queue in zip(at.models, at.queues, strict=True):
        if queue is not None:
            freed_us = max(freed_us, queue.freed_us)
            inside += [(job.since_us, request, job.work, model) for request, job in queue.engine.items()]
        for way in at.ways if model == at.model else ways_to(state, owner_key(at.name, model)):
            uses = state.uses.get(way.over)
            if uses:
                _collect(state, uses, model, inside, coming)
    load_left = load_left_us(state, at, window_us) if room is not None and room.loading else 0
    if not inside and not coming:
        return Machine(load_left, unit)
    inside.sort()
    now_us = state.now_us
    elapsed = [now_us - max(inside[0][0], freed_us)] if inside else []
    elapsed += [now_us - job[0] for job in inside[1:at_once]]
    for (_, _, work, model), elapsed_us in zip(inside, elapsed, strict=False):
        if model == at.model and work:
            unit = _at_least(unit, (elapsed_us << 64) // work, samples)
    units = {at.model: unit}
    total = 0
    for model, work in coming:
        total += cost_us(_unit_of(state, at, model, units, window_us), work)
    for place, (_, _, work, model) in enumerate(inside):
        expected_us = cost_us(_unit_of(state, at, model, units, window_us), work)
        total += rest_us(expected_us, elapsed[place]) if place < at_once else expected_us
    return Machine(total // max(1, at_once) + load_left, unit)


def _at_least(unit: int, so_far: int, samples: int) -> int:
    """Return what a unit of work costs, where a running job has taken `so_far` for one already: it counts as one sample."""
    if so_far <= unit:
        return unit
    if not samples or not unit:
        return so_far
    return unit * fixed.exp_q32(fixed.ln_q32(so_far, unit) // (samples + 1)) >> 32


def _collect(
    state: State,
    uses: dict[RequestId, SlotUse],
    model: ModelId,
    inside: list[_Inside],
    coming: list[tuple[ModelId, int]],
) -> None:
    """Add what the engine has of what is out over one link, and what it has not begun."""
    for request, use in sorted(uses.items()):
        if slots.is_open(use, state.now_us):
            if use.started_us:
                inside.append((use.started_us, request, use.work, model))
            else:
                coming.append((model, use.work))


def _unit_of(state: State, at: Place, model: ModelId, units: dict[ModelId, int], window_us: int) -> int:
    """Return what a unit of work costs one of the models that share a runtime; `units` are those found before."""
    unit = units.get(model)
    if unit is None:
        fit = state.fits.get(owner_key(at.name, model))
        measured = fit.measured(state.now_us, window_us) if fit is not None else None
        unit = units[model] = unit_q64(measured.level) if measured is not None else units[at.model]
    return unit


def load_left_us(state: State, at: Place, window_us: int) -> int:
    """Return the rest of the load that is going on in a runtime: as long again as it is late, or took if none was measured.

    Loads of a model take nearly the same time again and again, so there is no least rest as for a job.
    """
    room = at.room
    if room is None or not room.loading:
        return 0
    key = owner_key(at.name, room.loading)
    elapsed_us = max(0, state.now_us - room.since_us)
    expected_us = load_us(state, key, window_us) or likely_load_us(state, key, key, window_us)
    return elapsed_us if expected_us is None else abs(expected_us - elapsed_us)


def turnaround_us(state: State, key: str) -> int:
    """Return how long a slot of a link stays empty between two requests: the median of what was measured."""
    traffic = state.traffic.get(key)
    if traffic is None or not traffic.turns_us:
        return TURNAROUND_US
    return sorted(traffic.turns_us)[len(traffic.turns_us) // 2]


# ---- what opening a switch wins --------------------------------------------------------------------------------------


class Switch(msgspec.Struct, frozen=True):
    """A model switch that a lease would open."""

    switch_us: int
    back_us: int
    job_us: int
    jobs: int
    """How many the helper would take."""
    saved_us: int
    """Job time that it saves."""
    sooner_us: int
    """Drain time that it saves."""
    few: bool
    """The burst is small: then the drain has to end sooner too, by the likely way back."""


def switch_gain_us(switch: Switch, rate_q64: int) -> int:
    """Return the job-microseconds that opening a switch wins: what it saves, less what it is expected to cost others.

    saved * exp(-rate (switch + job/2)) - w busy (back + job/2 + switch/2)(1 + rate (back + job)) - wear (switch + back), where
    `rate` is the helper's own arrivals and busy = 1 - exp(-rate * visit): the chance that own work comes during the visit.
    Nothing is won (0) where the saving is below the wear, or a small burst ends no sooner than the way back is likely to take.
    Source: rule `water`, docs/discussions/pricing.md.
    """
    there_and_back = switch.switch_us + switch.back_us
    wear_us = fixed.times(there_and_back, WEAR)
    visit_us = there_and_back + switch.jobs * switch.job_us
    if rate_q64:
        visit_us = min(visit_us, there_and_back + (1 << 64) // rate_q64)
    busy = fixed.ONE - fixed.exp_q32(-(rate_q64 * visit_us >> 32))
    if switch.saved_us < wear_us or (switch.few and switch.sooner_us < fixed.times(switch.back_us, busy)):
        return 0
    kept = fixed.exp_q32(-(rate_q64 * (switch.switch_us + switch.job_us // 2) >> 32))
    queueing = fixed.ONE + (rate_q64 * (switch.back_us + switch.job_us) >> 32)
    harm_us = fixed.times(switch.back_us + switch.job_us // 2 + switch.switch_us // 2, fixed.times(busy, queueing))
    gain_us = fixed.times(switch.saved_us, kept) - fixed.times(harm_us, OWN_WEIGHT) - wear_us
    return max(-GAIN_US_MAX, min(gain_us, GAIN_US_MAX))


def own_rate_q64(state: State, at: Place, idle_us: int) -> int:
    """Return the node's own arrivals per microsecond in a model's runtime, in Q64; the time since the newest counts as a gap.

    Half an arrival more and five seconds more keep the rate of a model that was seen once between zero and one. Where nothing
    ever came, it is the less likely the longer that lasts.
    """
    rate = 0
    for queue in at.queues:
        if queue is not None and queue.arrival_us:
            rate += _rate_q64(queue, state.now_us)
    return rate or (1 << 64) // (_UNSEEN_FACTOR * (max(0, idle_us) + _UNSEEN_US))


def _rate_q64(queue: Queue, now_us: int) -> int:
    known_us = sum(queue.gaps_us) + now_us - queue.arrival_us
    return ((2 * len(queue.gaps_us) + 1) << 63) // (known_us + _HALF_ARRIVAL_US)


# ---- slots -----------------------------------------------------------------------------------------------------------


def free_slots(state: State, way: Way, at: Place, depth: int) -> int:
    """Return how many slots the helper can give over this link: its depth less what others have out or may yet lend."""
    left = breaker.slots_left(state, at.key)
    free = depth if left is None else min(depth, left)
    if len(at.ways) > 1:
        for other in at.ways:
            if other is not way:
                free -= max(slots.count_open(state, other.over), _leased(state, other))
    return free


def is_claimed(state: State, at: Place) -> bool:
    """Tell whether somebody lends to another model of the same runtime, or may: the two would drive each other out."""
    if len(at.models) == 1:
        return False
    for sibling in at.models:
        if sibling == at.model:
            continue
        for other in ways_to(state, owner_key(at.name, sibling)):
            if _leased(state, other) or slots.count_open(state, other.over):
                return True
    return False


def _leased(state: State, way: Way) -> int:
    lease = state.leases.get(way.added.link)
    return lease.event.slots if lease is not None and is_live(state, lease) else 0

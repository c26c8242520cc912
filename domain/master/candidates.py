"""One link's helper as a plan sees it: whether it may be considered at all, and what it would cost."""

from collections.abc import Sequence

import msgspec

from domain.events import ModelInfo
from domain.ids import LinkId, NodeId
from domain.master import breaker, fits, pricing, reasons, rooms, slots
from domain.master.control import depth
from domain.master.fits import Backlog, FitRules, Measured, cost_us, unit_q64
from domain.master.links import Match, Way
from domain.master.pricing import Place
from domain.master.queue import Queue
from domain.master.state import Node, State, owner_key


class Candidate(msgspec.Struct, gc=False):
    """One link's helper as the plan sees it."""

    way: Way
    out: int
    turn_us: int
    """From a slot that falls free there to the next request in it."""
    at: Place | None = None
    """Where it is served; None where that is not known."""
    spare: int = 0
    """Slots that the helper can give to this owner at most."""
    info: ModelInfo | None = None
    sees: bool = False
    """It may have requests that hold an image."""
    window: int = 0
    """How many tokens a request may have to go there; 0 if that does not matter."""
    lendable: int = 0
    """How many of the held requests it may have: it sees if it has to, and has no window or their size is known."""
    code: str = ""
    source: str = ""
    samples: int = 0
    job_us: int = 0
    at_once: int = 1
    """How many of this owner's requests it works on at a time."""
    ready_us: int = 0
    """Until the helper could begin the first job, switch included."""
    cold: bool = False
    """It would have to switch models."""
    switch_us: int = 0
    back_us: int = 0
    idle_us: int = -1
    gain_us: int = 0
    quota: int = 0
    slots: int = 0
    probe: bool = False
    probe_in_us: int = -1

    @property
    def step_us(self) -> int:
        """How long from the end of one job to that of the next, while there are more."""
        return max(1, self.job_us // self.at_once)

    @property
    def first_answer_us(self) -> int:
        """When the helper would hand back a first job."""
        return self.ready_us + self.job_us

    def blocked(self, code: str) -> None:
        """Take a reason not to lend; of several the first in rank order stays."""
        if code and (not self.code or reasons.RANK[code] < reasons.RANK[self.code]):
            self.code = code


def look(state: State, way: Way, owner: ModelInfo | None, queue: Queue) -> Candidate:
    """Return the helper of a link, with the first reason in rank order why it cannot be considered, if there is one."""
    added = way.added
    name = added.helper
    candidate = Candidate(way, slots.count_open(state, way.over), pricing.turnaround_us(state, way.over))
    node = state.nodes.get(name)
    info = node.models.get(added.helper_model) if node is not None else None
    enrolled = state.control.roster.get(name)
    if enrolled is not None and enrolled.retired:
        candidate.code = reasons.NODE_RETIRED
    elif node is None or info is None:
        candidate.code = reasons.MODEL_UNKNOWN
    else:
        at = candidate.at = pricing.place_of(state, way.helper, name, added.helper_model, info)
        match = way.match(owner, info)
        candidate.info = info
        _take_match(candidate, match, queue)
        busy = rooms.own_work(at.queues)
        candidate.spare = pricing.free_slots(state, way, at, depth(state.control, node.depth))
        candidate.idle_us = rooms.idle_us(state, node.since_us, at.room, at.queues, busy=busy)
        candidate.code = match.code or _unfit(candidate, queue) or _not_now(state, candidate, node, at, busy=busy)
    return candidate


def _take_match(candidate: Candidate, match: Match, queue: Queue) -> None:
    """Note what the helper's model may have of what is held."""
    candidate.sees, candidate.window = match.sees, match.window
    unsized = queue.unsized if match.window else 0
    if match.sees:
        candidate.lendable = queue.lendable - unsized
    else:
        candidate.lendable = queue.lendable - queue.seeing - (unsized - queue.unsized_seeing if match.window else 0)


def claim(rivals: Sequence[Candidate]) -> None:
    """Leave one of several models that share a runtime: to lend to two of them would drive each out for the other.

    The loaded one before those that would have to be loaded, a grant before a probe, then the one that answers first.
    """
    sharing = [(rival, rival.info.runtime) for rival in rivals if rival.info is not None and rival.info.runtime]
    if len(sharing) < 2:
        return
    claims: dict[tuple[NodeId, str], Candidate] = {}
    for rival, runtime in sorted(sharing, key=lambda one: _claim(one[0])):
        if claims.setdefault((rival.way.added.helper, runtime), rival) is not rival:
            rival.code, rival.slots, rival.quota, rival.probe = reasons.HELPER_CLAIMED, 0, 0, False


def _claim(rival: Candidate) -> tuple[bool, bool, int, LinkId]:
    return rival.probe, rival.cold, rival.ready_us + rival.job_us, rival.way.added.link


def _unfit(candidate: Candidate, queue: Queue) -> str:
    """Return why the helper's model cannot stand in for the owner's for what is held."""
    if not queue.held:
        return ""
    if queue.lendable and queue.seeing == queue.lendable and not candidate.sees:
        return reasons.NO_VISION
    if candidate.window and queue.sized and queue.held_tokens // queue.sized > candidate.window:
        return reasons.CONTEXT_TOO_SMALL
    return reasons.SIZE_UNKNOWN if queue.lendable and not candidate.lendable else ""


def _not_now(state: State, candidate: Candidate, node: Node, at: Place, *, busy: bool) -> str:
    """Return why the helper takes nothing at the moment; `busy`: it has work of its own."""
    if node.silent_us:
        return reasons.NODE_SILENT
    if node.incomplete or node.late:
        return reasons.HISTORY_INCOMPLETE
    comes_back = at.room is not None and bool(at.room.loading) and at.room.cause == rooms.RESTORE
    if busy or node.draining or comes_back or at.model in node.not_accepting:
        return reasons.HELPER_NOT_ACCEPTING
    if at.key in state.breakers and (breaker.is_open(state, at.key) or breaker.yields(state, candidate.way, at.ways)):
        return reasons.QUARANTINED
    return reasons.HELPER_CLAIMED if candidate.spare <= 0 or pricing.is_claimed(state, at) else ""


def price(
    state: State, candidate: Candidate, owner: Measured | None, rules: FitRules, size: int, backlog: Backlog
) -> None:
    """Fill in what a job of `size` would cost at the helper; sets its code where that is not known or not allowed.

    `owner` is what was measured of the owner's model, which stands in for missing samples; None if it has no price. What was
    measured of the helper's counts if anything of the `backlog` is of a size that it was measured at.
    """
    at, info = candidate.at, candidate.info
    if at is None or info is None:
        return
    fit = state.fits.get(at.key)
    own = fit.measured(state.now_us, rules.window_us) if fit is not None else None
    if own is not None and own.priced(backlog, rules) is None:
        own = None
    cost = fits.compared(own, owner, rules)
    at_once = pricing.served_at_once(state, state.nodes.get(at.name), info)
    candidate.at_once = max(1, min(at_once, candidate.spare))
    if cost is None:
        candidate.blocked(reasons.SERVICE_UNPRICED)
        machine = pricing.machine(state, at, 0, rules.window_us, at_once=at_once)
        candidate.ready_us = machine.free_us + candidate.turn_us
    else:
        candidate.source, candidate.samples = cost.source, cost.samples
        unit = unit_q64(cost.log)
        machine = pricing.machine(state, at, unit, rules.window_us, samples=cost.samples, at_once=at_once)
        candidate.ready_us = machine.free_us + candidate.turn_us
        candidate.job_us = cost_us(machine.unit, size)
    if not info.ready:
        _price_switch(state, candidate, at, rules.window_us)


def _price_switch(state: State, candidate: Candidate, at: Place, window_us: int) -> None:
    if at.room is not None and at.room.loading == at.model:
        candidate.switch_us = pricing.load_left_us(state, at, window_us)  # part of its ready time already
        return
    candidate.cold = True
    if not candidate.way.added.load_if_unloaded:
        candidate.blocked(reasons.LOAD_FORBIDDEN)
        return
    load_us = pricing.load_us(state, at.key, window_us)
    if load_us is None:
        candidate.blocked(reasons.SWITCH_UNPRICED)
    else:
        candidate.switch_us = load_us
        candidate.ready_us += load_us
    driven_out = rooms.goes_back_to(at.room, at.model) if at.room is not None else rooms.NONE
    if driven_out:
        back_us = pricing.load_us(state, owner_key(at.name, driven_out), window_us)
        if back_us is None:
            candidate.blocked(reasons.RESTORE_UNPRICED)
        else:
            candidate.back_us = back_us


def may_be_lent(state: State, candidate: Candidate) -> int:
    """Return how many slots the helper may have at once whatever it would be worth: one after a failed lend."""
    if candidate.at is None:
        return 0
    return 1 if breaker.has_failed(state, candidate.way, candidate.at.ways) else candidate.spare

"""One link's helper as a plan sees it: whether it may be considered at all, and what it would cost."""

from collections.abc import Sequence

import msgspec

from domain.catalogue.eligibility import VISION, ineligible
from domain.events import LinkAdded, ModelInfo
from domain.ids import LinkId, NodeId
from domain.master import breaker, fits, pricing, reasons, rooms, slots
from domain.master.control import depth
from domain.master.fits import Fit, FitRules, cost_us, unit_q64
from domain.master.pricing import Place
from domain.master.queue import Queue
from domain.master.state import Node, State, owner_key


class Candidate(msgspec.Struct):
    """One link's helper as the plan sees it."""

    added: LinkAdded
    key: str
    """Of the helper's model."""
    out: int
    at: Place | None = None
    """Where it is served; None where that is not known."""
    spare: int = 0
    """Slots that the helper can give to this owner at most."""
    info: ModelInfo | None = None
    code: str = ""
    source: str = ""
    samples: int = 0
    job_us: int = 0
    ready_us: int = 0
    """Until the helper could begin the first job, switch included."""
    turn_us: int = pricing.TURNAROUND_US
    """From a slot that falls free there to the next request in it."""
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
    def first_answer_us(self) -> int:
        """When the helper would hand back a first job."""
        return self.ready_us + self.job_us

    @property
    def sees(self) -> bool:
        """Whether it may have requests that hold an image."""
        return self.info is not None and VISION in self.info.capabilities

    @property
    def window(self) -> int:
        """How many tokens a request may have to go there; 0 if that does not matter."""
        return self.info.context if self.info is not None and self.info.lane == "text" else 0

    def lendable(self, queue: Queue) -> int:
        """Return how many of the held requests it may have: it sees if it has to, and has no window or their size is known."""
        unsized = queue.unsized if self.window else 0
        if self.sees:
            return queue.lendable - unsized
        return queue.lendable - queue.seeing - (unsized - queue.unsized_seeing if self.window else 0)

    def blocked(self, code: str) -> None:
        """Take a reason not to lend; of several the first in rank order stays."""
        if code and (not self.code or reasons.RANK[code] < reasons.RANK[self.code]):
            self.code = code


def look(state: State, link: LinkId, owner: ModelInfo | None, queue: Queue) -> Candidate:
    """Return the helper of a link, with the first reason in rank order why it cannot be considered, if there is one."""
    added = state.control.links[link]
    over = slots.key_of(added)
    candidate = Candidate(
        added=added,
        key=owner_key(added.helper, added.helper_model),
        out=slots.count_open(state, over),
        turn_us=pricing.turnaround_us(state, over),
    )
    enrolled = state.control.roster.get(added.helper)
    node = state.nodes.get(added.helper)
    info = node.models.get(added.helper_model) if node is not None else None
    if enrolled is not None and enrolled.retired:
        candidate.code = reasons.NODE_RETIRED
    elif node is None or info is None:
        candidate.code = reasons.MODEL_UNKNOWN
    else:
        at = candidate.at = pricing.place_of(state, added.helper, node, added.helper_model)
        candidate.info = info
        candidate.spare = pricing.free_slots(state, added, at, depth(state.control, node.depth))
        candidate.idle_us = rooms.idle_us(state, at.name, node, at.room, at.models)
        candidate.code = _unfit(candidate, info, owner, queue) or _not_now(state, candidate, node, at)
    return candidate


def claim(rivals: Sequence[Candidate]) -> None:
    """Leave one of several models that share a runtime: to lend to two of them would drive each out for the other.

    The loaded one before those that would have to be loaded, a grant before a probe, then the one that answers first.
    """
    claims: dict[tuple[NodeId, str], Candidate] = {}
    for rival in sorted(rivals, key=lambda one: (one.probe, one.cold, one.first_answer_us, one.added.link)):
        runtime = rival.info.runtime if rival.info is not None else ""
        if runtime and claims.setdefault((rival.added.helper, runtime), rival) is not rival:
            rival.code, rival.slots, rival.quota, rival.probe = reasons.HELPER_CLAIMED, 0, 0, False


def _unfit(candidate: Candidate, info: ModelInfo, owner: ModelInfo | None, queue: Queue) -> str:
    """Return why the helper's model cannot stand in for the owner's, or not for what is held."""
    code = ineligible(owner, info) if owner is not None else ""
    if code or not queue.held:
        return code
    if queue.lendable and queue.seeing == queue.lendable and not candidate.sees:
        return reasons.NO_VISION
    if candidate.window and queue.sized and queue.held_tokens // queue.sized > candidate.window:
        return reasons.CONTEXT_TOO_SMALL
    return reasons.SIZE_UNKNOWN if queue.lendable and not candidate.lendable(queue) else ""


def _not_now(state: State, candidate: Candidate, node: Node, at: Place) -> str:
    """Return why the helper takes nothing at the moment."""
    if node.silent_us:
        return reasons.NODE_SILENT
    if node.incomplete or node.late:
        return reasons.HISTORY_INCOMPLETE
    comes_back = at.room is not None and bool(at.room.loading) and at.room.cause == rooms.RESTORE
    refuses = node.draining or comes_back or at.model in node.not_accepting
    if refuses or rooms.own_work(state, at.name, at.models):
        return reasons.HELPER_NOT_ACCEPTING
    if breaker.is_open(state, candidate.key) or breaker.yields(state, candidate.key, candidate.added, at.links):
        return reasons.QUARANTINED
    return reasons.HELPER_CLAIMED if candidate.spare <= 0 or pricing.is_claimed(state, at) else ""


def price(state: State, candidate: Candidate, owner: Fit | None, rules: FitRules, size: int) -> None:
    """Fill in what a job of `size` would cost at the helper; sets its code where that is not known or not allowed.

    `owner` is what was measured of the owner's model, which stands in for missing samples; None if it has no price.
    """
    at, info = candidate.at, candidate.info
    if at is None or info is None:
        return
    fit = state.fits.get(candidate.key)
    cost = fits.price(fit, owner, rules, state.now_us, size)
    unit = samples = 0
    if cost is None:
        candidate.blocked(reasons.SERVICE_UNPRICED)
    else:
        candidate.source, candidate.samples = cost.source, cost.samples
        unit, samples = unit_q64(cost.log), cost.samples
    machine = pricing.machine(state, at, unit, rules.window_us, samples=samples)
    candidate.ready_us = machine.free_us + candidate.turn_us
    if cost is not None:
        candidate.job_us = cost_us(machine.unit, size)
    if not info.ready:
        _price_switch(state, candidate, at, rules.window_us)


def _price_switch(state: State, candidate: Candidate, at: Place, window_us: int) -> None:
    if at.room is not None and at.room.loading == at.model:
        candidate.switch_us = pricing.load_left_us(state, at, window_us)  # part of its ready time already
        return
    candidate.cold = True
    if not candidate.added.load_if_unloaded:
        candidate.blocked(reasons.LOAD_FORBIDDEN)
        return
    load_us = pricing.load_us(state, candidate.key, window_us)
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
    return 1 if breaker.has_failed(state, candidate.added, candidate.at.links) else candidate.spare

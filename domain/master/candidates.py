"""One link's helper as a plan sees it: whether it may be considered at all, and what it would cost."""

import msgspec

from domain.catalogue.eligibility import VISION, ineligible
from domain.events import LinkAdded, ModelInfo
from domain.ids import LinkId, NodeId
from domain.master import breaker, pricing, reasons, rooms, slots
from domain.master.fits import cost_us, unit_q64
from domain.master.state import Node, Queue, State, owner_key


class Candidate(msgspec.Struct):
    """One link's helper as the plan sees it."""

    added: LinkAdded
    key: str
    """Of the helper's model."""
    out: int
    spare: int
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

    def lendable(self, queue: Queue) -> int:
        """Return how many of the held requests it may have."""
        return queue.lendable if self.sees else queue.lendable - queue.seeing

    def blocked(self, code: str) -> None:
        """Take a reason not to lend; of several the first in rank order stays."""
        if code and (not self.code or reasons.RANK[code] < reasons.RANK[self.code]):
            self.code = code


def look(state: State, link: LinkId, owner: ModelInfo | None, queue: Queue) -> Candidate:
    """Return the helper of a link, with the first reason in rank order why it cannot be considered, if there is one."""
    added = state.control.links[link]
    key = owner_key(added.helper, added.helper_model)
    node = state.nodes.get(added.helper)
    candidate = Candidate(
        added=added,
        key=key,
        out=slots.count_open(state, slots.key_of(added)),
        spare=pricing.free_slots(state, added, node.depth) if node is not None else 0,
        info=node.models.get(added.helper_model) if node is not None else None,
    )
    enrolled = state.control.roster.get(added.helper)
    if enrolled is not None and enrolled.retired:
        candidate.code = reasons.NODE_RETIRED
    elif node is None or candidate.info is None:
        candidate.code = reasons.MODEL_UNKNOWN
    else:
        candidate.code = _unfit(candidate, candidate.info, owner, queue) or _not_now(state, candidate, node)
        candidate.idle_us = rooms.idle_us(state, added.helper, node, added.helper_model)
        candidate.turn_us = pricing.turnaround_us(state, slots.key_of(added))
    return candidate


def _unfit(candidate: Candidate, info: ModelInfo, owner: ModelInfo | None, queue: Queue) -> str:
    """Return why the helper's model cannot stand in for the owner's, or not for what is held."""
    code = ineligible(owner, info) if owner is not None else ""
    if code or not queue.held:
        return code
    if queue.lendable and not candidate.lendable(queue):
        return reasons.NO_VISION
    if info.context and queue.held_tokens // len(queue.held) > info.context:
        return reasons.CONTEXT_TOO_SMALL
    if info.context and info.lane == "text" and not queue.held_tokens:
        return reasons.SIZE_UNKNOWN
    return ""


def _not_now(state: State, candidate: Candidate, node: Node) -> str:
    """Return why the helper takes nothing at the moment."""
    added = candidate.added
    if node.silent_us:
        return reasons.NODE_SILENT
    if node.incomplete or node.late:
        return reasons.HISTORY_INCOMPLETE
    room = rooms.room_of(node, added.helper_model)
    models = room.models if room is not None else [added.helper_model]
    coming_back = room is not None and bool(room.loading) and room.cause == rooms.RESTORE
    refuses = node.draining or coming_back or added.helper_model in node.not_accepting
    if refuses or rooms.own_work(state, added.helper, models):
        return reasons.HELPER_NOT_ACCEPTING
    if breaker.is_open(state, candidate.key):
        return reasons.QUARANTINED
    claimed = candidate.spare <= 0 or pricing.is_claimed(state, added.helper, node, added.helper_model)
    return reasons.HELPER_CLAIMED if claimed else ""


def price(state: State, candidate: Candidate, owner: str, size: int) -> None:
    """Fill in what a job of `size` would cost at the helper; sets its code where that is not known or not allowed.

    `owner` is the key of the owner's model, whose samples stand in for missing ones; empty if it has none.
    """
    added, info = candidate.added, candidate.info
    if info is None:
        return
    cost = pricing.helper_price(state, candidate.key, owner, size)
    unit = 0
    if cost is None:
        candidate.blocked(reasons.SERVICE_UNPRICED)
    else:
        candidate.source, candidate.samples = cost.source, cost.samples
        unit = unit_q64(cost.log)
    machine = pricing.machine(state, candidate.key, unit)
    candidate.ready_us = machine.free_us + candidate.turn_us
    if cost is not None:
        candidate.job_us = cost_us(machine.unit, size)
    _price_switch(state, candidate, state.nodes[added.helper], info)


def _price_switch(state: State, candidate: Candidate, node: Node, info: ModelInfo) -> None:
    added = candidate.added
    room = rooms.room_of(node, info.id)
    if info.ready:
        return
    if room is not None and room.loading == info.id:
        candidate.switch_us = pricing.load_left_us(state, added.helper, room)  # part of its ready time already
        return
    candidate.cold = True
    if not added.load_if_unloaded:
        candidate.blocked(reasons.LOAD_FORBIDDEN)
        return
    load_us = pricing.load_us(state, candidate.key)
    if load_us is None:
        candidate.blocked(reasons.SWITCH_UNPRICED)
    else:
        candidate.switch_us = load_us
        candidate.ready_us += load_us
    driven_out = rooms.goes_back_to(room, info.id) if room is not None else rooms.NONE
    if driven_out:
        back_us = pricing.load_us(state, owner_key(NodeId(added.helper), driven_out))
        if back_us is None:
            candidate.blocked(reasons.RESTORE_UNPRICED)
        else:
            candidate.back_us = back_us


def may_be_lent(state: State, candidate: Candidate) -> int:
    """Return how many slots the helper may have at once whatever it would be worth: one after a failed lend."""
    failures, _ = breaker.failures_of(state, candidate.key)
    traffic = state.traffic.get(slots.key_of(candidate.added))
    return 1 if failures or (traffic is not None and traffic.failures) else candidate.spare

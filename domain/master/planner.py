"""The lending rule `water`: which helpers take how many of one owner's held requests, and why not the others.

Held requests are equal jobs of their mean work; owner and helpers are machines with a ready time and a time per job. The n
earliest completion slots over all of them (domain.master.slotting) say how many each gets. A helper that would have to switch
models is opened only if that wins more job-time than it costs, its own requests' expected waits included.
"""

import msgspec

from domain import fixed
from domain.events import LinkAdded, OwnerPlanned, Verdict
from domain.ids import LinkId
from domain.master import pricing, reasons, slots
from domain.master.control import setting
from domain.master.fits import Price, cost_us, unit_q64
from domain.master.pricing import GAIN_US_MAX
from domain.master.slotting import Machine, earliest_slots, saved_by_each
from domain.master.state import Queue, State, owner_key, split_key

VERDICTS_MAX = 16
FEW_LENDABLE = 4
"""With fewer lendable requests than this, a switch must also shorten the drain by its way back."""


class Candidate(msgspec.Struct):
    """One link's helper as the plan sees it."""

    added: LinkAdded
    out: int
    room: int
    """Slots that the helper can give to this owner at most."""
    code: str = ""
    source: str = ""
    job_us: int = 0
    ready_us: int = 0
    """Until the helper could begin the first job, switch included."""
    switch_us: int = 0
    back_us: int = 0
    gain_us: int = 0
    quota: int = 0
    slots: int = 0

    @property
    def first_answer_us(self) -> int:
        """When the helper would hand back a first job."""
        return self.ready_us + self.job_us


class Plan(msgspec.Struct):
    """What follows for one owner: the row, and the slots that each link should have."""

    row: OwnerPlanned
    grants: dict[LinkId, Candidate]
    """Links that get a lease."""
    refusals: dict[LinkId, str]
    """Links that get none, with the code."""


def plan(state: State, key: str, trigger: str) -> Plan:
    """Return what `water` gives to the owner queue `key`. Pure: reads the state, changes nothing."""
    queue = state.queues.get(key) or Queue()
    candidates = [_candidate(state, link) for link in state.control.by_owner.get(key, ())]
    size = queue.held_work // len(queue.held) if queue.held else 0
    price = pricing.owner_price(state, key, size)
    blocked = _owner_blocked(state, key, queue, price)
    drain_us = lent_us = job_us = -1
    if price is not None and queue.held:
        at_once, unit = _engine_slots(state, key), unit_q64(price.log)
        free = pricing.engine_free_us(queue, unit, state.now_us, at_once)
        job_us = max(1, cost_us(unit, size) // at_once)
        owner: Machine = (free, job_us)
        drain_us = free + job_us * len(queue.held)
        if not blocked:
            for candidate in candidates:
                _price(state, candidate, size, queue)
            lent_us = _pour(state, owner, candidates, queue)
    if blocked:
        for candidate in candidates:
            candidate.code = candidate.code or blocked
    return _result(key, trigger, queue, candidates, (drain_us, lent_us, job_us))


def _engine_slots(state: State, key: str) -> int:
    node, model = split_key(key)
    known = state.nodes.get(node)
    info = known.models.get(model) if known is not None else None
    return max(1, info.slots) if info is not None else 1


def _owner_blocked(state: State, key: str, queue: Queue, price: Price | None) -> str:
    node, _ = split_key(key)
    known = state.nodes.get(node)
    if known is None or known.incomplete or known.late:
        return reasons.HISTORY_INCOMPLETE
    enrolled = state.control.roster.get(node)
    if enrolled is not None and enrolled.retired:
        return reasons.NODE_RETIRED
    if known.silent_us:
        return reasons.NODE_SILENT
    if not queue.lendable:
        return reasons.NOTHING_LENDABLE
    return reasons.OWNER_UNPRICED if price is None else ""


def _candidate(state: State, link: LinkId) -> Candidate:
    added = state.control.links[link]
    node = state.nodes.get(added.helper)
    candidate = Candidate(
        added=added,
        out=slots.count_open(state, slots.key_of(added)),
        room=pricing.free_slots(state, added, node.depth) if node is not None else 0,
    )
    candidate.code = _ineligible(state, candidate)
    return candidate


def _ineligible(state: State, candidate: Candidate) -> str:
    """Return why the helper cannot be considered at all; the first reason in rank order."""
    added = candidate.added
    node = state.nodes.get(added.helper)
    enrolled = state.control.roster.get(added.helper)
    if enrolled is not None and enrolled.retired:
        return reasons.NODE_RETIRED
    if node is None or added.helper_model not in node.models:
        return reasons.MODEL_UNKNOWN
    if node.silent_us:
        return reasons.NODE_SILENT
    if node.incomplete or node.late:
        return reasons.HISTORY_INCOMPLETE
    helper_queue = state.queues.get(owner_key(added.helper, added.helper_model))
    own_work = helper_queue is not None and bool(helper_queue.held)
    if own_work or node.draining or added.helper_model in node.not_accepting:
        return reasons.HELPER_NOT_ACCEPTING
    return reasons.HELPER_CLAIMED if candidate.room <= 0 else ""


def _price(state: State, candidate: Candidate, size: int, queue: Queue) -> None:
    """Fill in what the helper would cost; sets its code where that is not known or not allowed."""
    if candidate.code == reasons.MODEL_UNKNOWN:
        return
    added = candidate.added
    helper_key = owner_key(added.helper, added.helper_model)
    price = pricing.helper_price(state, helper_key, owner_key(added.owner, added.owner_model), size)
    info = state.nodes[added.helper].models.get(added.helper_model) if added.helper in state.nodes else None
    if price is None or info is None:
        candidate.code = candidate.code or reasons.SERVICE_UNPRICED
        return
    candidate.source = price.source
    unit = unit_q64(price.log)
    candidate.job_us = cost_us(unit, size)
    candidate.ready_us = pricing.helper_free_us(state, helper_key, unit) + pricing.TURNAROUND_US
    if info.context and queue.held_tokens // len(queue.held) > info.context:
        candidate.code = candidate.code or reasons.CONTEXT_TOO_SMALL
    if info.ready:
        return
    if not added.load_if_unloaded:
        candidate.code = candidate.code or reasons.LOAD_FORBIDDEN
        return
    fit = state.fits.get(helper_key)
    window_us = setting(state.control, "scheduling_sample_window")
    load_us = fit.load_us(state.now_us, window_us) if fit is not None else None
    if load_us is None:
        candidate.code = candidate.code or reasons.SWITCH_UNPRICED
        return
    candidate.switch_us = load_us
    candidate.ready_us += load_us


def _pour(state: State, owner: Machine, candidates: list[Candidate], queue: Queue) -> int:
    """Give each candidate its quota and slots; return the drain time with them, or -1 if none gets any."""
    jobs = len(queue.held)
    open_ones = [c for c in candidates if not c.code and not c.switch_us]
    cold_ones = sorted(
        (c for c in candidates if not c.code and c.switch_us), key=lambda c: (c.first_answer_us, c.added.link)
    )
    machines = [owner] + [(c.ready_us, c.job_us) for c in open_ones]
    counts, last_us, sum_us = earliest_slots(machines, jobs)
    for candidate in cold_ones:
        if candidate.first_answer_us > last_us:
            candidate.code = reasons.COST_REJECTED
            continue
        wider = [*machines, (candidate.ready_us, candidate.job_us)]
        counts2, last2_us, sum2_us = earliest_slots(wider, jobs)
        if not _opens(state, candidate, counts2[-1], (sum_us - sum2_us, last_us - last2_us), queue.lendable):
            candidate.code = reasons.COST_REJECTED
            continue
        machines, counts, last_us, sum_us = wider, counts2, last2_us, sum2_us
        open_ones.append(candidate)
    saved = saved_by_each(machines, counts)
    for place, candidate in enumerate(open_ones, start=1):
        candidate.quota = counts[place]
        if candidate.quota:
            _grant(candidate, owner[1], queue)
            candidate.gain_us = candidate.gain_us or min(saved[place], GAIN_US_MAX)
        else:
            alone_us = owner[0] + owner[1] * jobs
            candidate.code = reasons.COST_REJECTED if candidate.first_answer_us >= alone_us else reasons.OUTRANKED
    return last_us if any(c.slots for c in open_ones) else -1


def _opens(state: State, candidate: Candidate, jobs: int, saved: tuple[int, int], lendable: int) -> bool:
    """Tell whether opening a model switch pays; `saved` is (job time, drain time)."""
    if not jobs:
        return False
    job_time_us, drain_us = saved
    switch = pricing.Switch(candidate.switch_us, candidate.back_us, candidate.job_us)
    if job_time_us < fixed.times(candidate.switch_us + candidate.back_us, pricing.WEAR):
        return False
    if drain_us < candidate.back_us and lendable < FEW_LENDABLE:
        return False
    helper_key = owner_key(candidate.added.helper, candidate.added.helper_model)
    candidate.gain_us = pricing.switch_gain_us(state, helper_key, switch, jobs, job_time_us)
    return candidate.gain_us > 0


def _grant(candidate: Candidate, owner_job_us: int, queue: Queue) -> None:
    """Set the slots: enough to cover the turnaround, two where the helper is at least as fast, never more than it can give."""
    tenth = candidate.job_us // 10
    wanted = 1 + max(0, fixed.ceil_div(pricing.TURNAROUND_US - tenth, candidate.job_us))
    if candidate.job_us <= owner_job_us:
        wanted = max(wanted, 2)
    candidate.slots = min(wanted, min(candidate.quota, queue.lendable) + candidate.out, candidate.room)


def _result(key: str, trigger: str, queue: Queue, candidates: list[Candidate], times_us: tuple[int, int, int]) -> Plan:
    node, model = split_key(key)
    ranked = sorted(
        candidates, key=lambda c: (not c.slots, reasons.RANK.get(c.code, -1), c.first_answer_us, c.added.link)
    )
    left_out: dict[str, int] = {}
    for candidate in ranked[VERDICTS_MAX:]:
        code = candidate.code or "granted"
        left_out[code] = left_out.get(code, 0) + 1
    row = OwnerPlanned(
        owner=node,
        model=model,
        trigger=trigger,
        held=len(queue.held),
        lendable=queue.lendable,
        in_engine=len(queue.engine),
        out=sum(c.out for c in candidates),
        drain_us=times_us[0],
        lent_drain_us=times_us[1],
        owner_job_us=times_us[2],
        verdicts=tuple(_verdict(candidate) for candidate in ranked[:VERDICTS_MAX]),
        left_out=tuple(sorted(left_out.items())),
    )
    return Plan(
        row,
        {c.added.link: c for c in candidates if c.slots},
        {c.added.link: c.code for c in candidates if not c.slots},
    )


def _verdict(candidate: Candidate) -> Verdict:
    return Verdict(
        helper=candidate.added.helper,
        link=candidate.added.link,
        outcome="granted" if candidate.slots else "skipped",
        code=candidate.code,
        slots=candidate.slots,
        first_answer_us=candidate.first_answer_us,
        job_us=candidate.job_us,
        switch_us=candidate.switch_us,
        back_us=candidate.back_us,
        gain_us=candidate.gain_us,
        source=candidate.source,
        out=candidate.out,
        quota=candidate.quota,
    )

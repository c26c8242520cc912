"""The lending rule `water`: which helpers take how many of one owner's held requests, and why not the others.

Held requests are equal jobs of their mean work; owner and helpers are machines with a ready time and a time per job. The n
earliest completion slots over all of them (domain.master.slotting) say how many each gets. A helper that would have to switch
models is opened only if that wins more job-time than it costs, its own requests' expected waits included. Who was not chosen and
is not measured may get a probe (domain.master.probes).
"""

from collections.abc import Iterator
from functools import partial

import msgspec

from domain.events import ModelInfo, OwnerPlanned, Verdict
from domain.ids import LinkId, ModelId, NodeId
from domain.master import candidates, fits, pricing, probes, reasons
from domain.master.candidates import Candidate
from domain.master.control import lane_rules
from domain.master.fits import Backlog, FitRules, Measured, cost_us, unit_q64
from domain.master.links import ways_from
from domain.master.pricing import GAIN_US_MAX
from domain.master.queue import Queue
from domain.master.slotting import Machine, earliest_slots, saved_by_each
from domain.master.state import Node, State, split_key

VERDICTS_MAX = 16
FEW_LENDABLE = 4
"""With fewer lendable requests than this, a switch must also shorten the drain by its likely way back."""


class Plan(msgspec.Struct):
    """What follows for one owner: the row, and the slots that each link should have."""

    row: OwnerPlanned
    grants: dict[LinkId, Candidate]
    """Links that get a lease, probes among them."""
    refusals: dict[LinkId, Candidate]
    """Links that get none; the code says why."""
    work: int
    """Mean work of what is held."""
    owner_job_us: int
    """How long that takes at the owner, beside whatever its engine works on at the same time; 0 if it has no price."""


def plan(state: State, key: str, trigger: str) -> Plan:
    """Return what `water` gives to the owner queue `key`. Pure: reads the state, changes nothing."""
    queue = state.queues.get(key) or Queue()
    name, model = split_key(key)
    node = state.nodes.get(name)
    info = node.models.get(model) if node is not None else None
    found = [candidates.look(state, way, info, queue) for way in ways_from(state.control, key)]
    backlog = Backlog(queue.held_work // len(queue.held) if queue.held else 0, partial(_works, queue))
    rules = lane_rules(state.control, info.lane if info is not None else "text")
    measured, size = _owner_measured(state, key, backlog, rules)
    price = fits.compared(measured, None, rules)
    blocked = _owner_blocked(state, name, node, queue)
    drain_us = lent_us = job_us = -1
    whole_us = 0
    end_us: int | None = None
    if price is not None and queue.held:
        at_once = pricing.served_at_once(state, node, info)
        owner = _owner_machine(state, key, info, price, size, rules.window_us, at_once)
        job_us, whole_us = owner[1], owner[1] * at_once
        drain_us = owner[0] + job_us * len(queue.held)
        if not blocked:
            for candidate in found:
                candidates.price(state, candidate, measured, rules, size, backlog)
            candidates.claim([candidate for candidate in found if not candidate.code])
            lent_us, end_us = _pour(state, owner, found, queue)
    elif not blocked:
        for candidate in found:
            candidates.price(state, candidate, None, rules, size, backlog)
            candidate.blocked(reasons.OWNER_UNPRICED)
    if not blocked:
        for candidate in found:
            if not candidate.slots:
                probes.consider(state, candidate, key, end_us)
        candidates.claim([candidate for candidate in found if candidate.slots])
    for candidate in found:
        candidate.blocked(blocked)
    return _result((name, model), trigger, queue, found, (drain_us, lent_us, job_us, size), whole_us)


def _works(queue: Queue) -> Iterator[int]:
    return (job.work for job in queue.held.values())


def _owner_measured(state: State, key: str, backlog: Backlog, rules: FitRules) -> tuple[Measured | None, int]:
    """Return what prices the owner's backlog, None if nothing does, and the work that each of its requests is taken for."""
    fit = state.fits.get(key)
    measured = fit.measured(state.now_us, rules.window_us) if fit is not None else None
    size = measured.priced(backlog, rules) if measured is not None else None
    return (None, backlog.mean) if size is None else (measured, size)


def _owner_machine(
    state: State, key: str, info: ModelInfo | None, price: fits.Price, size: int, window_us: int, at_once: int
) -> Machine:
    """Return the owner as a machine; a model that is neither in nor coming has to be loaded first."""
    name, model = split_key(key)
    at = pricing.place_of(state, key, name, model, info)
    machine = pricing.machine(state, at, unit_q64(price.log), window_us, samples=price.samples, at_once=at_once)
    free_us = machine.free_us
    if info is not None and not info.ready and (at.room is None or at.room.loading != model):
        free_us += pricing.load_us(state, key, window_us) or 0
    return free_us, max(1, cost_us(machine.unit, size) // at_once)


def _owner_blocked(state: State, name: NodeId, node: Node | None, queue: Queue) -> str:
    enrolled = state.control.roster.get(name)
    if enrolled is not None and enrolled.retired:
        return reasons.NODE_RETIRED
    if node is not None and node.silent_us:
        return reasons.NODE_SILENT
    if node is None or node.incomplete or node.late:
        return reasons.HISTORY_INCOMPLETE
    return "" if queue.lendable else reasons.NOTHING_LENDABLE


def _pour(state: State, owner: Machine, found: list[Candidate], queue: Queue) -> tuple[int, int]:
    """Give each candidate its quota and slots; return the drain time with them, -1 if none gets any, and when it ends."""
    jobs = len(queue.held)
    open_ones = [c for c in found if not c.code and not c.cold]
    cold_ones = sorted((c for c in found if not c.code and c.cold), key=lambda c: (c.first_answer_us, c.way.added.link))
    machines = [owner] + [(c.ready_us, c.step_us) for c in open_ones]
    counts, last_us, sum_us = earliest_slots(machines, jobs)
    for candidate in cold_ones:
        if candidate.first_answer_us > last_us:
            candidate.code = reasons.COST_REJECTED
            continue
        wider = [*machines, (candidate.ready_us, candidate.step_us)]
        counts2, last2_us, sum2_us = earliest_slots(wider, jobs)
        candidate.code = _opens(state, candidate, counts2[-1], (sum_us - sum2_us, last_us - last2_us), queue)
        if not candidate.code:
            machines, counts, last_us, sum_us = wider, counts2, last2_us, sum2_us
            open_ones.append(candidate)
    saved = saved_by_each(machines, counts)
    for place, candidate in enumerate(open_ones, start=1):
        candidate.quota = counts[place]
        if candidate.quota:
            _grant(state, candidate, owner[1])
            candidate.gain_us = candidate.gain_us or min(saved[place], GAIN_US_MAX)
        else:
            alone_us = owner[0] + owner[1] * jobs
            candidate.code = reasons.COST_REJECTED if candidate.first_answer_us >= alone_us else reasons.OUTRANKED
    return last_us if any(c.slots for c in open_ones) else -1, last_us


def _opens(state: State, candidate: Candidate, jobs: int, saved: tuple[int, int], queue: Queue) -> str:
    """Return why opening a model switch does not pay, empty if it does; `saved` is (job time, drain time)."""
    if not jobs:
        return reasons.COST_REJECTED
    switch = pricing.Switch(
        switch_us=candidate.switch_us,
        back_us=candidate.back_us,
        job_us=candidate.job_us,
        jobs=-(-jobs // candidate.at_once),  # that many one after another
        saved_us=saved[0],
        sooner_us=saved[1],
        few=queue.lendable < FEW_LENDABLE,
    )
    rate = pricing.own_rate_q64(state, candidate.at, candidate.idle_us) if candidate.at is not None else 0
    candidate.gain_us = pricing.switch_gain_us(switch, rate)
    if candidate.gain_us > 0:
        return ""
    lately = candidate.idle_us < candidate.switch_us + candidate.back_us
    if lately and pricing.switch_gain_us(switch, 0) > 0:
        return reasons.HELPER_RECENTLY_BUSY
    return reasons.COST_REJECTED


def _grant(state: State, candidate: Candidate, owner_job_us: int) -> None:
    """Set the slots: what it works on at once and enough to cover the turnaround, never more than it can give.

    One more than it works on where the helper is at least as fast.
    """
    tenth = candidate.step_us // 10
    wanted = candidate.at_once + max(0, -((tenth - candidate.turn_us) // candidate.step_us))  # rounded up
    if candidate.step_us <= owner_job_us:
        wanted = max(wanted, candidate.at_once + 1)
    candidate.slots = min(
        wanted,
        min(candidate.quota, candidate.lendable) + candidate.out,
        candidate.spare,
        candidates.may_be_lent(state, candidate),
    )


def _result(
    named: tuple[NodeId, ModelId],
    trigger: str,
    queue: Queue,
    found: list[Candidate],
    figures: tuple[int, int, int, int],
    whole_us: int,
) -> Plan:
    node, model = named
    ranked = sorted(found, key=_rank)
    drain_us, lent_us, job_us, size = figures
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
        out=sum([c.out for c in found]),
        drain_us=drain_us,
        lent_drain_us=lent_us,
        owner_job_us=job_us,
        verdicts=tuple([_verdict(candidate) for candidate in ranked[:VERDICTS_MAX]]),
        left_out=tuple(sorted(left_out.items())),
    )
    return Plan(
        row,
        {c.way.added.link: c for c in found if c.slots},
        {c.way.added.link: c for c in found if not c.slots},
        work=size if job_us > 0 else 0,
        owner_job_us=whole_us,
    )


def _rank(candidate: Candidate) -> tuple[bool, bool, int, int, LinkId]:
    """Return the place of a verdict: those with slots first, then those that a timer waits for, then by rank of the code."""
    first_us = candidate.ready_us + candidate.job_us
    rank = reasons.RANK.get(candidate.code, -1)
    return not candidate.slots, candidate.probe_in_us < 0, rank, first_us, candidate.way.added.link


def _verdict(candidate: Candidate) -> Verdict:
    added = candidate.way.added
    return Verdict(  # by place: there are many
        added.helper,
        added.link,
        "probe" if candidate.probe else "granted" if candidate.slots else "skipped",
        candidate.code,
        candidate.slots,
        candidate.ready_us + candidate.job_us,
        candidate.job_us,
        candidate.switch_us,
        candidate.back_us,
        candidate.gain_us,
        candidate.idle_us,
        candidate.source,
        candidate.out,
        candidate.quota,
        candidate.ready_us,
        candidate.samples,
        candidate.probe_in_us,
    )

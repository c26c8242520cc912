"""Plans as a story shows them: every candidate with its code, the code's sentence and its price; equal ones folded into one."""

from collections.abc import Iterator, Sequence

import msgspec

from domain.events import LeaseCleared, OwnerPlanned, Verdict
from domain.events.decision import LeaseEvent
from domain.master.reasons import OUTCOMES, PROBE, REASONS, TRIGGERS
from projections.codes import CODES
from projections.why.said import Committed


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One helper as one plan saw it. Durations in microseconds; all of them are predictions."""

    helper: str
    link: str
    outcome: str
    """granted, probe or skipped."""
    code: str
    """Why not, or why only a probe; empty for a plain grant."""
    sentence: str
    """The code in words."""
    slots: int
    out: int
    """Requests of this owner there already."""
    quota: int
    """Held requests that would be done there first."""
    first_answer_us: int
    """Until it would hand back a first job, switch included; 0 if it has no price."""
    ready_us: int
    job_us: int
    switch_us: int
    back_us: int
    """Loading back what the switch drives out."""
    gain_us: int
    """Waiting that it saves, in job-microseconds."""
    idle_us: int
    """Since its own last work; -1 if unknown."""
    source: str
    """Where job_us comes from: helper or owner_fallback."""
    samples: int
    probe_in_us: int
    """How long until it may be probed; -1 if it is not waited for."""


class LeaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """One lease event that followed from a plan."""

    version: int
    index: int
    kind: str
    """granted, changed or cleared."""
    lease: str
    link: str
    helper: str
    slots: int
    reason: str
    sentence: str
    ttl_us: int
    job_us: int
    owner_job_us: int
    switch_us: int
    ready_us: int
    gain_us: int
    source: str
    work: int
    """The mean work that job_us and owner_job_us are for; 0 if unpriced."""


class PlanSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One plan, or a run of plans in which every candidate had the same outcome and code; figures are the first one's."""

    version: int
    """Of the commit; of the first one if several are folded."""
    last_version: int
    times: int
    """Plans that this one stands for."""
    at_ns: int
    last_at_ns: int
    trigger: str
    sentence: str
    """The trigger in words."""
    owner: str
    model: str
    held: int
    lendable: int
    in_engine: int
    out: int
    drain_us: int
    """Predicted: what the owner alone needs for all it has; -1 without a price."""
    lent_drain_us: int
    """Predicted: the same with the leases of this plan; -1 if it gave none."""
    owner_job_us: int
    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, int], ...]
    """Further candidates by code."""
    leases: tuple[LeaseLine, ...]
    """What followed from it."""


def plans_of(committed: Committed, owner: str = "", model: str = "") -> Iterator[PlanSeen]:
    """Yield the plans of one commit in order; `owner` and `model` choose one queue's."""
    decisions = committed.commit.decisions
    for index, decision in enumerate(decisions):
        if not isinstance(decision, OwnerPlanned) or (owner and (decision.owner, decision.model) != (owner, model)):
            continue
        leases: list[LeaseLine] = []
        for at, other in enumerate(decisions[index + 1 :], start=index + 1):
            if not isinstance(other, LeaseEvent):
                break
            leases.append(lease_line(committed.commit.version, at, other))
        yield _seen(committed, decision, tuple(leases))


def folded(plans: Sequence[PlanSeen]) -> list[PlanSeen]:
    """Return the plans, those in a row that say the same of each candidate and change no lease as one."""
    found: list[PlanSeen] = []
    for plan in plans:
        last = found[-1] if found else None
        if last is not None and not plan.leases and not last.leases and _says(last) == _says(plan):
            found[-1] = msgspec.structs.replace(
                last, times=last.times + 1, last_version=plan.version, last_at_ns=plan.at_ns
            )
        else:
            found.append(plan)
    return found


def verdict_sentence(outcome: str, code: str) -> str:
    """Return what an outcome and its code mean."""
    if not code:
        return OUTCOMES.get(outcome, "")
    return REASONS.get(code, "")


def reason_sentence(kind: str, reason: str) -> str:
    """Return what the reason of a row of `kind` (lent, returned, cleared, ...) means; empty if nothing is written of it."""
    for kinds, codes in CODES.items():
        if kind in kinds.split(", ") and reason in codes:
            return codes[reason]
    return REASONS.get(reason, "")


def candidate_of(verdict: Verdict) -> Candidate:
    """Return a verdict as a story shows it."""
    return Candidate(
        helper=verdict.helper,
        link=verdict.link,
        outcome=verdict.outcome,
        code=verdict.code,
        sentence=verdict_sentence(verdict.outcome, verdict.code),
        slots=verdict.slots,
        out=verdict.out,
        quota=verdict.quota,
        first_answer_us=verdict.first_answer_us,
        ready_us=verdict.ready_us,
        job_us=verdict.job_us,
        switch_us=verdict.switch_us,
        back_us=verdict.back_us,
        gain_us=verdict.gain_us,
        idle_us=verdict.idle_us,
        source=verdict.source,
        samples=verdict.samples,
        probe_in_us=verdict.probe_in_us,
    )


def lease_line(version: int, index: int, event: LeaseEvent) -> LeaseLine:
    """Return a lease event as a story shows it."""
    kind = type(event).__name__.removeprefix("Lease").lower()
    if isinstance(event, LeaseCleared) and not event.reason:
        sentence = "It does not pay any more."
    else:
        sentence = reason_sentence(kind, event.reason)
    return LeaseLine(
        version=version,
        index=index,
        kind=kind,
        lease=event.lease,
        link=event.link,
        helper=event.helper,
        slots=event.slots,
        reason=event.reason or (PROBE if event.probe else ""),
        sentence=sentence,
        ttl_us=event.ttl_us,
        job_us=event.job_us,
        owner_job_us=event.owner_job_us,
        switch_us=event.switch_us,
        ready_us=event.ready_us,
        gain_us=event.gain_us,
        source=event.source,
        work=event.work,
    )


def seen_now(plan: OwnerPlanned, version: int, at_ns: int) -> PlanSeen:
    """Return a plan that was only tried, on the state after `version`, as a story shows it."""
    return _made(plan, version, at_ns, ())


def _seen(committed: Committed, plan: OwnerPlanned, leases: tuple[LeaseLine, ...]) -> PlanSeen:
    return _made(plan, committed.commit.version, committed.at_ns, leases)


def _made(plan: OwnerPlanned, version: int, at_ns: int, leases: tuple[LeaseLine, ...]) -> PlanSeen:
    return PlanSeen(
        version=version,
        last_version=version,
        times=1,
        at_ns=at_ns,
        last_at_ns=at_ns,
        trigger=plan.trigger,
        sentence=TRIGGERS.get(plan.trigger, ""),
        owner=plan.owner,
        model=plan.model,
        held=plan.held,
        lendable=plan.lendable,
        in_engine=plan.in_engine,
        out=plan.out,
        drain_us=plan.drain_us,
        lent_drain_us=plan.lent_drain_us,
        owner_job_us=plan.owner_job_us,
        candidates=tuple(candidate_of(verdict) for verdict in plan.verdicts),
        left_out=plan.left_out,
        leases=leases,
    )


def _says(plan: PlanSeen) -> object:
    return [(each.link, each.outcome, each.code, each.slots) for each in plan.candidates], plan.left_out

"""The story of one lease: why it was given, how it changed, what was lent under it, why it ended, and whether it paid."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from domain.events import (
    BorrowFinished,
    CutOff,
    Finished,
    LeaseRefused,
    LeaseUpdated,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    RelayRefused,
)
from domain.events.base import tag_of
from domain.events.decision import LeaseEvent
from domain.master.leases import lease_life_us
from projections.why.measured import at_helpers, measured
from projections.why.moments import TERMINAL
from projections.why.plans import LeaseLine, PlanSeen, lease_line, plans_of, reason_sentence
from projections.why.said import Committed, Said, believed
from projections.words import count, duration

REQUESTS_SHOWN: Final = 100


class LeaseStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to the lease; renewals that change nothing are one step."""

    t_us: int
    """Since it was granted, by the server's stamps."""
    last_t_us: int
    times: int
    who: str
    """`master`, or the owner, which says what it took."""
    line: LeaseLine | None
    """The decision; None for a word of the owner."""
    text: str


class LentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was lent under it."""

    request: str
    t_us: int
    """When it was lent, since the grant."""
    waited_us: int
    """Measured: from its arrival until it was lent."""
    outcome: str
    """answered, returned, busy, cut_off, relay_refused; empty while it is out."""
    reason: str
    sentence: str
    job_us: int
    """Predicted for its own work; -1 if unpriced."""
    service_us: int
    """Measured at the helper; -1 without an answer."""
    load_us: int
    """Measured: model load before it."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What was expected of the lease against what came of it. -1 where it is not known."""

    gain_us: int = -1
    """Predicted at the grant: waiting that it saves, in job-microseconds."""
    measured_gain_us: int = 0
    """Predicted against measured: over the requests that were held at the grant, when the owner alone would have ended them
    (predicted), less when they did end (measured). What other leases of the owner saved is in it."""
    measured_over: int = 0
    """How many requests that is about; 0: not known, some have not ended or are not kept any more."""
    shared_with: int = 0
    """Other leases that the owner had by the same plan."""
    job_us: int = -1
    """Predicted: one job of the mean work."""
    measured_job_us: int = -1
    """Measured: the mean over what was answered."""
    switch_us: int = -1
    """Predicted."""
    measured_load_us: int = -1
    """Measured: all loads for it."""


class LeaseStory(msgspec.Struct, frozen=True, kw_only=True):
    """Why there was a lease, and what came of it."""

    lease: str
    headline: str
    """The answer in one sentence."""
    link: str
    owner: str
    owner_model: str
    helper: str
    helper_model: str
    state: str
    """live, cleared, or over: nobody renewed it."""
    granted_ns: int
    version: int
    plan: PlanSeen | None
    """The plan that granted it, with every candidate."""
    steps: tuple[LeaseStep, ...]
    requests: tuple[LentRequest, ...]
    requests_left_out: int
    ended_code: str
    ended_sentence: str
    gain: Gain
    source: str = ""
    incomplete: str = ""


def lease_story(
    lease: str, commits: Sequence[Committed], said: Sequence[Said], ends: Sequence[Said] = (), *, now_ns: int = 0
) -> LeaseStory | None:
    """Return the story from the commits that speak of the lease, the facts about it, and the ends of its owner's requests.

    `now_ns`: the newest stamp there is, by which it may be over. None if no commit speaks of it.
    """
    events = [
        (each, index, decision)
        for each in sorted(commits, key=lambda one: one.commit.version)
        for index, decision in enumerate(each.commit.decisions)
        if isinstance(decision, LeaseEvent) and decision.lease == lease
    ]
    if not events:
        return None
    began, index, first = events[0]
    facts = believed(said, commits)
    plan = next((p for p in plans_of(began) if any(each.index == index for each in p.leases)), None)
    lines = [(each, lease_line(each.commit.version, at, event)) for each, at, event in events]
    requests = _requests(facts, lines[0][1], began.at_ns)
    state, code, sentence = _end(events, now_ns)
    gain = _gain(began, lines[0][1], plan, facts, believed(ends, commits))
    return LeaseStory(
        lease=lease,
        headline=_headline(first, lines[0][1], requests, gain, (state, code)),
        link=first.link,
        owner=first.owner,
        owner_model=first.owner_model,
        helper=first.helper,
        helper_model=first.helper_model,
        state=state,
        granted_ns=began.at_ns,
        version=began.commit.version,
        plan=plan,
        steps=tuple(_steps(lines, facts, began.at_ns)),
        requests=tuple(requests[:REQUESTS_SHOWN]),
        requests_left_out=max(0, len(requests) - REQUESTS_SHOWN),
        ended_code=code,
        ended_sentence=sentence,
        gain=gain,
    )


def _steps(lines: Sequence[tuple[Committed, LeaseLine]], facts: Sequence[Said], began_ns: int) -> list[LeaseStep]:
    steps: list[LeaseStep] = []
    before = -1
    for committed, line in lines:
        t_us = (committed.at_ns - began_ns) // 1000
        renewed = line.kind == "changed" and line.slots == before
        before = line.slots
        if renewed and steps and steps[-1].text == "renewed":
            steps[-1] = msgspec.structs.replace(steps[-1], last_t_us=t_us, times=steps[-1].times + 1)
            continue
        text = "renewed" if renewed else _told(line)
        steps.append(LeaseStep(t_us=t_us, last_t_us=t_us, times=1, who="master", line=line, text=text))
    for each in facts:
        t_us = (each.at_ns - began_ns) // 1000
        match each.fact:
            case LeaseUpdated():
                text = f"took it: {count(each.fact.slots, 'slot')}, {each.fact.out} out"
            case LeaseRefused():
                text = f"did not take it: {each.fact.reason}"
            case _:
                continue
        steps.append(LeaseStep(t_us=t_us, last_t_us=t_us, times=1, who=each.who, line=None, text=text))
    return sorted(steps, key=lambda step: step.t_us)


def _told(line: LeaseLine) -> str:
    if line.kind == "cleared":
        return f"over: {line.reason or 'it does not pay any more'}"
    why = f" ({line.reason})" if line.reason else ""
    price = f", a job there {duration(line.job_us)}" if line.job_us else ""
    saves = f", saves {duration(line.gain_us)} of waiting" if line.gain_us > 0 else ""
    return f"{line.kind}: {count(line.slots, 'slot')} for {duration(line.ttl_us)}{why}{price}{saves}"


def _requests(facts: Sequence[Said], line: LeaseLine, began_ns: int) -> list[LentRequest]:
    found: dict[str, LentRequest] = {}
    there = at_helpers(facts)
    for each in facts:
        fact: Any = each.fact
        if isinstance(fact, Lent):
            work = fact.work if line.work else 0
            found[fact.request] = LentRequest(
                request=fact.request,
                t_us=(each.at_ns - began_ns) // 1000,
                waited_us=fact.waited_us,
                outcome="",
                reason="",
                sentence="",
                job_us=line.job_us * work // line.work if work and line.job_us else line.job_us or -1,
                service_us=-1,
                load_us=0,
            )
        elif isinstance(fact, LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused) and fact.request in found:
            kind, reason = tag_of(fact).partition(".")[2], str(getattr(fact, "reason", ""))
            ended: dict[str, Any] = {"outcome": kind, "reason": reason, "sentence": reason_sentence(kind, reason)}
            if isinstance(fact, LendAnswered):
                service_us, load_us = measured(fact, there)
                ended |= {"service_us": service_us, "load_us": max(0, load_us)}
            found[fact.request] = msgspec.structs.replace(found[fact.request], **ended)
    return list(found.values())


def _end(events: Sequence[tuple[Committed, int, LeaseEvent]], now_ns: int) -> tuple[str, str, str]:
    """Return (state, code, sentence) of the lease as it is now."""
    newest, _, event = events[-1]
    if not event.slots:
        return "cleared", event.reason, reason_sentence("cleared", event.reason) or "It does not pay any more."
    if now_ns > newest.at_ns + lease_life_us(event.ttl_us) * 1000:
        return "over", "", "Nobody renewed it: its owner had nothing held any more, or said nothing."
    return "live", "", ""


def _gain(
    began: Committed, line: LeaseLine, plan: PlanSeen | None, facts: Sequence[Said], ends: Sequence[Said]
) -> Gain:
    there = at_helpers(facts)
    answered = [measured(each.fact, there) for each in facts if isinstance(each.fact, LendAnswered)]
    served = [service_us for service_us, _ in answered if service_us >= 0]
    loads = sum(each.fact.load_us for each in facts if isinstance(each.fact, BorrowFinished))
    saved, over = _saved(began, plan, ends)
    return Gain(
        gain_us=line.gain_us if line.job_us else -1,
        measured_gain_us=saved,
        measured_over=over,
        shared_with=sum(one.kind != "cleared" for one in plan.leases) - 1 if plan is not None else 0,
        job_us=line.job_us or -1,
        measured_job_us=sum(served) // len(served) if served else -1,
        switch_us=line.switch_us,
        measured_load_us=max(loads, sum(load_us for _, load_us in answered if load_us > 0)) if answered else -1,
    )


def _saved(began: Committed, plan: PlanSeen | None, ends: Sequence[Said]) -> tuple[int, int]:
    """Return (waiting saved over the requests held at the grant, how many these are); (0, 0) where it cannot be told.

    The owner alone ends the k-th of them after its drain less the jobs behind it.
    """
    if plan is None or plan.drain_us < 0 or plan.owner_job_us <= 0:
        return 0, 0
    open_then: list[tuple[int, int]] = []
    for each in ends:
        if isinstance(each.fact, TERMINAL) and each.fact.model == plan.model and each.who == plan.owner:
            if not isinstance(each.fact, Finished):
                return 0, 0
            open_then.append((each.at_ns - (each.fact.wait_us + each.fact.service_us) * 1000, each.at_ns))
    # those in the engine and those lent already came first, those that the plan did not know yet came last
    first = plan.in_engine + plan.out
    held = sorted(open_then)[first : first + plan.held]
    if len(held) < plan.held:
        return 0, 0
    free_us = plan.drain_us - plan.owner_job_us * plan.held
    alone_us = free_us * plan.held + plan.owner_job_us * plan.held * (plan.held + 1) // 2
    return alone_us - sum((end_ns - began.at_ns) // 1000 for _, end_ns in held), plan.held


def _headline(
    first: LeaseEvent, line: LeaseLine, requests: Sequence[LentRequest], gain: Gain, end: tuple[str, str]
) -> str:
    state, code = end
    answered = sum(each.outcome == "answered" for each in requests)
    lent = f"{len(requests)} lent under it, {answered} answered"
    why = f"{first.owner}/{first.owner_model} to {first.helper}, {line.reason or 'no reason stated'}"
    ended = f"{state}{f' ({code})' if code else ''}" if state == "cleared" else state
    paid = ""
    if gain.gain_us > 0 and gain.measured_over:
        paid = f"; was to save {duration(gain.gain_us)} of waiting, saved {_signed(gain.measured_gain_us)}"
    return f"{ended}: {why}; {lent}{paid}"


def _signed(us: int) -> str:
    return duration(us) if us >= 0 else f"-{duration(-us)}"

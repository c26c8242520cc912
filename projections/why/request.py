"""The story of one request: its life, what it waited for, every decision that touched it, and what lending won or cost."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from domain.events import BorrowAccepted, BorrowFinished, BorrowStarted, Held, LendAnswered, Lent, Loaded, Started
from domain.events.decision import LeaseEvent
from projections.why.measured import measured_figures
from projections.why.moments import TERMINAL, Clock, Moment, clock_of, moments_of
from projections.why.plans import LeaseLine, PlanSeen, folded, lease_line, plans_of
from projections.why.said import Committed, Said, believed, by_owner, is_owners
from projections.words import count, duration

PLANS_SHOWN: Final = 12
"""Runs of plans that a story shows; of more, the first, the one that led to the lease, and the newest."""
WAIT_US_MIN: Final = 1_000
"""A shorter wait is a hop, not a wait."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A span of the request's life in which it waited for one thing. Measured."""

    reason: str
    """own_queue, faster_helper, own_engine, desk, helper_engine or load."""
    from_us: int
    """Since its arrival."""
    us: int
    text: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What happened against what would have. -1 where it is not known."""

    measured_finish_us: int = -1
    """Measured: from its arrival to its end."""
    home_finish_us: int = -1
    """Predicted: the same if nothing had been lent, by the first plan with a price in whose range it was held."""
    home_version: int = 0
    """That plan's commit."""
    won_us: int = 0
    """home_finish_us - measured_finish_us, so part predicted; negative: it took longer. 0 where one of the two is not known."""
    job_us: int = -1
    """Predicted: its service at the helper, by the lease, scaled to its own work."""
    measured_job_us: int = -1
    """Measured: its service at the helper."""
    owner_job_us: int = -1
    """Predicted: its service at its owner."""
    switch_us: int = -1
    """Predicted: model switch before it."""
    measured_load_us: int = -1
    """Measured: load before it."""
    next_best: str = ""
    """The helper that stood next in the plan of its lease (of a request that ran at home: the best one of the last plan)."""
    next_best_code: str = ""
    next_best_first_answer_us: int = -1
    """Predicted: until that helper would have handed back a first job, from the plan on."""


class RequestStory(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request went where it went, and what came of it."""

    request: str
    headline: str
    """The answer in one sentence."""
    owner: str
    model: str
    state: str
    """finished, failed, cancelled, rejected, expired or orphaned; of an open one held, in_engine or lent."""
    arrived_ns: int
    """By the server's stamps."""
    work: int
    """In micro-units."""
    est_tokens: int
    helper: str
    """Where it was lent last; empty if it never was."""
    lease: LeaseLine | None
    """The lease under which it was lent last, as it stood then."""
    reason: str
    """Why that lease was there."""
    moments: tuple[Moment, ...]
    waits: tuple[Wait, ...]
    plans: tuple[PlanSeen, ...]
    """Plans of its queue while it was held; runs that say the same are one."""
    plans_left_out: int
    """Runs of plans beyond those shown."""
    compared: Compared
    source: str = ""
    """Who was asked: ClickHouse or NATS."""
    incomplete: str = ""
    """What of it is not kept any more, or was too much to read; empty if it is whole."""


def request_story(request: str, said: Sequence[Said], commits: Sequence[Committed]) -> RequestStory | None:
    """Return the story, from facts about the request (loads of its models may be among them) and the commits of its time.

    None if no owner's fact is about it.
    """
    facts = by_owner(believed(said, commits), request)
    own = [each for each in facts if each.names(request) and is_owners(each)]
    if not own:
        return None
    clock, model = clock_of(own[0]), str(getattr(own[0].fact, "model", ""))
    lent = next((each for each in reversed(own) if isinstance(each.fact, Lent)), None)
    ended = next((each for each in own if isinstance(each.fact, TERMINAL)), None)
    moments = moments_of(request, facts, commits, clock)
    lease = _lease(lent, commits)
    every = [plan for each in _touching(own, commits) for plan in plans_of(each, own[0].who, model)]
    plans = folded(every)
    about = _About(request, clock, own, facts, lent, ended, lease, every)
    shown, left_out = _shown(plans, lease)
    compared = _compared(about)
    state = _state(own, ended, moments)
    held = [each.fact for each in own if isinstance(each.fact, Held)]
    return RequestStory(
        request=request,
        headline=_headline(about, state, compared),
        owner=own[0].who,
        model=model,
        state=state,
        arrived_ns=clock.at_ns,
        work=max((int(getattr(each.fact, "work", 0)) for each in own), default=0),
        est_tokens=held[-1].est_tokens if held else 0,
        helper=str(lent.fact.helper) if lent is not None and isinstance(lent.fact, Lent) else "",
        lease=lease,
        reason=lease.reason if lease is not None else "",
        moments=tuple(moments),
        waits=tuple(_waits(about)),
        plans=tuple(shown),
        plans_left_out=left_out,
        compared=compared,
    )


class _About(msgspec.Struct, frozen=True):
    """What the parts of the story are made of."""

    request: str
    clock: Clock
    own: list[Said]
    facts: list[Said]
    lent: Said | None
    ended: Said | None
    lease: LeaseLine | None
    plans: list[PlanSeen]

    def first(self, kind: type, after: Said | None = None) -> Said | None:
        """Return the first fact of a kind about the request, after another one."""
        for each in self.facts:
            if isinstance(each.fact, kind) and each.names(self.request) and (after is None or each.seq > after.seq):
                return each
        return None

    def t_us(self, said: Said) -> int:
        """Return when it was said, from the arrival on."""
        return self.clock.since_us(said)

    def plan_t_us(self, plan: PlanSeen) -> int:
        """Return when a plan was stored, from the arrival on."""
        return (plan.at_ns - self.clock.at_ns) // 1000


def _tag(said: Said) -> str:
    return str(said.fact.__struct_config__.tag)


def _touching(own: Sequence[Said], commits: Sequence[Committed]) -> list[Committed]:
    """Return the commits in whose range the request was held, and the one that saw it leave."""
    spans: list[tuple[int, int]] = []
    since = 0
    for each in own:
        if isinstance(each.fact, Held):
            since = since or each.seq
        elif since and isinstance(each.fact, (Started, Lent, *TERMINAL)):
            spans.append((since, each.seq))
            since = 0
    if since:
        spans.append((since, 1 << 62))
    return [each for each in commits if any(first <= each.commit.hi and each.commit.lo < last for first, last in spans)]


def _lease(lent: Said | None, commits: Sequence[Committed]) -> LeaseLine | None:
    """Return the lease under which it was lent, as its owner knew it then: the newest word before that with as many slots."""
    if lent is None or not isinstance(lent.fact, Lent):
        return None
    said = [
        (each, lease_line(each.commit.version, index, decision))
        for each in sorted(commits, key=lambda one: one.commit.version)
        for index, decision in enumerate(each.commit.decisions)
        if isinstance(decision, LeaseEvent) and decision.lease == lent.fact.lease and decision.slots
    ]
    # what was granted first counts even where the stamps of the two streams cross
    before = [line for each, line in said if each.at_ns <= lent.at_ns] or [line for _, line in said[:1]]
    known = [line for line in before if line.slots == lent.fact.slots]
    return next(reversed(known or before), None)


def _shown(plans: list[PlanSeen], lease: LeaseLine | None) -> tuple[list[PlanSeen], int]:
    if len(plans) <= PLANS_SHOWN:
        return plans, 0
    led = [at for at, plan in enumerate(plans) if lease is not None and plan.version == lease.version]
    rest = PLANS_SHOWN - 1 - len(led)
    kept = sorted({0, *led, *range(len(plans) - rest, len(plans))})
    return [plans[at] for at in kept], len(plans) - len(kept)


def _state(own: Sequence[Said], ended: Said | None, moments: Sequence[Moment]) -> str:
    if ended is not None:
        return _tag(ended).partition(".")[2]
    if any(moment.what == "orphaned" for moment in moments):
        return "orphaned"
    for each in reversed(own):
        match each.fact:
            case Held():
                return "held"
            case Started():
                return "in_engine"
            case Lent() | LendAnswered():
                return "lent"
            case _:
                continue
    return "held"


# ---- what it waited for ----------------------------------------------------------------------------------------------


def _waits(about: _About) -> list[Wait]:
    waits: list[Wait] = []
    held: Said | None = None
    kept: Said | None = None
    for each in about.own:
        what = _tag(each).partition(".")[2]
        if isinstance(each.fact, Held):
            held = held or each
        elif what == "kept":
            kept = kept or each
        elif held is not None and (what in {"lent", "started"} or isinstance(each.fact, TERMINAL)):
            waits += _held_for(about, held, kept, each)
            held = kept = None
    waits += _at_helper(about)
    waits += _in_own_engine(about)
    waits += [
        Wait(reason="load", from_us=about.t_us(each) - each.fact.load_us, us=each.fact.load_us, text=text)
        for each in about.facts
        if isinstance(each.fact, Loaded) and each.fact.load_us
        for text in [f"{each.who} loaded {each.fact.model} ({each.fact.cause})"]
    ]
    return sorted((wait for wait in waits if wait.us >= WAIT_US_MIN), key=lambda wait: wait.from_us)


def _held_for(about: _About, held: Said, kept: Said | None, left: Said) -> list[Wait]:
    assert isinstance(held.fact, Held)
    inside = next((plan.in_engine for plan in about.plans if plan.at_ns >= held.at_ns), -1)
    behind = f"behind {held.fact.waiting - 1} of its own"
    behind += f" and {inside} in its owner's engine" if inside >= 0 else ""
    from_us, to_us = about.t_us(held), about.t_us(left)
    turn_us = about.t_us(kept) if kept is not None else to_us
    waits = [Wait(reason="own_queue", from_us=from_us, us=turn_us - from_us, text=behind)]
    if kept is not None:
        text = f"kept for {getattr(kept.fact, 'helper', '')}, which should end it sooner than its owner"
        waits.append(Wait(reason="faster_helper", from_us=turn_us, us=to_us - turn_us, text=text))
    return waits


def _at_helper(about: _About) -> list[Wait]:
    accepted = about.first(BorrowAccepted, about.lent) or (about.first(BorrowAccepted) if about.lent else None)
    started = about.first(BorrowStarted)
    if accepted is None or started is None or not isinstance(started.fact, BorrowStarted):
        return []
    assert isinstance(accepted.fact, BorrowAccepted)
    load_us = started.fact.load_us
    from_us, to_us = about.t_us(accepted), about.t_us(started)
    text = f"for its slot at {accepted.who}, behind {accepted.fact.position} at the desk"
    waits = [Wait(reason="desk", from_us=from_us, us=to_us - from_us - load_us, text=text)]
    if load_us:
        waits.append(Wait(reason="load", from_us=to_us - load_us, us=load_us, text=f"{started.who} loaded the model"))
    finished = about.first(BorrowFinished, started)
    if finished is not None and isinstance(finished.fact, BorrowFinished):
        inside_us = about.t_us(finished) - to_us - finished.fact.service_us
        text = f"inside {started.who}'s engine behind what ran there"
        waits.append(Wait(reason="helper_engine", from_us=to_us, us=inside_us, text=text))
    return waits


def _in_own_engine(about: _About) -> list[Wait]:
    started, ended = about.first(Started), about.ended
    if started is None or ended is None or not isinstance(started.fact, Started):
        return []
    assert isinstance(ended.fact, TERMINAL)
    inside_us = ended.fact.wait_us - started.fact.wait_us if ended.fact.service_us else 0
    text = "inside its owner's engine behind what ran there"
    return [Wait(reason="own_engine", from_us=about.t_us(started), us=inside_us, text=text)]


# ---- what it won or cost ---------------------------------------------------------------------------------------------


def _compared(about: _About) -> Compared:
    finish_us = about.t_us(about.ended) if about.ended is not None else -1
    home_us, version = _home(about)
    known = finish_us >= 0 and home_us >= 0
    figures: dict[str, Any] = {}
    lease, lent = about.lease, about.lent
    if lease is not None and lent is not None and isinstance(lent.fact, Lent):
        figures |= {"job_us": lease.job_us or -1, "owner_job_us": lease.owner_job_us or -1}
        figures |= {"switch_us": lease.switch_us}
        figures |= _scaled(about, figures)
    answered = about.first(LendAnswered)
    if answered is not None and isinstance(answered.fact, LendAnswered):
        figures |= measured_figures(answered.fact, about.facts)
    return Compared(
        measured_finish_us=finish_us,
        home_finish_us=home_us,
        home_version=version,
        won_us=home_us - finish_us if known else 0,
        **figures,
        **_next_best(about),
    )


def _scaled(about: _About, figures: dict[str, Any]) -> dict[str, Any]:
    """Return the predicted services for this request's work, where the lease says for how much work they are."""
    mean = about.lease.work if about.lease is not None else 0
    work = int(getattr(about.lent.fact, "work", 0)) if about.lent is not None else 0
    if mean <= 0 or work <= 0:
        return {}
    return {name: figures[name] * work // mean for name in ("job_us", "owner_job_us") if figures[name] > 0}


def _home(about: _About) -> tuple[int, int]:
    """Return (predicted finish if nothing were lent, from the arrival on; version of the plan that says so); -1 if none does.

    The owner's drain is what it needs for all that is held; those held after this one are taken off.
    """
    held = about.first(Held)
    if held is None or not isinstance(held.fact, Held):
        return -1, 0
    for plan in about.plans:
        if plan.drain_us >= 0 and plan.owner_job_us > 0:
            place = max(1, min(held.fact.waiting, plan.held))
            left_us = plan.drain_us - plan.owner_job_us * (plan.held - place)
            return max(0, about.plan_t_us(plan)) + max(0, left_us), plan.version
    return -1, 0


def _next_best(about: _About) -> dict[str, Any]:
    chosen = str(getattr(about.lent.fact, "helper", "")) if about.lent is not None else ""
    version = about.lease.version if about.lease is not None else 0
    plan = next((each for each in about.plans if each.version == version), about.plans[-1] if about.plans else None)
    others = [each for each in plan.candidates if each.helper != chosen] if plan is not None else []
    if not others:
        return {}
    best = min(others, key=lambda one: (one.first_answer_us <= 0, one.first_answer_us, one.helper))
    return {
        "next_best": best.helper,
        "next_best_code": best.code,
        "next_best_first_answer_us": best.first_answer_us or -1,
    }


def _headline(about: _About, state: str, compared: Compared) -> str:
    ended = about.ended.fact if about.ended is not None else None
    took = f" in {duration(compared.measured_finish_us)}" if compared.measured_finish_us >= 0 else ""
    status = f" {ended.status}" if isinstance(ended, TERMINAL) and ended.status else ""
    beginning = f"{state.replace('_', ' ')}{status}{took}"
    if about.lent is None or not isinstance(about.lent.fact, Lent):
        return f"{beginning}: {'not lent so far' if ended is None else 'never lent'}{_why_home(about)}"
    lent = about.lent.fact
    served = isinstance(ended, TERMINAL) and ended.helper == lent.helper
    where = f"lent to {lent.helper}" if served or ended is None else f"lent to {lent.helper} and served by its owner"
    reason = about.lease.sentence.partition(";")[0].rstrip(".") if about.lease is not None else ""
    why = f" since {reason[:1].lower()}{reason[1:]}" if reason else ""
    if compared.measured_finish_us < 0 or compared.home_finish_us < 0:
        return f"{beginning}: {where}{why}"
    home = f"at home it would have been done after {duration(compared.home_finish_us)} (predicted)"
    return f"{beginning}: {where}{why}; {home}"


def _why_home(about: _About) -> str:
    """Return why a request that was never lent was not: what the last plan said of its helpers."""
    if about.first(Held) is None:
        if about.first(Started) is not None:
            return ", its owner's engine had room"
        return ", for its model stands in no link: of such a one only the end is stated" if len(about.own) == 1 else ""
    last = about.plans[-1] if about.plans else None
    if last is None:
        return ", no plan was made while it was held"
    if not last.candidates:
        return ", there is no link to lend over"
    granted = [each.helper for each in last.candidates if each.slots]
    if granted and about.ended is None:
        return f", it waits for a slot at {', '.join(granted)} or for its owner's engine"
    if granted:
        return f", its owner's turn came before a slot at {', '.join(granted)} was free"
    said = "; ".join(f"{each.helper}: {each.code}" for each in last.candidates[:3])
    more = len(last.candidates) - 3
    rest = f"; {count(more, 'other')}" if more > 0 else ""
    return f" ({said}{rest})"

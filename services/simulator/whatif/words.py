"""Decisions as one line each."""

from collections.abc import Iterator, Mapping, Sequence

from domain.events import (
    BreakerChanged,
    Decision,
    LeaseChanged,
    LeaseCleared,
    LeaseGranted,
    LinkPriced,
    OwnerPlanned,
)
from domain.events.decision import Verdict
from domain.ids import LinkId

_US = 1_000_000
_WHOLE_FROM = 100


def told(decision: Decision, others: Sequence[Decision], names: Mapping[LinkId, str]) -> Iterator[str]:
    """Yield what a decision says, as lines; of a plan only what the same plan among `others` does not say."""
    match decision:
        case OwnerPlanned():
            yield from _plan(decision, _same_plan(decision, others))
        case LeaseGranted() | LeaseChanged():
            kind = "granted" if isinstance(decision, LeaseGranted) else "changed"
            gain = f", saves {_s(decision.gain_us)} of waiting" if decision.gain_us else ""
            slots = f"{decision.slots} slot{'' if decision.slots == 1 else 's'}"
            yield f"{names.get(decision.link, decision.link)}: {kind} {slots}{gain} ({decision.reason})"
        case LeaseCleared():
            yield f"{names.get(decision.link, decision.link)}: dropped ({decision.reason})"
        case LinkPriced():
            faster = "faster than its owner" if decision.faster else "not faster any more"
            yield f"{names.get(decision.link, decision.link)}: the helper is {faster}"
        case BreakerChanged():
            yield f"{decision.helper}/{decision.model}: breaker {decision.state} after {decision.failures} failures"
        case _:
            yield f"{type(decision).__name__}: {decision}"


def _same_plan(plan: OwnerPlanned, others: Sequence[Decision]) -> OwnerPlanned | None:
    key = (plan.owner, plan.model)
    return next((one for one in others if isinstance(one, OwnerPlanned) and (one.owner, one.model) == key), None)


def _plan(plan: OwnerPlanned, other: OwnerPlanned | None) -> Iterator[str]:
    known = other.verdicts if other is not None else ()
    verdicts = [verdict for verdict in plan.verdicts if verdict not in known]
    alone = f", alone done in {_s(plan.drain_us)}" if plan.drain_us >= 0 else ""
    yield f"plan of {plan.owner}/{plan.model} ({plan.trigger}): {plan.held} held{alone}" + (
        "" if plan.verdicts else "; no candidate"
    )
    yield from (f"  {_verdict(verdict)}" for verdict in verdicts)


def _verdict(verdict: Verdict) -> str:
    what = " ".join(filter(None, (verdict.outcome, verdict.code)))
    slots = f", {verdict.slots} slot{'' if verdict.slots == 1 else 's'}" if verdict.slots else ""
    gain = f", saves {_s(verdict.gain_us)} of waiting" if verdict.gain_us else ""
    answer = f", first answer in {_s(verdict.first_answer_us)}" if verdict.first_answer_us and verdict.job_us else ""
    return f"{verdict.helper}: {what}{slots}{gain}{answer}"


def _s(us: int) -> str:
    seconds = us / _US
    return f"{seconds:,.0f} s" if abs(seconds) >= _WHOLE_FROM else f"{seconds:.3g} s"

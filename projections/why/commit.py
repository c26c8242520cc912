"""The story of one commit: what it read, what it decided and why, and what became of the leases by it."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from domain.events import (
    BreakerChanged,
    LeaseChecked,
    LeaseStalled,
    LinkPriced,
    NodeHealthChanged,
    OwnerPlanned,
    RequestOrphaned,
    RequestPresumedLost,
)
from domain.events.base import tag_of
from domain.events.decision import Decision, LeaseEvent
from projections.why.plans import PlanSeen, plans_of
from projections.why.said import Committed
from projections.words import count, duration


class LeaseTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One link's lease before and after the commit."""

    link: str
    owner: str
    helper: str
    lease: str
    slots_before: int
    """0: it had none."""
    slots_after: int
    reason: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One decision in words."""

    index: int
    kind: str
    about: str
    text: str


class CommitStory(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit decided, and from what."""

    version: int
    generation: str
    headline: str
    """The answer in one sentence."""
    at_ns: int
    term: int
    policy: str
    now_us: int
    """Domain time."""
    lo: int
    hi: int
    """Facts folded: sequences (lo, hi] of LW_EVENTS."""
    clo: int
    chi: int
    """Control events folded: (clo, chi] of LW_CONTROL."""
    inputs: Mapping[str, int]
    """How many facts and control events of each kind stood in these ranges; empty where they are not kept any more."""
    rejected: tuple[tuple[int, str], ...]
    """Facts that were not believed: (sequence, code)."""
    owners: int
    """Owner queues decided."""
    plans: tuple[PlanSeen, ...]
    others: tuple[Line, ...]
    """Decisions that are neither plans nor leases."""
    leases: tuple[LeaseTurn, ...]
    prev: str
    digest: str
    state: str
    """Digest of the folded state, if a snapshot of it was taken."""
    chosen: int = -1
    """The decision that was asked for by `<generation>-<version>-<index>`; -1: the whole commit."""
    source: str = ""
    incomplete: str = ""


def commit_story(
    committed: Committed,
    inputs: Sequence[str] = (),
    before: Mapping[str, LeaseEvent] | None = None,
    *,
    chosen: int = -1,
) -> CommitStory:
    """Return the story of `committed`.

    Args:
        committed: the commit.
        inputs: the tags of the events in its ranges.
        before: the lease of each link that it speaks of as it stood before, by link.
        chosen: the decision that is asked for.
    """
    made = committed.commit
    return CommitStory(
        version=made.version,
        generation=made.generation,
        headline=_headline(committed),
        at_ns=committed.at_ns,
        term=made.term,
        policy=made.policy,
        now_us=made.now_us,
        lo=made.lo,
        hi=made.hi,
        clo=made.clo,
        chi=made.chi,
        inputs=dict(sorted(Counter(inputs).items())),
        rejected=made.rejected,
        owners=made.n,
        plans=tuple(plans_of(committed)),
        others=tuple(
            Line(index=index, kind=tag_of(decision), about=_about(decision), text=_text(decision))
            for index, decision in enumerate(made.decisions)
            if not isinstance(decision, OwnerPlanned | LeaseEvent)
        ),
        leases=tuple(_turns(committed, before or {})),
        prev=made.prev,
        digest=made.digest,
        state=made.state,
        chosen=chosen,
    )


def links_of(committed: Committed) -> list[str]:
    """Return the links whose leases a commit speaks of, in order."""
    return sorted({str(each.link) for each in committed.commit.decisions if isinstance(each, LeaseEvent)})


def _turns(committed: Committed, before: Mapping[str, LeaseEvent]) -> list[LeaseTurn]:
    turns = []
    for decision in committed.commit.decisions:
        if isinstance(decision, LeaseEvent):
            was = before.get(decision.link)
            turns.append(
                LeaseTurn(
                    link=decision.link,
                    owner=decision.owner,
                    helper=decision.helper,
                    lease=decision.lease,
                    slots_before=was.slots if was is not None else 0,
                    slots_after=decision.slots,
                    reason=decision.reason,
                )
            )
    return turns


def _headline(committed: Committed) -> str:
    made = committed.commit
    kinds = Counter(tag_of(decision).rpartition(".")[2] for decision in made.decisions)
    said = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "nothing"
    facts = count(made.hi - made.lo, "fact")
    control = f" and {count(made.chi - made.clo, 'control event')}" if made.chi > made.clo else ""
    return f"version {made.version} of generation {made.generation} decided {said} from {facts}{control}"


def _about(decision: Decision) -> str:
    match decision:
        case LinkPriced() | LeaseChecked() | LeaseStalled():
            return f"{decision.owner}/{decision.owner_model} > {decision.helper}/{decision.helper_model}"
        case BreakerChanged():
            return f"{decision.helper}/{decision.model}"
        case NodeHealthChanged():
            return decision.node
        case RequestPresumedLost() | RequestOrphaned():
            return f"{decision.node}/{decision.model} {decision.request}"
        case _:
            return ""


def _text(decision: Decision) -> str:
    match decision:
        case LinkPriced():
            return _priced(decision)
        case LeaseChecked() | LeaseStalled():
            quiet = duration(decision.quiet_us)
            if isinstance(decision, LeaseChecked):
                return f"nothing has changed for {quiet}: the helper is asked what it runs"
            return f"no sign of work for {quiet}: the owner takes all back"
        case BreakerChanged():
            shut = f", nothing goes there for {duration(decision.quarantine_us)}" if decision.quarantine_us else ""
            return f"{decision.state} after {count(decision.failures, 'failure')}{shut}"
        case RequestPresumedLost():
            return "its owner is silent: the request may be lost"
        case RequestOrphaned():
            return "its owner's process ended with it: the request is over"
        case _:
            state = f"{decision.state}: " if isinstance(decision, NodeHealthChanged) else ""
            return f"{state}{getattr(decision, 'reason', '')}"


def _priced(decision: LinkPriced) -> str:
    if not decision.faster:
        return "not known to be faster (any more): the owner waits for no decision"
    times = f"{duration(decision.job_us)} against {duration(decision.owner_job_us)} for the same work"
    return f"faster, {times}: the owner may wait for a decision"

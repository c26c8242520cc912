"""The same facts, folded with other control events and decided again at the same moments: what differs.

Facts that only follow from the old decisions (lent, borrowed, answered, a load for borrowed work) stay what they were, so this
says what each decision would have been in the situation that there was; what would have become of it is for the run on.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from domain.events import Decision, LeaseChanged, LeaseCleared, LeaseGranted, OwnerPlanned
from domain.events.commit import Commit
from domain.ids import LeaseId, LinkId
from domain.master.control import fold_control
from domain.master.decide import Head, decide, finish
from domain.master.fold import fold_fact
from domain.master.inputs import ControlInput
from domain.master.state import State
from services.simulator.whatif.changes import Changes, name_of
from services.simulator.whatif.recorded import Recorded, Step
from services.simulator.whatif.start import begun, links_of
from services.simulator.whatif.words import told

_NO_LEASE = LeaseId("")


class First(msgspec.Struct, frozen=True, kw_only=True):
    """The first commit whose decisions differ."""

    version: int
    at_us: int
    """When its last input was stored, on the stream's clock."""
    then: tuple[str, ...]
    now: tuple[str, ...]


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How often something was decided, and would be."""

    link: str
    """Owner and helper; empty for what is about no link."""
    what: str
    then: int
    now: int


class Redecided(msgspec.Struct, frozen=True, kw_only=True):
    """The difference."""

    commits: int
    differing: int
    first: First | None
    kinds: tuple[Count, ...]
    """Decisions by kind."""
    links: tuple[Count, ...]
    """Leases and verdicts by owner and helper."""


def redecide(recorded: Recorded, changes: Changes) -> Redecided:
    """Return how the decisions of `recorded` differ under `changes`."""
    state = begun(recorded, changes)
    then, now = _Tally(recorded, changes), _Tally(recorded, changes)
    first, differing = None, 0
    for step in recorded.steps:
        again = _again(state, step, changes)
        stored = [plain(decision) for decision in step.commit.decisions]
        then.count(stored)
        now.count(again)
        if stored != again:
            differing += 1
            first = first or _first(step.commit, state, stored, again, now.names)
    return Redecided(
        commits=len(recorded.steps),
        differing=differing,
        first=first,
        kinds=tuple(_counts(then.kinds, now.kinds)),
        links=tuple(_counts(then.links, now.links)),
    )


def _again(state: State, step: Step, changes: Changes) -> list[Decision]:
    """Fold the inputs of a commit and decide at its moment."""
    stored = step.commit
    claims = stored.term != state.term and (stored.lo, stored.clo) == (stored.hi, stored.chi)
    state.term = stored.term
    for _, given in step.control:
        fold_control(state, ControlInput(given.seq, changes.heard(given.event)))
    for fact in step.facts:
        fold_fact(state, fact)
    decided = decide(state, Head(stored.generation, stored.version), 0 if claims else None)
    finish(state, said=decided.said)
    return [plain(decision) for decision in decided.decisions]


def plain(decision: Decision) -> Decision:
    """Return a decision without the lease's id: it names the commit of the first grant, which may now be another one."""
    if isinstance(decision, LeaseGranted | LeaseChanged | LeaseCleared):
        return msgspec.structs.replace(decision, lease=_NO_LEASE)
    return decision


def _first(
    commit: Commit, state: State, then: Sequence[Decision], now: Sequence[Decision], names: dict[LinkId, str]
) -> First:
    """Return what of the two sides the other does not have too."""
    return First(
        version=commit.version,
        at_us=state.stamp_us,
        then=tuple(text for one in then if one not in now for text in told(one, now, names)),
        now=tuple(text for one in now if one not in then for text in told(one, then, names)),
    )


class _Tally:
    """Counts decisions by kind, and leases and verdicts by link."""

    def __init__(self, recorded: Recorded, changes: Changes) -> None:
        self.names = {link.link: name_of(link) for link in links_of(recorded, changes).values()}
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.links: Counter[tuple[str, str]] = Counter()

    def count(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self.kinds["", type(decision).__name__] += 1
            for link, what in _of_links(decision):
                self.links[self.names.get(link, link), what] += 1


def _of_links(decision: Decision) -> Iterator[tuple[LinkId, str]]:
    match decision:
        case LeaseGranted(probe=True):
            yield decision.link, "probe"
        case LeaseGranted():
            yield decision.link, "granted"
        case LeaseChanged():
            yield decision.link, "changed"
        case LeaseCleared():
            yield decision.link, f"dropped: {decision.reason}"
        case OwnerPlanned():
            for verdict in decision.verdicts:
                if verdict.outcome == "skipped":
                    yield verdict.link, f"skipped: {verdict.code}"
        case _:
            return


def _counts(then: Counter[tuple[str, str]], now: Counter[tuple[str, str]]) -> Iterator[Count]:
    for link, what in sorted({*then, *now}):
        yield Count(link=link, what=what, then=then[link, what], now=now[link, what])

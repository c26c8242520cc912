"""What clients asked and what became of it, read from facts: arrivals, service times, loads, and how long the control path took.

Moments of one producer are its own clock's, shifted onto the stream's by the least delayed of its facts: the time between two
of them is what the producer measured. Nothing is ever measured between the clocks of two producers.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from domain.events import (
    Basis,
    BorrowAccepted,
    BorrowFinished,
    Cancelled,
    Expired,
    Failed,
    Finished,
    Held,
    LeaseUpdated,
    LendAnswered,
    Lent,
    Loaded,
    LoadStarted,
    Rejected,
)
from domain.events.base import tag_of
from domain.ids import Incarnation, LeaseId, ModelId, NodeId, RequestId
from domain.master.inputs import FactInput
from services.simulator.whatif.recorded import Asked, LoadSeen, Paths

CONTROL_US: Final = 50_000
HOP_US: Final = 20_000
"""Where nothing was measured, the delays of the simulator's scenarios."""
_OWN_REASONS: Final = frozenset({"too_large", "image", "request", "not_replayable"})
"""Words of `not_lendable` that are about the request itself; others are about where it has been."""

Life = tuple[NodeId, Incarnation]
Ended = Finished | Cancelled
Decided = tuple[int, Basis | None]
"""Slots, and the fact that the decision cites; None where another one than the owner's own facts led to it."""
Unserved = Failed | Rejected | Expired


class _End(NamedTuple):
    life: Life
    moment_us: int
    fact: Ended
    held: Held | None


class _Load(NamedTuple):
    life: Life
    moment_us: int
    fact: Loaded
    owner: str


class _Gap(NamedTuple):
    life: Life
    moment_us: int
    took_us: int


class Chronicle:
    """Hears facts in their order."""

    def __init__(self, decided: Mapping[LeaseId, Sequence[Decided]]) -> None:
        """`decided`: the slots of each lease as they were decided, in order."""
        self._decided = {lease: deque(each) for lease, each in decided.items()}
        self._cited_us: dict[Basis, int | None] = {
            basis: None for each in decided.values() for _, basis in each if basis is not None
        }
        self._shift_us: dict[Life, int] = {}
        self._held: dict[RequestId, Held] = {}
        self._ended: list[_End] = []
        self._unserved: list[tuple[Life, int, str]] = []
        self._ran_as: dict[RequestId, tuple[NodeId, ModelId]] = {}
        self._loads: list[_Load] = []
        self._borrower: dict[NodeId, str] = {}
        self._grants: list[_Gap] = []
        self._lent_us: dict[RequestId, int] = {}
        self._accepted_us: dict[RequestId, int] = {}
        self._away: dict[RequestId, _Gap] = {}
        """From lent to answered, on the owner's clock ..."""
        self._inside: dict[RequestId, int] = {}
        """... and from accepted to finished, on the helper's; the streams of two producers have no order."""

    def hear(self, given: FactInput, mono_us: int) -> None:
        """Take a fact; `mono_us`: its producer's clock, 0 if it did not say."""
        if not given.speaker:
            return
        life, moment_us = (given.speaker, given.incarnation), mono_us or given.stamp_us
        ahead_us = given.stamp_us - moment_us
        self._shift_us[life] = min(ahead_us, self._shift_us.get(life, ahead_us))
        basis = Basis(given.speaker, given.incarnation, given.pseq)
        if basis in self._cited_us:
            self._cited_us[basis] = moment_us
        self._take(given, life, moment_us)

    def _take(self, given: FactInput, life: Life, moment_us: int) -> None:
        fact = given.fact
        match fact:
            case Held():
                self._held[fact.request] = fact
            case Finished() | Cancelled():
                self._ended.append(_End(life, moment_us, fact, self._held.pop(fact.request, None)))
            case Failed() | Rejected() | Expired():
                self._held.pop(fact.request, None)
                self._unserved.append((life, moment_us, tag_of(type(fact)).rpartition(".")[2]))
            case LeaseUpdated():
                cited_us = self._cited(fact)
                if cited_us is not None:
                    self._grants.append(_Gap(life, moment_us, moment_us - cited_us))
            case Lent():
                self._lent_us[fact.request] = moment_us
            case LendAnswered():
                lent_us = self._lent_us.pop(fact.request, moment_us)
                self._away[fact.request] = _Gap(life, moment_us, moment_us - lent_us)
            case BorrowAccepted():
                self._accepted_us[fact.request] = moment_us
                self._ran_as[fact.request] = given.speaker, fact.model
                self._borrower[given.speaker] = self._queue_of(fact)
            case BorrowFinished():
                self._inside[fact.request] = moment_us - self._accepted_us.pop(fact.request, moment_us)
            case LoadStarted(cause="own"):
                self._borrower.pop(given.speaker, None)
            case Loaded():
                mine = f"{given.speaker}/{fact.model}"
                owner = mine if fact.cause == "own" else self._borrower.get(given.speaker, mine)
                self._loads.append(_Load(life, moment_us, fact, owner))
            case _:
                pass

    def _cited(self, fact: LeaseUpdated) -> int | None:
        """Return when the fact was stated that led to the decision behind `fact`; None if none of the owner's did."""
        decided = self._decided.get(fact.lease, deque())
        while decided:
            slots, basis = decided.popleft()
            if slots == fact.slots:
                return None if basis is None else self._cited_us[basis]
        return None

    def _queue_of(self, fact: BorrowAccepted) -> str:
        """Return the owner's queue of a borrowed request."""
        held = self._held.get(fact.request)
        return f"{fact.owner}/{held.model if held is not None else fact.model}"

    # -- what was read

    def moment(self, life: Life, moment_us: int) -> int:
        """Return a moment of a producer on the stream's clock."""
        return moment_us + self._shift_us[life]

    def asked(self) -> list[Asked]:
        """Return every request that was served, or whose client left, in order of arrival."""
        return sorted(self._requests(), key=lambda one: (one.at_us, one.request))

    def _requests(self) -> Iterator[Asked]:
        for life, moment_us, fact, held in self._ended:
            ended_us = self.moment(life, moment_us)
            ran = self._ran_as.get(fact.request) if fact.helper else None
            why = held.not_lendable if held is not None else ""
            yield Asked(
                request=fact.request,
                owner=life[0],
                model=fact.model,
                at_us=ended_us - fact.wait_us - fact.service_us,
                ended_us=ended_us,
                work=fact.work,
                service_us=fact.service_us,
                helper=fact.helper,
                helper_model=ran[1] if ran is not None and ran[0] == fact.helper else fact.model,
                est_tokens=held.est_tokens if held is not None else 0,
                streaming=held.streaming if held is not None else False,
                not_lendable=why if why in _OWN_REASONS else "",
                vision=held.vision if held is not None else False,
                gone=isinstance(fact, Cancelled),
            )

    def loads(self) -> list[LoadSeen]:
        """Return every load that ended well, in order of its end."""
        seen = (
            LoadSeen(life[0], fact.model, self.moment(life, moment_us), fact.load_us, owner)
            for life, moment_us, fact, owner in self._loads
        )
        return sorted(seen, key=lambda load: (load.at_us, load.node))

    def unserved(self, begin_us: int, end_us: int) -> dict[str, int]:
        """Return how many requests ended unserved in a time, by how."""
        counts: dict[str, int] = {}
        for life, moment_us, kind in self._unserved:
            if begin_us <= self.moment(life, moment_us) < end_us:
                counts[kind] = counts.get(kind, 0) + 1
        return dict(sorted(counts.items()))

    def paths(self, until_us: int) -> Paths:
        """Return the control path as it was before `until_us`; if nothing was measured before, as it was at all."""
        control, hop = self._taken(self._grants, until_us), self._taken([*self._hops()], until_us)
        return Paths(
            int(statistics.median(control)) if control else CONTROL_US,
            int(statistics.median(hop)) if hop else HOP_US,
            len(control) + len(hop),
        )

    def _hops(self) -> Iterator[_Gap]:
        """Yield one way: there with the headers and back with the answer is what the helper's time leaves of the owner's."""
        for request, away in self._away.items():
            if request in self._inside:
                yield away._replace(took_us=max(0, away.took_us - self._inside[request]) // 2)

    def _taken(self, gaps: Sequence[_Gap], until_us: int) -> list[int]:
        known = [(self.moment(life, moment_us), took_us) for life, moment_us, took_us in gaps]
        return [took_us for at_us, took_us in known if at_us < until_us] or [took_us for _, took_us in known]


class Stretch(msgspec.Struct, frozen=True):
    """A time in which a request was open at every moment but the ends."""

    begin_us: int
    end_us: int


def busy(asked: Iterable[Asked]) -> list[Stretch]:
    """Return the busy times that requests, in order of arrival, make."""
    found: list[Stretch] = []
    for one in asked:
        if found and one.at_us <= found[-1].end_us:
            found[-1] = Stretch(found[-1].begin_us, max(found[-1].end_us, one.ended_us))
        else:
            found.append(Stretch(one.at_us, one.ended_us))
    return found

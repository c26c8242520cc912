"""What happened to one request, moment by moment: each fact about it as a line, timed from its arrival."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from domain.events import (
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Cancelled,
    CutOff,
    Expired,
    Failed,
    Finished,
    Held,
    Kept,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    Loaded,
    LoadFailed,
    LoadStarted,
    NativeWaited,
    Rejected,
    RelayRefused,
    RequestOrphaned,
    RequestPresumedLost,
    Started,
    StillRunning,
)
from domain.events.base import tag_of
from projections.why.plans import reason_sentence
from projections.why.said import Committed, Said
from projections.words import count, duration

TERMINAL: Final = (Finished, Failed, Cancelled, Rejected, Expired)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to the request."""

    t_us: int
    """Since its arrival: by its owner's own clock for what the owner says, by the server's stamps for all others."""
    at_ns: int
    """Stamp of the server."""
    who: str
    """Node that says it, or `master`."""
    what: str
    """held, kept, lent, accepted, started, returned, ..., finished."""
    text: str
    """The same in words, numbers included."""
    seq: int
    """Sequence in LW_EVENTS; of a word of the master, the version of the commit."""


class Clock(msgspec.Struct, frozen=True):
    """When the request came."""

    owner: str
    incarnation: str
    mono_us: int
    """By its owner's clock; 0 if that is not known."""
    at_ns: int
    """By the server's stamps."""

    def since_us(self, said: Said) -> int:
        """Return how long after the arrival something was said."""
        if self.mono_us and said.mono_us and (said.who, said.incarnation) == (self.owner, self.incarnation):
            return said.mono_us - self.mono_us
        return (said.at_ns - self.at_ns) // 1000


def clock_of(first: Said) -> Clock:
    """Return when a request came, from its owner's first fact about it."""
    waited_us = 0
    match first.fact:
        case Started():
            waited_us = first.fact.wait_us
        case Lent():
            waited_us = first.fact.waited_us
        case Finished() | Failed() | Cancelled() | Rejected() | Expired():
            waited_us = first.fact.wait_us + first.fact.service_us
        case _:
            pass
    mono_us = first.mono_us - waited_us if first.mono_us else 0
    return Clock(first.who, first.incarnation, mono_us, first.at_ns - waited_us * 1000)


def moments_of(request: str, said: Sequence[Said], commits: Iterable[Committed], clock: Clock) -> list[Moment]:
    """Return what happened, in order of time; `said` may hold loads of the models beside facts about the request."""
    found: list[Moment] = []
    before: set[str] = set()
    for each in said:
        text = _TEXTS.get(type(each.fact))
        if text is None or (isinstance(each.fact, Held) and "held" in before):  # said again: its size is known now
            continue
        what = tag_of(each.fact).partition(".")[2]
        found.append(_moment(each, clock, what, text(each)))
        before.add(what if each.names(request) else "")
        if what in _COMES_BACK:
            before.discard("held")
    found += [
        _lost(committed, clock, decision)
        for committed in commits
        for decision in committed.commit.decisions
        if isinstance(decision, RequestPresumedLost | RequestOrphaned) and decision.request == request
    ]
    return sorted(found, key=lambda one: (one.t_us, one.seq))


_COMES_BACK: Final = {"returned", "busy", "cut_off", "relay_refused", "started"}


def _moment(said: Said, clock: Clock, what: str, text: str) -> Moment:
    return Moment(t_us=clock.since_us(said), at_ns=said.at_ns, who=said.who, what=what, text=text, seq=said.seq)


def _lost(committed: Committed, clock: Clock, decision: RequestPresumedLost | RequestOrphaned) -> Moment:
    lost = isinstance(decision, RequestPresumedLost)
    return Moment(
        t_us=(committed.at_ns - clock.at_ns) // 1000,
        at_ns=committed.at_ns,
        who="master",
        what="presumed_lost" if lost else "orphaned",
        text="its owner is silent: it may be lost" if lost else "its owner's process ended with it: it is over",
        seq=committed.commit.version,
    )


def _held(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, Held)
    ahead = f"behind {fact.waiting - 1} of its own" if fact.waiting > 1 else "first of its queue"
    barred = f"; not to be lent: {fact.not_lendable or 'it was handed back before'}" if not fact.lendable else ""
    return f"held {ahead}{barred}"


def _kept(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, Kept)
    here, there = duration(fact.owner_finish_us), duration(fact.helper_finish_us)
    return f"kept for the faster {fact.helper}: done here in {here}, there in {there} (predicted)"


def _lent(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, Lent)
    slots = f", {fact.out} of {count(fact.slots, 'slot')} taken" if fact.slots else ""
    return f"lent to {fact.helper} under lease {fact.lease}{slots}"


def _answered(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, LendAnswered)
    # a stream's answer does not say it
    served = f": {_served(fact.service_us, fact.load_us)}" if fact.service_us else ""
    return f"{fact.helper} answered {fact.status}{served}"


def _served(service_us: int, load_us: int) -> str:
    load = f" after loading for {duration(load_us)}" if load_us else ""
    return f"served in {duration(service_us)}{load}"


def _because(kind: str, beginning: str) -> Callable[[Said], str]:
    """Return what says `beginning`, the reason, and what the reason means."""

    def text(said: Said) -> str:
        reason = str(getattr(said.fact, "reason", ""))
        where = str(getattr(said.fact, "helper", "") or said.who)
        meaning = reason_sentence(kind, reason)
        return f"{beginning.format(where=where)}: {reason}{f' ({meaning})' if meaning else ''}"

    return text


def _accepted(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, BorrowAccepted)
    place = f"behind {fact.position} at its desk" if fact.position else "next at its desk"
    return f"{said.who} took it, {place}"


def _borrow_started(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, BorrowStarted)
    load = f", the model loaded for it in {duration(fact.load_us)}" if fact.load_us else ""
    return f"begun by {said.who}'s engine{load}"


def _borrow_finished(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, BorrowFinished)
    return f"{said.who}'s engine {'is done with it' if fact.ok else 'ended it badly'}: {_served(fact.service_us, 0)}"


def _started(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, Started)
    return f"given to its owner's engine after {duration(fact.wait_us)}, {fact.in_engine} inside"


def _ended(said: Said) -> str:
    fact: Any = said.fact
    assert isinstance(fact, TERMINAL)
    what = tag_of(fact).partition(".")[2]
    where = f" by {fact.helper}" if fact.helper else ""
    code = f" ({fact.code})" if fact.code else ""
    times = f": waited {duration(fact.wait_us)}"
    times += f", served in {duration(fact.service_us)}{where}" if fact.service_us else ""
    return f"{what} {fact.status or 'without an answer'}{code}{times}"


def _load(said: Said) -> str:
    fact = said.fact
    match fact:
        case LoadStarted():
            return f"{said.who} begins to load {fact.model} ({fact.cause})"
        case Loaded():
            return f"{said.who} has loaded {fact.model} in {duration(fact.load_us)} ({fact.cause})"
        case _:
            assert isinstance(fact, LoadFailed)
            return f"{said.who} could not load {fact.model}: {fact.reason}"


def _native(said: Said) -> str:
    fact = said.fact
    assert isinstance(fact, NativeWaited)
    return f"waited {duration(fact.wait_us)} behind {fact.borrowed_in_engine} borrowed in the engine"


_TEXTS: Final[dict[type, Callable[[Said], str]]] = {
    Held: _held,
    Kept: _kept,
    Started: _started,
    Lent: _lent,
    LendAnswered: _answered,
    LendReturned: _because("returned", "came back unstarted from {where}"),
    LendBusy: _because("busy", "not taken by {where}, it may go there later"),
    CutOff: _because("cut_off", "taken back from {where}"),
    RelayRefused: _because("relay_refused", "could not be passed on to {where}"),
    BorrowAccepted: _accepted,
    BorrowStarted: _borrow_started,
    BorrowFinished: _borrow_finished,
    BorrowReturned: _because("borrowed_returned", "{where} hands it back unstarted"),
    BorrowBusy: lambda said: f"{said.who}'s desk is full",
    StillRunning: lambda said: f"{said.who} still has it, for {duration(getattr(said.fact, 'running_us', 0))} so far",
    NativeWaited: _native,
    LoadStarted: _load,
    Loaded: _load,
    LoadFailed: _load,
    **dict.fromkeys(TERMINAL, _ended),
}

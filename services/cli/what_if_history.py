"""What a what-if takes from stored history: the stretch that is asked for, and the master's state before it."""

from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec

from adapters.log.history import Cursors, History, Streams, first_of_generation, last_commit, stored_commit
from adapters.log.reader import Reader
from adapters.log.segments import FindState, vouched
from adapters.times import Moment
from domain.actions import OrderKey
from domain.errors import BadConfigError, ChainBrokenError, LeasewayError, NotYetError
from domain.events import (
    BorrowFinished,
    HeartbeatMissed,
    LeaseChanged,
    LeaseCleared,
    LeaseGranted,
    LinkPriced,
    OwnerPlanned,
    Registered,
)
from domain.events.commit import Commit, is_sealed
from domain.ids import LeaseId, LinkId
from domain.master.inputs import FactInput
from domain.policies import CURRENT
from domain.ports import StoredMessage, Stream
from services.simulator.whatif.chronicle import Chronicle, Decided, busy
from services.simulator.whatif.recorded import Asked, Recorded, Step
from services.simulator.whatif.report import moment

_MOVED_US: Final = 1_000_000
_BY_OWNER: Final = frozenset({"enqueued", "completed", "borrowed_completed", "drained"})
"""Triggers of plans that follow from facts of the owner: the one that they cite is then the one that led to them."""
Say = Callable[[str], None]


class _Mono(msgspec.Struct):
    mono_us: int = 0


class _Ledger(msgspec.Struct):
    """What is wanted of every commit of the newest generation."""

    first: Commit
    head: Commit
    hi: "array[int]"
    """The last fact that each commit folded, from the first commit on."""
    rejected: list[tuple[int, str]]
    slots: dict[LeaseId, list[Decided]]
    """What was decided of each lease."""
    priced: list[tuple[LinkPriced, OrderKey]]


class _Facts(msgspec.Struct):
    first: int
    """Sequence of the first one read."""
    end_us: int
    """From where what is so long ago counts back."""
    stamps: "array[int]"
    chronicle: Chronicle

    def stamp(self, seq: int) -> int:
        """Return when fact `seq` was stored; for one that is not there any more, when the first one was."""
        return self.stamps[min(max(0, seq - self.first), len(self.stamps) - 1)]


async def _none(_: int) -> tuple[int, bytes] | None:
    return None


async def read(
    streams: Streams,
    reader: Reader,
    cluster: str,
    since: Moment | None,
    until: Moment | None,
    say: Say,
    find: FindState = _none,
    end_us: int = 0,
) -> Recorded:
    """Return what is stored between two moments; without them, all of the newest generation.

    What is so long ago counts back from `end_us`; 0: from the newest fact.

    A busy time is never cut at its beginning: the stretch begins with the first request of the one that `since` lies in, or
    that follows. The state before it is folded from the newest one that `find` has and a commit vouches for, else from the
    generation's beginning.

    Raises:
        NotYetError: nothing is stored yet.
        BadConfigError: nothing is stored in that time.
        HistoryError: stored history is broken.
        HistoryGapError: history does not reach back to where that state has to be folded from.
    """
    ledger = await _ledger(streams.ledger, say)
    facts = await _facts(streams.events, reader, ledger, say)
    facts.end_us = end_us or facts.stamps[-1]
    asked = facts.chronicle.asked()
    begin_us, end_us = _range(asked, facts, ledger, since, until)
    mine = [one for one in asked if begin_us <= one.at_us < end_us]
    if not mine:
        raise _nothing_asked(asked)
    over_us = max(end_us if until is not None else 0, *(one.ended_us for one in mine))
    history = History(streams, reader)
    history.begin_at(ledger.first)
    version = _before(ledger, facts, begin_us)
    if version:
        await _restore(history, find, version)
        await history.catch_up(await _commit(streams.ledger, version))
    state = history.state if history.rules is CURRENT else CURRENT.take_over(history.rules, history.state)
    steps = await _steps(history, ledger, facts, over_us if until is not None else facts.stamps[-1])
    loads = [load for load in facts.chronicle.loads() if begin_us <= load.at_us <= over_us]
    return Recorded(
        cluster=cluster,
        generation=ledger.head.generation,
        version=history.position.version,
        state=CURRENT.encode_state(state),
        begin_us=begin_us,
        end_us=over_us,
        steps=steps,
        priced=_priced(ledger, version),
        asked=mine,
        loads=loads,
        paths=facts.chronicle.paths(begin_us),
        left_out=facts.chronicle.unserved(begin_us, over_us),
        notes=tuple(_notes(steps, begin_us, _at(since, facts, ledger) if since is not None else None)),
    )


async def _restore(history: History, find: FindState, version: int) -> None:
    """Take the newest stored state up to a version: a bus keeps facts for a week, and a long history is long to fold."""
    near = await vouched(history.streams.ledger, find, version, after=history.position.version)
    if near is not None:
        history.restore(near[1], await _commit(history.streams.ledger, near[0]))


async def _batches(stream: Stream, after: int, until: int) -> AsyncGenerator[Sequence[StoredMessage], None]:
    if until > after:
        batches = cast("AsyncGenerator[Sequence[StoredMessage], None]", stream.read(after=after, until=until))
        async with aclosing(batches):
            async for batch in batches:
                yield batch


async def _commit(ledger: Stream, version: int) -> Commit:
    message = await ledger.get(version)
    if message is None:
        raise BadConfigError(f"the ledger does not hold version {version}")
    return stored_commit(message)


async def _ledger(stream: Stream, say: Say) -> _Ledger:
    head = await last_commit(stream)
    if head is None:
        raise NotYetError("no decision is stored yet; there is nothing to ask about")
    found = _Ledger(await first_of_generation(stream, head), head, array("q"), [], {}, [])
    async for batch in _batches(stream, found.first.version - 1, head.version):
        for stored in map(stored_commit, batch):
            found.hi.append(stored.hi)
            found.rejected += stored.rejected
            _take(found, stored)
        say(f"reading history: commit {batch[-1].seq} of {head.version}")
    return found


def _take(found: _Ledger, stored: Commit) -> None:
    """Take what a commit decided of leases and told of links."""
    by_owner = False
    for index, decision in enumerate(stored.decisions):
        match decision:
            case OwnerPlanned():
                by_owner = decision.trigger in _BY_OWNER
            case LeaseGranted() | LeaseChanged() | LeaseCleared():
                basis = decision.basis if by_owner else None
                found.slots.setdefault(decision.lease, []).append((decision.slots, basis))
            case LinkPriced():
                found.priced.append((decision, (stored.generation, stored.version, index)))
            case _:
                pass


async def _facts(stream: Stream, reader: Reader, ledger: _Ledger, say: Say) -> _Facts:
    bounds = await stream.bounds()
    first = max(bounds.first, ledger.first.lo + 1)
    found = _Facts(first, 0, array("q"), Chronicle(ledger.slots))
    mono = msgspec.json.Decoder(_Mono)
    reader.told(ledger.rejected)
    async for batch in _batches(stream, first - 1, bounds.last):
        for message in batch:
            found.stamps.append(message.stamp_ns // 1000)
            given = reader.fact(message)
            if isinstance(given, FactInput):
                found.chronicle.hear(given, mono.decode(message.body).mono_us)
        say(f"reading history: fact {batch[-1].seq} of {bounds.last}")
    if not found.stamps:
        raise NotYetError("no fact is stored yet; there is nothing to ask about")
    return found


# -- the range


def _range(
    asked: Sequence[Asked], facts: _Facts, ledger: _Ledger, since: Moment | None, until: Moment | None
) -> tuple[int, int]:
    """Return the beginning of the first busy time at or after `since`, and the end."""
    end_us = _at(until, facts, ledger) if until is not None else facts.stamps[-1] + 1
    begin_us = _at(since, facts, ledger) if since is not None else facts.stamps[0]
    for stretch in busy(asked):
        if stretch.end_us >= begin_us:
            return stretch.begin_us, end_us
    return begin_us, end_us


def _nothing_asked(asked: Sequence[Asked]) -> LeasewayError:
    if not asked:
        what = "what-if asks what other rules would have made of those"
        return NotYetError(f"history: holds no request that was served yet; {what}")
    first, last = (moment(edge(one.at_us for one in asked)) for edge in (min, max))
    return BadConfigError(
        f"history: no request was served in that time; those that are stored came from {first} to {last}"
    )


def _at(moment: Moment, facts: _Facts, ledger: _Ledger) -> int:
    if moment.number is not None:
        place = moment.number - ledger.first.version
        if not 0 <= place < len(ledger.hi):
            raise BadConfigError(
                f"version {moment.number} is not in the ledger's newest generation, "
                f"which has {ledger.first.version} to {ledger.head.version}"
            )
        return facts.stamp(ledger.hi[place])
    return moment.stamp_ns(facts.end_us * 1000) // 1000


def _before(ledger: _Ledger, facts: _Facts, begin_us: int) -> int:
    """Return the version of the last commit all of whose facts were stored before `begin_us`; 0 if there is none."""
    count = bisect_left(ledger.hi, begin_us, key=facts.stamp)
    return ledger.first.version + count - 1 if count else 0


async def _steps(history: History, ledger: _Ledger, facts: _Facts, end_us: int) -> list[Step]:
    """Return the commits after the history's position whose last fact was stored by `end_us`."""
    steps: list[Step] = []
    cursors = Cursors(history.streams, history.position)
    last = ledger.first.version + bisect_left(ledger.hi, end_us + 1, key=facts.stamp) - 1
    try:
        for message in await cursors.commits.take(last):
            stored = stored_commit(message)
            control, facts_of = await cursors.control.take(stored.chi), await cursors.facts.take(stored.hi)
            if not is_sealed(stored, [*control, *facts_of], message.body):
                raise ChainBrokenError(f"commit {stored.version}: its digest does not match its inputs and decisions")
            history.reader.told(stored.rejected)
            decreed = [(each.stamp_ns // 1000, history.reader.control(each)) for each in control]
            steps.append(Step(stored, decreed, [fact for fact, _ in history.reader.facts(facts_of)]))
    finally:
        await cursors.close()
    return steps


def _priced(ledger: _Ledger, version: int) -> dict[LinkId, tuple[LinkPriced, OrderKey]]:
    told: dict[LinkId, tuple[LinkPriced, OrderKey]] = {}
    for word, order in ledger.priced:
        if order[1] <= version:
            told[word.link] = word, order
    return {link: said for link, said in told.items() if said[0].faster}


def _notes(steps: Sequence[Step], begin_us: int, since_us: int | None) -> Iterator[str]:
    """Yield what was in that time and is not in a run on."""
    if since_us is not None and begin_us < since_us - _MOVED_US:
        yield f"begins {(since_us - begin_us) / 1e6:.0f} s before the moment asked for, where nothing was open"
    given = [fact for step in steps for fact in step.facts if isinstance(fact, FactInput) and fact.stamp_us >= begin_us]
    policies = sorted({step.commit.policy for step in steps if step.commit.policy != CURRENT.name})
    if policies:
        yield f"decided by {', '.join(policies)} then and by {CURRENT.name} here: that too makes differences"
    for what, count in (
        ("a node registered", sum(isinstance(one.fact, Registered) for one in given)),
        ("a node was silent", sum(isinstance(one.fact, HeartbeatMissed) for one in given)),
        (
            "a helper failed a request",
            sum(isinstance(one.fact, BorrowFinished) and not (one.fact.ok or one.fact.owner_gone) for one in given),
        ),
    ):
        if count:
            yield f"{what} {count} times in that time: in a run on all nodes live, and no engine fails"

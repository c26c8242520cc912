"""The state of the cluster as it was: at a version of the ledger, or at a time.

At a version: the nearest snapshot before it that a commit vouches for (else the beginning of its generation), and every commit
after that with its inputs, each checked as a master that starts checks them. At a time: the newest version stored until then, and
the facts and control events stored since.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec

from adapters.log.history import History, Streams, first_of_generation, last_commit, stored_commit
from adapters.log.holes import next_after
from adapters.log.reader import Reader
from adapters.log.snapshots import Snapshots
from adapters.times import utc
from domain.errors import CallerError, HistoryGapError, NotYetError
from domain.events.commit import Commit
from domain.master.state import State
from domain.master.step import Range
from domain.policies import CURRENT
from domain.ports import StoredMessage, Stream

SNAPSHOTS_TRIED: Final = 3


Fold = Callable[[History, Commit], Awaitable[None]]
"""Moves a state on along the stored commits up to one of them, as `History.catch_up` does."""


class Traveled(msgspec.Struct, frozen=True, kw_only=True):
    """The state at a moment, and where that is."""

    state: State
    """As today's rules see it: a state of older rules is taken over."""
    commit: Commit
    """The newest commit in it."""
    at_ns: int
    """Stamp of that commit."""
    facts: int = 0
    """Facts folded after that commit."""
    control: int = 0
    """Control events folded after that commit."""
    head: int
    """The ledger's newest version."""
    snapshot: int = 0
    """Version of the snapshot that it began at; 0 for none."""


class NothingThereError(CallerError):
    """No commit is kept of the moment that was asked for; the message says where history begins and ends."""

    def __init__(self, message: str, bounds: str = "") -> None:
        """Say `message`; `bounds`: where what is kept begins and ends, if the moment is merely outside of it."""
        super().__init__(message)
        self.bounds = bounds

    def nor_in(self, where: str, other: "NothingThereError") -> "NothingThereError":
        """Return what to say if the same moment is missed at a second place, too: nothing of it twice."""
        if not self.bounds or not other.bounds:
            return NothingThereError(f"{self}; in {where}: {other}")
        if self.bounds == other.bounds:
            return NothingThereError(f"{self}, in {where} too", self.bounds)
        return NothingThereError(f"{self}; in {where} it {other.bounds}", self.bounds)


async def state_at(
    streams: Streams,
    reader: Reader,
    *,
    snapshots: Snapshots | None = None,
    version: int | None = None,
    time_ns: int | None = None,
    fold: Fold | None = None,
) -> Traveled:
    """Return the state after commit `version`, or at `time_ns`; with neither, now: after everything that is stored.

    `fold` moves the state on along the commits; unless given, along the ledger's stream.

    Raises:
        NotYetError: nothing is decided yet.
        NothingThereError: there is no such version, or nothing as old.
            Or what is stored is not whole from the nearest beginning on.
        HistoryError: what is stored is not what was decided.
    """
    head = await last_commit(streams.ledger)
    if head is None:
        raise NotYetError("history: the ledger is empty, no master has decided anything yet")
    message = await _commit_at(streams.ledger, head, version, time_ns)
    target = stored_commit(message)
    history = History(streams, reader)
    first = await first_of_generation(streams.ledger, target)
    history.begin_at(first)
    began = await _restore(history, snapshots, first, target)
    try:
        await (history.catch_up(target) if fold is None else fold(history, target))
        facts, control = (0, 0) if version is not None else await _fold_on(history, time_ns)
    except HistoryGapError as error:
        after = "" if version is not None else " and on"
        raise NothingThereError(f"history: cannot be folded up to version {target.version}{after}: {error}") from None
    state: State = history.state
    if history.rules.name != CURRENT.name:
        state = CURRENT.take_over(history.rules, history.state)
    return Traveled(
        state=state,
        commit=target,
        at_ns=message.stamp_ns,
        facts=facts,
        control=control,
        head=head.version,
        snapshot=began,
    )


async def _commit_at(ledger: Stream, head: Commit, version: int | None, time_ns: int | None) -> StoredMessage:
    newest = head.version if time_ns is None else await last_until(ledger, time_ns)
    wanted = newest if version is None else version
    message = await ledger.get(wanted) if 0 < wanted <= head.version else None
    if message is not None:
        return message
    bounds = await ledger.bounds()
    oldest = await ledger.get(bounds.first)
    stored = f" (stored {utc(oldest.stamp_ns)})" if oldest is not None else ""
    kept = f"begins at version {bounds.first}{stored} and ends at {head.version}"
    asked = f"version {version}" if version is not None else f"time {utc(time_ns or 0)}"
    raise NothingThereError(f"{asked}: must be within history, which {kept}", kept)


async def last_until(stream: Stream, time_ns: int) -> int:
    """Return the sequence of the newest message of `stream` stored until `time_ns`; 0 if there is none.

    A bisection over the stamps; a stepped server clock can only move its end within the step.
    """
    bounds = await stream.bounds()
    low, high = bounds.first, bounds.last + 1
    while low < high:
        middle = (low + high) // 2
        there = middle
        message = await stream.get(middle)
        if message is None:  # in a hole: what follows it tells on which side of it the time lies
            there = await next_after(stream, middle, high - 1)
            message = await stream.get(there) if there < high else None
        if message is not None and message.stamp_ns <= time_ns:
            low = there + 1
        else:
            high = middle
    return low - 1 if low > bounds.first else 0


async def _restore(history: History, snapshots: Snapshots | None, first: Commit, target: Commit) -> int:
    """Begin at the newest snapshot of the target's generation that a commit vouches for; return its version."""
    if snapshots is None:
        return 0
    upto = target.version
    for _ in range(SNAPSHOTS_TRIED):
        newest = await snapshots.newest(not_after=upto)
        if newest is None or newest[0] < first.version:
            return 0
        message = await history.streams.ledger.get(newest[0])
        if message is not None and history.restore(newest[1], stored_commit(message)):
            return newest[0]
        upto = newest[0] - 1
    return 0


async def _fold_on(history: History, time_ns: int | None) -> tuple[int, int]:
    """Fold what is stored after the newest commit, until `time_ns`; return how many facts and control events that were."""
    streams, position = history.streams, history.position
    control = await _until(streams.control, position.chi, time_ns)
    facts = await _until(streams.events, position.hi, time_ns)
    decreed = [(history.reader.control(message), message) for message in control]
    history.rules.fold_into(history.state, Range(), decreed, history.reader.facts(facts))
    return len(facts), len(control)


async def _until(stream: Stream, after: int, time_ns: int | None) -> list[StoredMessage]:
    last = (await stream.bounds()).last
    if last <= after:
        return []
    found: list[StoredMessage] = []
    batches = stream.read(after=after, until=last)
    async with aclosing(cast("AsyncGenerator[Sequence[StoredMessage], None]", batches)):
        async for batch in batches:
            end = len(batch) if time_ns is None else bisect_left(batch, time_ns + 1, key=lambda one: one.stamp_ns)
            found += batch[:end]
            if end < len(batch):
                break
    return found

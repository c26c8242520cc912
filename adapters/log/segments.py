"""A long history in parts that are verified apart: each begins in the very state in which the one before it must end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from adapters.log.checkpoints import Kept
from adapters.log.generations import check_begins, safe_mode_left
from adapters.log.history import History, Streams, first_of_generation, last_commit, stored_commit
from adapters.log.report import Difference, Report
from adapters.log.snapshots import content_digest
from adapters.log.verify import Part
from domain.errors import CallerError, HistoryGapError
from domain.events.commit import Commit
from domain.ports import Stream

FindState = Callable[[int], Awaitable[tuple[int, bytes] | None]]
"""Returns the newest stored state of a version up to this one: (version, bytes); None if there is none."""
_TRIED: Final = 5
VERSIONS_MIN: Final = 50
"""A part with fewer commits is not worth a process."""
PARTS_PER_WORKER: Final = 4
"""Parts differ in what they cost; with more of them than workers nobody waits long for the last one."""


class BadRangeError(CallerError):
    """The versions asked for are not in the history."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One part, and what is known of its beginning."""

    part: Part
    begin_digest: str = ""
    """Of the commit that it continues; empty for the first."""
    begin_state: str = ""
    """Digest of the state that it begins in; empty for the first."""


async def vouched(ledger: Stream, find: FindState, upto: int, *, after: int = 0) -> tuple[int, bytes] | None:
    """Return the newest stored state of a version in (after, upto] for which the commit of that version vouches."""
    for _ in range(_TRIED):
        found = await find(upto)
        if found is None or found[0] <= after:
            return None
        message = await ledger.get(found[0])
        if message is not None and stored_commit(message).state == content_digest(found[1]):
            return found
        upto = found[0] - 1
    return None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which commits are verified, and in which state it begins."""

    part: Part
    last: int = 0
    """Version of the last; 0 if there is no history."""
    scanned: Commit | None = None
    """The last of the commits of its generation that are not decided again, though that was asked for."""
    left_out: tuple[str, ...] = ()
    """Versions that were asked for and are not decided again."""
    unchecked: tuple[str, ...] = ()
    """Why not."""


async def plan(streams: Streams, find: FindState, asked: Part) -> Plan:
    """Return how to verify what was asked for: from the nearest stored state where the beginning is far, or is gone.

    Raises:
        BadRangeError: the history has no such commits, or no state to begin in.
        HistoryError, HistoryGapError: what is stored is not whole.
    """
    head = await last_commit(streams.ledger)
    if head is None:
        return Plan(part=asked)
    oldest = max(1, (await streams.ledger.bounds()).first)
    await _check_oldest(streams, oldest)
    last = min(asked.last or head.version, head.version)
    if asked.first > last or last < oldest:
        wanted = f"versions {asked.first or oldest} to {asked.last or 'the newest'}"
        raise BadRangeError(f"{wanted}: stored are {oldest} to {head.version}")
    planned = await _begun(streams, find, asked, last, oldest)
    if asked.last < head.version:
        return planned
    # whatever ends with the newest commit is held against what was signed of the end
    planned = msgspec.structs.replace(planned, part=msgspec.structs.replace(planned.part, last=0))
    return _beyond(planned, head.version + 1, asked.last) if asked.last > head.version else planned


async def _check_oldest(streams: Streams, oldest: int) -> None:
    """Check that no commit before the oldest one is missed: commits are kept for longer than the facts that they folded."""
    message = await streams.ledger.get(oldest)
    if message is None or oldest == 1:
        return
    stored = stored_commit(message)
    if safe_mode_left(stored) is None and (await streams.events.bounds()).first <= stored.lo:
        raise HistoryGapError(
            streams.ledger.name, f"message {oldest - 1} must be there: facts that it has folded are still kept"
        )


def _beyond(planned: Plan, first: int, last: int) -> Plan:
    """Say which versions are not there to be looked at."""
    why = f"versions {first} to {last}: the ledger ends at {first - 1}"
    return msgspec.structs.replace(
        planned, left_out=(*planned.left_out, f"{first} to {last}"), unchecked=(*planned.unchecked, why)
    )


async def _begun(streams: Streams, find: FindState, asked: Part, last: int, oldest: int) -> Plan:
    """Return the plan with its beginning."""
    if asked.snapshot is not None:
        return Plan(part=asked, last=last)
    reaches = max(1, (await streams.events.bounds()).first)
    if asked.whole:
        if oldest > 1 or reaches > 1:
            raise BadRangeError(
                "--whole: begins at the first commit of all, and what is stored no longer reaches back to it"
            )
        return Plan(part=asked, last=last)
    if asked.first > 1:
        near = await vouched(streams.ledger, find, asked.first - 1)
        if near is not None and await _reaches(streams.ledger, near[0], reaches):
            return Plan(part=msgspec.structs.replace(asked, snapshot=near), last=last)
    ending = await streams.ledger.get(last)
    if ending is None:
        return Plan(part=asked, last=last)  # what is missing is for the verification to name
    first = await first_of_generation(streams.ledger, stored_commit(ending))
    await check_begins(streams.ledger, first)
    if (first.version == 1 or safe_mode_left(first) is not None) and first.lo + 1 >= reaches:
        return _of_newest(Plan(part=asked, last=last), max(oldest, asked.first), first)
    return await _from_oldest_state(streams, find, asked, last, oldest)


def _of_newest(planned: Plan, begin: int, first: Commit) -> Plan:
    """Say which versions are not looked at since their generation has ended."""
    if begin >= first.version:
        return planned
    why = f"versions {begin} to {first.version - 1}: of older generations; `--whole` looks at them too"
    left_out = (f"{begin} to {first.version - 1}",) if planned.part.first else ()
    return msgspec.structs.replace(planned, left_out=left_out, unchecked=(why,))


async def _from_oldest_state(streams: Streams, find: FindState, asked: Part, last: int, oldest: int) -> Plan:
    """Return the plan that begins where the facts do, though more was asked for."""
    begin = await _oldest_state(streams, find, last)
    if begin is None:
        raise BadRangeError(
            f"versions up to {last}: their facts are no longer in the stream, and no stored state vouches for what they made; "
            f"`--against archive` reads them from ClickHouse"
        )
    wanted = max(oldest, asked.first)
    left_out = (f"{wanted} to {begin[0]}",) if wanted <= begin[0] else ()
    gone = f"versions {wanted} to {begin[0]}: their facts are no longer in the stream (`--against archive` has them)"
    message = await streams.ledger.get(begin[0])
    return Plan(
        part=msgspec.structs.replace(asked, snapshot=begin),
        last=last,
        scanned=stored_commit(message) if message is not None else None,
        left_out=left_out,
        unchecked=(gone,) if left_out else (),
    )


async def _reaches(ledger: Stream, version: int, events_first: int) -> bool:
    """Tell whether every fact after a version is still there."""
    message = await ledger.get(version)
    return message is not None and stored_commit(message).hi >= events_first - 1


async def _oldest_state(streams: Streams, find: FindState, last: int) -> tuple[int, bytes] | None:
    """Return the oldest stored state from which on every fact is still there."""
    reaches = max(1, (await streams.events.bounds()).first)
    found, upto = None, last
    while (older := await vouched(streams.ledger, find, upto)) is not None:
        if not await _reaches(streams.ledger, older[0], reaches):
            break
        found, upto = older, older[0] - 1
    return found


async def segments(history: History, find: FindState, planned: Plan, count: int) -> AsyncGenerator[Segment, None]:
    """Yield `count` parts of a plan in order, each as soon as the state is known that it begins in.

    `history`: a fresh one, which makes the states where none is stored nearby, by applying what was decided.
    """
    part, last = planned.part, planned.last
    start = max(part.first, (part.snapshot[0] if part.snapshot is not None else 0) + 1, 1)
    if not part.first and part.snapshot is None:
        start = await _first_version(history.streams, part, last)
    total = last - start + 1
    count = max(1, min(count, total // VERSIONS_MIN))
    maker = _States(history, find, part)
    begin = Segment(part=part)
    reached = start - 1
    for number in range(1, count):
        cut = start - 1 + total * number // count
        version, content, commit = await maker.near(cut, after=(reached + cut) // 2)
        digest = content_digest(content)
        ended = msgspec.structs.replace(
            begin.part, last=version, with_state=True, checkpoints=_within(part, begin.part.first, version)
        )
        yield msgspec.structs.replace(begin, part=ended)
        following = Part(
            first=version + 1,
            snapshot=(version, content),
            state_digest=digest,
            signatures_hold=part.signatures_hold,
        )
        begin, reached = Segment(part=following, begin_digest=commit.digest, begin_state=digest), version
    ended = msgspec.structs.replace(begin.part, last=last, checkpoints=_within(part, begin.part.first, last))
    yield msgspec.structs.replace(begin, part=ended)


def _within(part: Part, first: int, last: int) -> Sequence[Kept]:
    """Return the checkpoints of some versions: a process need not be given all of them."""
    return [kept for kept in part.checkpoints if first <= kept.checkpoint.version <= last]


async def _first_version(streams: Streams, part: Part, last: int) -> int:
    message = await streams.ledger.get(last)
    if part.whole or message is None:
        return max(1, (await streams.ledger.bounds()).first)
    return (await first_of_generation(streams.ledger, stored_commit(message))).version


class _States:
    """Finds the state after a version, or makes it."""

    def __init__(self, history: History, find: FindState, part: Part) -> None:
        self._history, self._find, self._part = history, find, part
        self._begun = False

    async def near(self, version: int, *, after: int) -> tuple[int, bytes, Commit]:
        """Return (version, state bytes, commit) of a stored state in (after, version], else of a state made at `version`."""
        ledger = self._history.streams.ledger
        stored = await vouched(ledger, self._find, version, after=after)
        at = stored[0] if stored is not None else version
        message = await ledger.get(at)
        if message is None:
            raise HistoryGapError(ledger.name, f"message {at} is not there")
        commit = stored_commit(message)
        if stored is not None:
            if self._history.restore(stored[1], commit):  # what is made next goes on from here
                self._begun = True
            return stored[0], stored[1], commit
        await self._begin(commit)
        await self._history.catch_up(commit)
        return at, self._history.rules.encode_state(self._history.state), commit

    async def _begin(self, upto: Commit) -> None:
        if self._begun:
            return
        self._begun = True
        ledger, part = self._history.streams.ledger, self._part
        if not part.whole:
            self._history.begin_at(await first_of_generation(ledger, upto))
        if part.snapshot is not None:
            message = await ledger.get(part.snapshot[0])
            if message is not None:
                self._history.restore(part.snapshot[1], stored_commit(message), digest=part.state_digest)


def join(segments: Sequence[Segment], reports: Sequence[Report]) -> Report:
    """Return one report of all parts: each must have ended in the state, and with the commit, in which the next began."""
    whole = reports[0]
    for segment, report in zip(segments[1:], reports[1:], strict=True):
        if not whole.clean:
            break
        ended = (whole.digest, whole.state)
        if ended != (segment.begin_digest, segment.begin_state):
            detail = (
                f"verified up to commit {whole.digest} and state {whole.state}, but the next part begins with commit "
                f"{segment.begin_digest} and state {segment.begin_state}"
            )
            whole.differences.append(Difference(whole.last_version, "ledger", detail, segment.begin_state, whole.state))
            break
        whole.join(report)
    return whole

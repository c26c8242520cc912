"""Why: gathers the messages that a story is made of, and makes it."""

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec

from adapters.times import utc
from domain.errors import BadIdError, HistoryGapError
from domain.events import CutOff, Decision, LendAnswered, LendBusy, LendReturned, Lent, RelayRefused
from domain.events.base import tag_of
from domain.events.codec import decode_control, decode_envelope
from domain.events.decision import LeaseEvent
from domain.ids import RequestId, request_id
from domain.master.leases import lease_life_us
from domain.ports import StoredMessage, Stream
from domain.subjects import CONTROL, EVENTS, LEDGER
from projections.why.commit import CommitStory, commit_story, links_of
from projections.why.lease import LeaseStory, lease_story
from projections.why.moments import TERMINAL
from projections.why.plans import PlanSeen, plans_of
from projections.why.request import RequestStory, request_story
from projections.why.said import Committed, Said, committed_of, is_owners, said_of
from services.past.source import FOUND_MAX, Found, NotKnownError, Past, Sought, Span

LEASE: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})-([0-9]{1,6})")
"""`<generation>-<version>-<index>`: a decision, and the lease that it granted."""
VERSION: Final = re.compile(r"[0-9]{1,15}")
SKEW_NS: Final = 10_000_000_000
"""The clock of the node that made a request's id may be so far ahead of the server's."""
OFF_NS: Final = 25 * 3600 * 1_000_000_000
"""Where nothing begins at the time in the id, that clock is taken to be off by up to so much: a day, and an hour of summer."""
OPEN_NS_MAX: Final = 6 * 3600 * 1_000_000_000
"""A request whose end is not known is looked for so long from its arrival on."""
CLOCKS_BEGIN_NS: Final = 1_577_836_800 * 1_000_000_000
"""2020: no clock is further behind."""
AFTER_NS: Final = 2_000_000_000
"""A commit is stored at most so long after the facts that it read."""
PLANS_MAX: Final = 2_000
_LOADS: Final = ("model.load_started", "model.loaded", "model.load_failed")
_ENDS: Final = tuple(str(kind.__struct_config__.tag) for kind in TERMINAL)
LIFE_NS_MAX: Final = lease_life_us(600_000_000) * 1000
"""No lease lives longer without a word."""


async def why_request(past: Past, request: str) -> RequestStory:
    """Return the story of a request.

    Raises:
        BadIdError: that is no id of a request.
        NotKnownError: no fact is about it.
    """
    asked = request_id(request)
    guess = _guess(asked)
    span = await past.span("request", asked, guess) or guess
    found = await _about(past, asked, span)
    if span == guess and span.since_ns and not _begins(found, asked):
        found = _earlier(
            found, await _about(past, asked, Span(max(0, span.since_ns - OFF_NS), span.until_ns + OFF_NS)), asked
        )
    said = _said(found.messages)
    commits, missing = await _commits_of(past, asked, said, span)
    said += await _loads(past, said)
    story = request_story(asked, said, commits)
    if story is None:
        gone = f", and {found.incomplete}" if found.incomplete else ""
        raise NotKnownError(await _nobody(past, f"request {asked}: no fact of an owner is about it{gone}", EVENTS))
    incomplete = "; ".join(filter(None, (found.incomplete, missing)))
    return msgspec.structs.replace(story, source=past.name, incomplete=incomplete)


async def why_lease(past: Past, lease: str, *, now_ns: int) -> LeaseStory:
    """Return the story of a lease; `now_ns` tells whether it is over.

    Raises:
        BadIdError: that is no id of a lease.
        NotKnownError: no commit granted it.
    """
    generation, version, index = decision_of(lease)
    began = await _committed(past, version, generation)
    decisions = began.commit.decisions
    granted = decisions[index] if index < len(decisions) else None
    if not isinstance(granted, LeaseEvent) or granted.lease != lease:
        raise NotKnownError(f"lease {lease}: decision {index} of commit {version} grants none; ask why of the commit")
    guess = Span(began.at_ns, 0)
    span = await past.span("lease", lease, guess) or guess
    sought = Sought(since_ns=began.at_ns, until_ns=span.until_ns, needles=(f'"{lease}"',))
    commits = await past.commits(sought, _cleared(lease))
    newest = commits.messages[-1] if commits.messages else None
    over = newest is not None and _cleared(lease)(newest)
    facts = await past.facts(sought, _AllHome(newest.stamp_ns) if newest is not None and over else None)
    plan = next((each for each in plans_of(began, granted.owner, granted.owner_model)), None)
    ends = await _ends_of_queue(past, began, plan)
    story = lease_story(lease, _commits([*commits.messages]) or [began], _said(facts.messages), ends, now_ns=now_ns)
    assert story is not None, "its grant is among the commits"
    incomplete = "; ".join(filter(None, (commits.incomplete, facts.incomplete)))
    return msgspec.structs.replace(story, source=past.name, incomplete=incomplete)


async def why_commit(past: Past, version: int, *, generation: str = "", chosen: int = -1) -> CommitStory:
    """Return the story of a commit; `chosen` is the decision in it that was asked for.

    Raises:
        NotKnownError: it is not kept.
    """
    committed = await _committed(past, version, generation)
    made = committed.commit
    tags, incomplete = await _tags(past, committed)
    before: dict[str, LeaseEvent] = {}
    since_ns = max(0, committed.at_ns - _life_ns(made.decisions))
    for link in links_of(committed):
        sought = Sought(since_ns=since_ns, until_ns=committed.at_ns, needles=(f'"{link}"',))
        for each in _commits((await past.commits(sought)).messages):
            if each.commit.version < made.version:
                before |= _leases_on(each, link)
    story = commit_story(committed, tags, before, chosen=chosen)
    return msgspec.structs.replace(story, source=past.name, incomplete=incomplete)


async def last_plan(pasts: Sequence[Past], node: str, model: str) -> PlanSeen | None:
    """Return the newest stored plan of a queue, of the first of `pasts` that finds one; None if none does."""
    for past in pasts:
        message = await past.last_planned(node, model)
        committed = committed_of(message) if message is not None else None
        plans = list(plans_of(committed, node, model)) if committed is not None else []
        if plans:
            return plans[-1]
    return None


def decision_of(text: str) -> tuple[str, int, int]:
    """Return (generation, version, index) of `<generation>-<version>-<index>`.

    Raises:
        BadIdError: it has not that form.
    """
    found = LEASE.fullmatch(text)
    if found is None:
        raise BadIdError("lease", text, "must be <generation>-<version>-<index>, such as 00010a2b-812-1")
    return found[1], int(found[2]), int(found[3])


def version_of(text: str) -> int:
    """Return the version of the ledger that `text` names.

    Raises:
        BadIdError: it is no whole number, or a longer one than there are.
    """
    if VERSION.fullmatch(text) is None:
        raise BadIdError("commit", text, "must be a version (812), or the id of a decision in it (00010a2b-812-1)")
    return int(text)


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _born_ns(request: RequestId) -> int:
    """Return when a request's id was made, by its node's wall clock: a UUIDv7 begins with the milliseconds."""
    return int(request[4:16], 16) * 1_000_000


def _guess(request: RequestId) -> Span:
    """Return when a request was spoken of, by its id alone; an id that no clock made says nothing."""
    born_ns = _born_ns(request)
    if born_ns < CLOCKS_BEGIN_NS:
        return Span(0, 0)
    return Span(born_ns - SKEW_NS, born_ns + OPEN_NS_MAX)


async def _about(past: Past, request: RequestId, span: Span) -> Found:
    """Return the facts about a request in a span, to a little after its end."""
    sought = Sought(since_ns=span.since_ns, until_ns=span.until_ns, needles=(f'"{request}"',))
    return await past.facts(sought, _ends(request))


def _first_ns(found: Found, request: RequestId) -> int:
    """Return when the first of an owner's facts about a request was stored; 0 if there is none."""
    return next((each.at_ns for each in _said(found.messages) if each.names(request) and is_owners(each)), 0)


def _begins(found: Found, request: RequestId) -> bool:
    """Tell whether what was found begins about when the request's id was made: else its node's clock may be off."""
    return abs(_first_ns(found, request) - _born_ns(request)) < SKEW_NS // 2


def _earlier(found: Found, wider: Found, request: RequestId) -> Found:
    return wider if 0 < _first_ns(wider, request) < (_first_ns(found, request) or 1 << 63) else found


def _said(messages: Iterable[StoredMessage]) -> list[Said]:
    return [said for message in messages if (said := said_of(message)) is not None]


def _commits(messages: Iterable[StoredMessage]) -> list[Committed]:
    return [found for message in messages if (found := committed_of(message)) is not None]


def _ends(request: str) -> "_Ends":
    return _Ends(request)


class _Ends:
    """Tells whether a fact ends the request."""

    def __init__(self, request: str) -> None:
        self._request = request

    def __call__(self, message: StoredMessage) -> bool:
        said = said_of(message)
        return said is not None and isinstance(said.fact, TERMINAL) and said.fact.request == self._request


def _cleared(lease: str) -> "_Cleared":
    return _Cleared(lease)


class _Cleared:
    """Tells whether a commit ends the lease."""

    def __init__(self, lease: str) -> None:
        self._lease = lease

    def __call__(self, message: StoredMessage) -> bool:
        found = committed_of(message)
        return found is not None and any(
            isinstance(each, LeaseEvent) and each.lease == self._lease and not each.slots
            for each in found.commit.decisions
        )


class _AllHome:
    """Tells whether a lease is over and nothing is out under it any more, from facts that name it."""

    def __init__(self, over_ns: int) -> None:
        """`over_ns`: when the lease was cleared."""
        self._over_ns = over_ns
        self._out: set[str] = set()

    def __call__(self, message: StoredMessage) -> bool:
        said = said_of(message)
        if said is not None and isinstance(said.fact, Lent):
            self._out.add(said.fact.request)
        elif said is not None and isinstance(said.fact, LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused):
            self._out.discard(said.fact.request)
        return message.stamp_ns >= self._over_ns and not self._out


async def _commits_of(past: Past, request: str, said: Sequence[Said], span: Span) -> tuple[list[Committed], str]:
    """Return (the commits of a request's time and of its lease, what is missing of them)."""
    own = [each for each in said if is_owners(each)]
    if not own:
        return [], ""
    owner, first_ns = own[0].who, own[0].at_ns
    ended = next((each for each in own if isinstance(each.fact, TERMINAL)), None)
    until_ns = ended.at_ns + AFTER_NS if ended is not None else 0
    planned = Sought(
        since_ns=first_ns, until_ns=until_ns, needles=(f'"owner":"{owner}"', "plan.planned"), limit=PLANS_MAX
    )
    found = [await past.commits(planned)]
    if ended is None:  # the master may have said that it is lost
        since_ns = min(span.since_ns, first_ns)
        found.append(await past.commits(Sought(since_ns=since_ns, needles=(f'"{request}"',))))
    for each in own:
        if isinstance(each.fact, Lent):
            found += await _lease_commits(past, each.fact.lease, each.at_ns)
    by_version = {one.commit.version: one for part in found for one in _commits(part.messages)}
    return [by_version[version] for version in sorted(by_version)], "; ".join(
        filter(None, (f.incomplete for f in found))
    )


async def _lease_commits(past: Past, lease: str, lent_ns: int) -> list[Found]:
    """Return what was said of a lease: its grant, and what held when a request was lent under it."""
    named = LEASE.fullmatch(lease)
    grant = await past.commit(int(named[2])) if named else None
    granted = committed_of(grant) if grant is not None else None
    if grant is None or granted is None:
        life_ns, since_ns, found = LIFE_NS_MAX, 0, []
    else:
        life_ns, since_ns, found = _life_ns(granted.commit.decisions), grant.stamp_ns, [Found(messages=[grant])]
    since_ns = max(since_ns, lent_ns - life_ns)
    return [*found, await past.commits(Sought(since_ns=since_ns, until_ns=lent_ns, needles=(f'"{lease}"',)))]


def _life_ns(decisions: Iterable[Decision]) -> int:
    """Return how long a lease of these may live without another word on it, with some room for a changed setting."""
    lives_us = [lease_life_us(each.ttl_us) for each in decisions if isinstance(each, LeaseEvent)]
    return min(LIFE_NS_MAX, 2 * max(lives_us, default=0) * 1000)


async def _loads(past: Past, said: Sequence[Said]) -> list[Said]:
    """Return what the nodes that had the request loaded meanwhile."""
    who = {each.who for each in said if each.who}
    if not who:
        return []
    since_ns, until_ns = min(each.at_ns for each in said), max(each.at_ns for each in said)
    sought = Sought(since_ns=since_ns, until_ns=until_ns, tags=_LOADS, who=tuple(sorted(who)))
    return _said((await past.facts(sought)).messages)


async def _ends_of_queue(past: Past, began: Committed, plan: PlanSeen | None) -> list[Said]:
    """Return how the owner's requests ended that were held when a lease was granted."""
    if plan is None or plan.drain_us < 0:
        return []
    until_ns = began.at_ns + (2 * plan.drain_us + 60_000_000) * 1000
    sought = Sought(since_ns=began.at_ns, until_ns=until_ns, tags=_ENDS, who=(plan.owner,))
    return _said((await past.facts(sought)).messages)


async def _committed(past: Past, version: int, generation: str = "") -> Committed:
    message = await past.commit(version)
    found = committed_of(message) if message is not None else None
    if found is None:
        raise NotKnownError(await _nobody(past, f"commit {version}: is not kept", LEDGER))
    if generation and found.commit.generation != generation:
        raise NotKnownError(
            f"commit {version}: must be of generation {generation}, the one that is kept is of {found.commit.generation}"
        )
    return found


async def _tags(past: Past, committed: Committed) -> tuple[list[str], str]:
    """Return (tags of what stood in a commit's ranges, what is missing of them)."""
    made, tags, missing = committed.commit, list[str](), list[str]()
    for name, after, upto in ((EVENTS, made.lo, made.hi), (CONTROL, made.clo, made.chi)):
        messages, why = await _between(past.stream(name), after, upto)
        # an older commit may have read another life of the stream, whose sequences are other messages now
        read = (each for each in messages if each.stamp_ns < committed.at_ns + SKEW_NS)
        tags += filter(None, map(_tag_of, read))
        missing += filter(None, [why])
    return tags, "; ".join(missing)


async def _between(stream: Stream, after: int, upto: int) -> tuple[list[StoredMessage], str]:
    """Return (the messages of a range, why not all of them)."""
    found: list[StoredMessage] = []
    if upto <= after:
        return found, ""
    until, ends = min(upto, after + FOUND_MAX), (await stream.bounds()).last
    if ends < until and await stream.get(until) is None:  # else it has more, of an older life of the stream
        until = ends
    if until <= after:
        return found, _ended(stream, ends, upto)
    try:
        async with aclosing(
            cast("AsyncGenerator[Sequence[StoredMessage], None]", stream.read(after=after, until=until))
        ) as batches:
            async for batch in batches:
                found += batch
    except HistoryGapError as error:
        return found, str(error)
    if until == upto:
        return found, ""
    if until == ends:  # of a stream that was made anew, or has lost its newest: it would be waited for what never comes
        return found, _ended(stream, ends, upto)
    return found, f"only the first {FOUND_MAX} messages of {stream.name} are told of"


def _ended(stream: Stream, ends: int, upto: int) -> str:
    return f"{stream.name}: ends at {ends}, before message {upto}"


def _tag_of(message: StoredMessage) -> str:
    """Return which event a message holds; empty if none that this release knows."""
    said = said_of(message)
    if said is not None:
        return tag_of(said.fact)
    try:
        return tag_of(decode_control(decode_envelope(message.body).data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _leases_on(committed: Committed, link: str) -> dict[str, LeaseEvent]:
    return {
        str(each.link): each
        for each in committed.commit.decisions
        if isinstance(each, LeaseEvent) and each.link == link
    }


async def _nobody(past: Past, what: str, stream: str) -> str:
    """Return what an unknown thing's error says: who was asked, and from where on that one knows."""
    kept = await past.kept(stream)
    if not kept.last or kept.first > kept.last:
        return f"{what} ({past.name} was asked, and holds nothing of {stream})"
    begins = f"begins at {kept.first}, stored {utc(kept.first_ns)}"
    return f"{what} ({past.name} was asked; its {stream} {begins}, and ends at {kept.last})"

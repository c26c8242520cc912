"""Stored messages as a story reads them: who said what, when by the server's stamp and by the speaker's own clock."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from domain.events import Input
from domain.events.codec import decode_envelope, decode_input
from domain.events.commit import Commit, decode_commit
from domain.ports import StoredMessage
from domain.subjects import speaker
from projections.events import pseq_of

MASTER: Final = "master"
_BY_OWNER: Final = ("queue.", "lend.")


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One fact or observation in its place."""

    seq: int
    at_ns: int
    """Stamp of the server."""
    who: str
    """The node that says it; `master` for an observation."""
    incarnation: str
    pseq: int
    """Its place within that incarnation."""
    mono_us: int
    """The speaker's own clock; comparable within one incarnation only. 0 if it does not say."""
    late: bool
    fact: Input

    def names(self, request: str) -> bool:
        """Tell whether it is about `request`."""
        return getattr(self.fact, "request", "") == request


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """One commit in its place."""

    at_ns: int
    commit: Commit


def said_of(message: StoredMessage) -> Said | None:
    """Return the fact or observation in a message of LW_EVENTS; None if it is none that this release knows."""
    kind, name = speaker(message.subject)
    try:
        envelope = decode_envelope(message.body)
        fact = decode_input(envelope.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if kind == "obs":
        name = MASTER
    elif kind != "node" or envelope.producer != name:
        return None  # in another's name: nobody believes it
    return Said(
        seq=message.seq,
        at_ns=message.stamp_ns,
        who=name,
        incarnation=str(envelope.incarnation),
        pseq=pseq_of(envelope),
        mono_us=envelope.mono_us,
        late=envelope.late,
        fact=fact,
    )


def committed_of(message: StoredMessage) -> Committed | None:
    """Return the commit in a message of LW_LEDGER; None if it holds none."""
    try:
        commit = decode_commit(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Committed(at_ns=message.stamp_ns, commit=commit) if commit.version == message.seq else None


def is_owners(said: Said) -> bool:
    """Tell whether this is a word of a request's owner: on its queue, or on what it has lent."""
    return str(said.fact.__struct_config__.tag).startswith(_BY_OWNER)


def by_owner(facts: Sequence[Said], request: str) -> list[Said]:
    """Return facts in order, without what others say of a request in its owner's place: whoever spoke of it first owns it."""
    owner = next((each.who for each in facts if each.names(request) and is_owners(each)), "")
    return [each for each in facts if each.who == owner or not (each.names(request) and is_owners(each))]


def believed(said: Iterable[Said], commits: Iterable[Committed]) -> list[Said]:
    """Return the facts in order, each once: without those that a commit refused and those that were sent a second time."""
    refused = {seq for each in commits for seq, _ in each.commit.rejected}
    found: dict[tuple[Any, ...], Said] = {}
    for each in sorted(said, key=lambda one: one.seq):
        if each.seq not in refused:
            found.setdefault((each.seq,) if each.who == MASTER else (each.who, each.incarnation, each.pseq), each)
    return list(found.values())

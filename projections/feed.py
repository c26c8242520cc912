"""What of the public streams somebody wants to hear: filters by kind, subject, owner, helper and model; pure.

An event is public if it is one of ours: an envelope whose speaker is the one of its subject, about what that speaker may speak
of. A node or gateway that was taken over may store bytes under its own subjects that no rule reads, a lease that nobody granted
among them; they are no events, and no tool is given them. Whether a decision is the master's, its signature says: that is checked
by those who tell of it (services.projector.told).
"""

from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from domain.events import Input
from domain.events.base import tag_of
from domain.ports import StoredMessage
from domain.subjects import event_of, speaker


class _Said(msgspec.Struct, frozen=True):
    """The names that an event's body may hold."""

    event: str = ""
    """Its tag."""
    owner: str = ""
    owner_model: str = ""
    helper: str = ""
    helper_model: str = ""
    model: str = ""
    node: str = ""


class _Head(msgspec.Struct, frozen=True):
    id: str
    type: str
    producer: str
    data: _Said


_HEADS: Final = msgspec.json.Decoder(_Head)
_TAG_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyz_.")
_OWNERS_SAY: Final = frozenset({"queue", "lend"})
_NODES_SAY: Final = frozenset(tag_of(fact).partition(".")[0] for fact in get_args(Input)) - {"obs"}
"""Families of the facts of nodes: what else is said of leases, health or settings is not theirs to say."""
_NOT_DECIDED: Final = _NODES_SAY | {"obs", "control"}
"""Families that no decision is of; what else there is, a newer master may say."""


class PublicEvent(msgspec.Struct, frozen=True):
    """One event, as far as filters and envelopes around it need it."""

    id: str
    """The same for the same event, and of no other's."""
    kind: str
    """The tag, `<family>.<event>`."""
    subject: str
    owner: str
    helper: str
    models: tuple[str, ...]
    body: bytes
    """As it is stored, in one line of text."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A filter: every field that is stated has to fit; of several patterns one is enough."""

    kinds: tuple[str, ...] = ()
    """Patterns of tags, such as `lease.*` or `lend.lent`."""
    subjects: tuple[str, ...] = ()
    """Patterns of subjects as NATS has them: `lw.local.lease.>`."""
    owner: str = ""
    helper: str = ""
    model: str = ""


def public_event(message: StoredMessage) -> PublicEvent | None:
    """Return the event in a stored message; None if it is none of ours."""
    try:
        head = _HEADS.decode(message.body)
    except msgspec.DecodeError:
        return None
    if not _is_tag(head.type) or not _may_say(message.subject, head):
        return None
    said, family = head.data, head.type.partition(".")[0]
    models = tuple(dict.fromkeys(each for each in (said.model, said.owner_model, said.helper_model) if each))
    by_node = speaker(message.subject)[0] == "node"
    return PublicEvent(
        # who spoke is part of it: one node may not take the place of another's event
        id=f"{head.producer}/{head.id}" if by_node else head.id,
        kind=head.type,
        subject=message.subject,
        owner=head.producer if family in _OWNERS_SAY else said.owner,
        helper=head.producer if family == "borrow" else said.helper,
        models=models,
        body=_line(message.body),
    )


def _may_say(subject: str, head: _Head) -> bool:
    """Tell whether the one of the subject may say this there."""
    kind, name = speaker(subject)
    if kind == "node":
        said = event_of(subject) == head.type == head.data.event
        return said and name == head.producer and head.type.partition(".")[0] in _NODES_SAY
    if kind:
        return kind == "obs" and event_of(subject) == head.type
    family = head.type.partition(".")[0]
    if subject.split(".")[2:3] == ["control"]:
        return family == "control"
    return family not in _NOT_DECIDED


def _line(body: bytes) -> bytes:
    """Return a body as one line of text, whatever its producer wrote."""
    if not body.isascii():
        body = body.decode("utf-8", "replace").encode()  # bytes that are no text can only stand inside its texts
    return body.replace(b"\r", b" ").replace(b"\n", b" ")  # a line break only between its tokens


def _is_tag(text: str) -> bool:
    return len(text) <= 64 and set(text) <= _TAG_CHARS and len(text.split(".")) == 2


def fits(wanted: Wanted, event: PublicEvent) -> bool:
    """Tell whether `event` is wanted."""
    return (
        _one_fits(wanted.kinds, event.kind)
        and _one_fits(wanted.subjects, event.subject)
        and wanted.owner in {"", event.owner}
        and wanted.helper in {"", event.helper}
        and (not wanted.model or wanted.model in event.models)
    )


def is_pattern(text: str) -> bool:
    """Tell whether `text` is a pattern: tokens with dots between, of which `*` stands for any one and a last `>` for the rest."""
    tokens = text.split(".")
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    whole = all(token in {"*", ">"} or (token and set(token) <= allowed) for token in tokens)
    return len(text) <= 256 and whole and ">" not in tokens[:-1]


def pattern_fits(pattern: str, name: str) -> bool:
    """Tell whether `name` is one of those that `pattern` stands for."""
    wanted, tokens = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        wanted, tokens, longer = wanted[:-1], tokens[: len(wanted) - 1], len(tokens) >= len(wanted)
        return longer and _same(wanted, tokens)
    return len(wanted) == len(tokens) and _same(wanted, tokens)


def _same(wanted: Sequence[str], tokens: Sequence[str]) -> bool:
    return all(want in {"*", token} for want, token in zip(wanted, tokens, strict=True))


def _one_fits(patterns: Sequence[str], name: str) -> bool:
    return not patterns or any(pattern_fits(pattern, name) for pattern in patterns)

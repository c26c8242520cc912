"""What of the public streams somebody wants to hear: filters by kind, subject, owner, helper and model; pure.

An event is public if it is one of ours: an envelope whose speaker is the one of its subject. A node that was taken over may
store bytes under its own subjects that no rule reads; they are no events, and no tool is given them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.ports import StoredMessage
from domain.subjects import event_of, speaker


class _Said(msgspec.Struct, frozen=True):
    """The names that an event's body may hold."""

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


class PublicEvent(msgspec.Struct, frozen=True):
    """One event, as far as filters and envelopes around it need it."""

    id: str
    kind: str
    """The tag, `<family>.<event>`."""
    subject: str
    owner: str
    helper: str
    models: tuple[str, ...]
    body: bytes
    """As it is stored, in one line."""


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
    kind, name = speaker(message.subject)
    promised = event_of(message.subject)
    if (kind == "node" and name != head.producer) or (promised and promised != head.type) or not _is_tag(head.type):
        return None
    said, family = head.data, head.type.partition(".")[0]
    models = tuple(dict.fromkeys(each for each in (said.model, said.owner_model, said.helper_model) if each))
    return PublicEvent(
        id=head.id,
        kind=head.type,
        subject=message.subject,
        owner=said.owner or (head.producer if family in _OWNERS_SAY else ""),
        helper=said.helper or (head.producer if family == "borrow" else ""),
        models=models,
        # a line break in JSON can only stand between its tokens
        body=message.body.replace(b"\r", b" ").replace(b"\n", b" "),
    )


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

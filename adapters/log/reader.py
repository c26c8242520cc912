"""The reader judges what the fold may believe: who speaks, under which key, and whether the event is one we know.

It is pure given the keys, so a verifier that reads the same bytes with the same keys rejects the same messages.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, get_args

import msgspec

from adapters.keys import derive_mac_key
from adapters.log import bounds
from domain.events import Envelope, Input, codec
from domain.events.base import EventBody, tag_of
from domain.ids import NodeId
from domain.master.inputs import NOT_A_FACT, ControlInput, FactInput, FactOrRejected, Rejected
from domain.ports import StoredMessage
from domain.subjects import event_of, speaker

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

BAD_SUBJECT, BAD_MAC, WRONG_SPEAKER = "bad_subject", "bad_mac", "wrong_speaker"
WRONG_EVENT, BAD_EVENT = "wrong_event", "bad_event"
OUT_OF_BOUNDS, BAD_PLACE = "out_of_bounds", "bad_place"
MASTER = NodeId("master")
_NODE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_TERM_DIGITS_MAX: Final = 15
_SPEAKERS_MAX: Final = 16_384
"""Keys kept at hand."""
_NOBODY: Final = NodeId("")
_TAGS: Final[dict[type[EventBody], str]] = {
    **{kind: tag_of(kind) for kind in get_args(Input)},
    **{narrowed: tag_of(kind) for kind, narrowed in bounds.NARROWED.items()},
}
_MARK: Final = b',"mac":"'
_END: Final = b'"}'
_TAIL: Final = len(_MARK) + 64 + len(_END)
"""Every stored body ends in the mark, 64 hex digits, and the object's end."""
_KEPT_CHARS_MAX: Final = 512
"""A longer subject is none of ours; nobody may fill the memory of those that were read with such."""
_BLOCK: Final = 64
"""SHA-256 hashes blocks of so many bytes; HMAC pads a key to one."""


class Reader:
    """Judges the messages of LW_EVENTS and decodes those of LW_CONTROL for one cluster."""

    def __init__(self, cluster: str, mac_secret: str) -> None:
        """`mac_secret` (hex): every speaker's key is derived from it."""
        self._cluster, self._secret = cluster, mac_secret
        self._keys: dict[str, tuple[Hash, Hash]] = {}
        """By speaker what HMAC has hashed before the message, inside and outside: copying is cheaper than a key's schedule."""

    @property
    def cluster(self) -> str:
        """Return whose messages it judges."""
        return self._cluster

    def told(self, rejected: Sequence[tuple[int, str]]) -> None:
        """Take note of what a commit says that it refused: of use to a reader that cannot judge all of it itself."""

    def fact(self, message: StoredMessage) -> FactOrRejected:
        """Return the fact or observation in `message`, or why it is refused; no rule reads a gateway's events."""
        stamp_us = message.stamp_ns // 1000
        subject = message.subject
        who, term, event = _promise(subject) if len(subject) <= _KEPT_CHARS_MAX else _promise.__wrapped__(subject)
        if not who:
            return Rejected(message.seq, stamp_us, event)
        body = message.body
        if not self._authentic(body, who):
            return Rejected(message.seq, stamp_us, BAD_MAC)
        if bounds.is_too_deep(body):
            return Rejected(message.seq, stamp_us, BAD_EVENT)
        said = bounds.spoken(body)
        if said is None or said.cluster != self._cluster or said.producer != who:
            return self._judge(message, who, term, event)
        pseq, fact = said.pseq, said.data
        if not (_TAGS[type(fact)] == said.type == event and pseq.isdecimal() and pseq.isascii() and said.incarnation):
            return self._judge(message, who, term, event)
        who = _NOBODY if term else who
        return FactInput(message.seq, stamp_us, who, said.incarnation, int(pseq), said.late, term, fact)

    def _judge(self, message: StoredMessage, who: NodeId, term: int, event: str) -> FactOrRejected:
        """Judge an authentic message piece by piece, so that a refusal says what is wrong."""
        stamp_us = message.stamp_ns // 1000
        try:
            envelope = codec.decode_envelope(message.body)
        except (msgspec.DecodeError, RecursionError):
            return Rejected(message.seq, stamp_us, BAD_EVENT)
        if envelope.cluster != self._cluster or envelope.producer != who:
            return Rejected(message.seq, stamp_us, WRONG_SPEAKER)
        if not _is_place(envelope.incarnation, envelope.pseq):
            return Rejected(message.seq, stamp_us, BAD_PLACE)
        return _read(message.seq, stamp_us, _NOBODY if term else who, envelope, term, event)

    def _authentic(self, body: bytes, who: str) -> bool:
        if body[-_TAIL:-66] != _MARK or body[-2:] != _END:
            return False
        inner, outer = self._keys.get(who) or self._key(who)
        hasher = inner.copy()
        hasher.update(body[:-_TAIL])
        whole = outer.copy()
        whole.update(hasher.digest())
        # as bytes: comparing text that is not ASCII would be an error
        return compare_digest(whole.hexdigest().encode(), body[-66:-2])

    def _key(self, name: str) -> "tuple[Hash, Hash]":
        key = bytes.fromhex(derive_mac_key(self._secret, name))  # 32 bytes, so that it fills less than a block
        padded = key.ljust(_BLOCK, b"\0")
        states = tuple(hashlib.sha256(bytes(each ^ pad for each in padded)) for pad in (0x36, 0x5C))
        if len(self._keys) >= _SPEAKERS_MAX:  # only forged subjects name so many
            self._keys.clear()
        self._keys[name] = found = (states[0], states[1])
        return found

    def facts(self, messages: Sequence[StoredMessage]) -> list[tuple[FactOrRejected, StoredMessage]]:
        """Judge a batch, in order."""
        judge = self.fact
        return [(judge(message), message) for message in messages]

    @staticmethod
    def control(message: StoredMessage) -> ControlInput:
        """Return the control event in `message`; an unknown one counts but says nothing."""
        if bounds.is_too_deep(message.body):
            return ControlInput(message.seq, None)
        try:
            return ControlInput(message.seq, codec.decode_control(codec.decode_envelope(message.body).data))
        except (msgspec.DecodeError, RecursionError):
            return ControlInput(message.seq, None)


@lru_cache(maxsize=65_536)  # a cluster has few subjects, and each fact comes under one
def _promise(subject: str) -> tuple[NodeId, int, str]:
    """Return (who must have spoken, term of an observation or 0, event) by a subject; ("", 0, code) if nobody may have."""
    kind, name = speaker(subject)
    if kind == "node" and _NODE.fullmatch(name):
        return NodeId(name), 0, event_of(subject)
    if kind == "obs" and len(name) <= _TERM_DIGITS_MAX and name.isascii() and name.isdecimal() and int(name):
        return MASTER, int(name), event_of(subject)
    return _NOBODY, 0, NOT_A_FACT if kind == "gateway" else BAD_SUBJECT


def _read(seq: int, stamp_us: int, speaker: NodeId, envelope: Envelope, term: int, event: str) -> FactOrRejected:
    """Return the fact in an authentic envelope."""
    incarnation, pseq, data = envelope.incarnation, int(envelope.pseq), envelope.data
    try:
        fact = codec.decode_input(data)
    except (msgspec.DecodeError, RecursionError):
        return Rejected(seq, stamp_us, BAD_EVENT, speaker, incarnation, pseq)
    if not _TAGS[type(fact)] == envelope.type == event:
        return Rejected(seq, stamp_us, WRONG_EVENT)
    if not bounds.within(data):
        return Rejected(seq, stamp_us, OUT_OF_BOUNDS, speaker, incarnation, pseq)
    return FactInput(seq, stamp_us, speaker, incarnation, pseq, envelope.late, term, fact)


def _is_place(incarnation: str, pseq: str) -> bool:
    """Tell whether these can say which fact of which life of a producer it is."""
    return (
        0 < len(incarnation) <= bounds.INCARNATION_CHARS_MAX
        and 0 < len(pseq) <= bounds.PSEQ_DIGITS_MAX
        and pseq.isascii()
        and pseq.isdecimal()
    )

"""The reader judges what the fold may believe: who speaks, under which key, and whether the event is one we know.

It is pure given the keys, so a verifier that reads the same bytes with the same keys rejects the same messages.
"""

import hmac
from collections.abc import Sequence

import msgspec

from adapters.keys import derive_mac_key
from domain.events import codec
from domain.events.base import tag_of
from domain.ids import Incarnation, NodeId
from domain.master.inputs import ControlInput, FactInput, FactOrRejected, Rejected
from domain.ports import StoredMessage
from domain.subjects import event_of, speaker

BAD_SUBJECT, BAD_MAC, WRONG_SPEAKER = "bad_subject", "bad_mac", "wrong_speaker"
WRONG_EVENT, BAD_EVENT = "wrong_event", "bad_event"
MASTER = "master"


class Reader:
    """Judges the messages of LW_EVENTS and decodes those of LW_CONTROL for one cluster."""

    def __init__(self, cluster: str, mac_secret: str) -> None:
        """`mac_secret` (hex): every speaker's key is derived from it."""
        self._cluster, self._secret = cluster, mac_secret
        self._keys: dict[str, bytes] = {}

    def fact(self, message: StoredMessage) -> FactOrRejected:
        """Return the fact or observation in `message`, or why it is refused; no rule reads a gateway's events."""
        stamp_us = message.stamp_ns // 1000
        judged = self._judge(message, stamp_us)
        return Rejected(message.seq, stamp_us, judged) if isinstance(judged, str) else judged

    def _judge(self, message: StoredMessage, stamp_us: int) -> FactInput | str:
        kind, name = speaker(message.subject)
        if kind not in {"node", "obs"}:
            return "not_a_fact" if kind == "gateway" else BAD_SUBJECT
        who = name if kind == "node" else MASTER
        if not self._authentic(message.body, who):
            return BAD_MAC
        try:
            envelope = codec.decode_envelope(message.body)
            fact, pseq = codec.decode_input(envelope.data), int(envelope.pseq)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return BAD_EVENT
        if envelope.cluster != self._cluster or envelope.producer != who:
            return WRONG_SPEAKER
        if not tag_of(fact) == envelope.type == event_of(message.subject):
            return WRONG_EVENT
        return FactInput(
            message.seq,
            stamp_us,
            NodeId(name if kind == "node" else ""),
            Incarnation(envelope.incarnation),
            pseq,
            envelope.late,
            int(name) if kind == "obs" and name.isdecimal() else 0,
            fact,
        )

    def _authentic(self, body: bytes, who: str) -> bool:
        tagged = codec.split_tag(body, "mac")
        return tagged is not None and hmac.compare_digest(
            hmac.digest(self._key(who), tagged[0], "sha256").hex(), tagged[1]
        )

    def _key(self, name: str) -> bytes:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = bytes.fromhex(derive_mac_key(self._secret, name))
        return key

    def facts(self, messages: Sequence[StoredMessage]) -> list[tuple[FactOrRejected, StoredMessage]]:
        """Judge a batch, in order."""
        return [(self.fact(message), message) for message in messages]

    @staticmethod
    def control(message: StoredMessage) -> ControlInput:
        """Return the control event in `message`; an unknown one counts but says nothing."""
        try:
            return ControlInput(message.seq, codec.decode_control(codec.decode_envelope(message.body).data))
        except msgspec.DecodeError:
            return ControlInput(message.seq, None)

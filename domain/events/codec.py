"""Events to bytes and back. The same bytes are stored, signed, digested and replayed.

The authentication tag is the last member of the object: `{..., "mac":"<hex>"}`. It covers every byte before its comma.
Facts carry `mac` (HMAC-SHA256 under the node's key), decisions carry `sig` (ed25519 of the master).
"""

from typing import Final

import msgspec

from domain.events import ControlEvent, Decision, Envelope, Event, Input
from domain.events.base import EventBody, tag_of

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_ENVELOPE: Final = msgspec.json.Decoder(Envelope)
_INPUT: Final[msgspec.json.Decoder[Input]] = msgspec.json.Decoder(Input)
_CONTROL: Final[msgspec.json.Decoder[ControlEvent]] = msgspec.json.Decoder(ControlEvent)
_DECISION: Final[msgspec.json.Decoder[Decision]] = msgspec.json.Decoder(Decision)
_BODIES: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)


def encode(value: object) -> bytes:
    """Return the one JSON form of `value`: struct fields in order of declaration, dicts by key."""
    return _ENCODER.encode(value)


def raw(body: EventBody) -> msgspec.Raw:
    """Return `body` as the `data` of an envelope."""
    return msgspec.Raw(_ENCODER.encode(body))


def with_tag(encoded: bytes, name: str, value: str) -> bytes:
    """Return `encoded`, an object, with the authentication tag `name` as its last member. `value` is plain hex or base64."""
    return b'%b,"%b":"%b"}' % (encoded[:-1], name.encode(), value.encode())


def split_tag(body: bytes, name: str) -> tuple[bytes, str] | None:
    """Return (bytes that the tag covers, tag) of a stored body, or None if it carries no such tag.

    The covered bytes lack the object's closing brace: they are exactly what was before the tag's comma.
    """
    mark = b',"%b":"' % name.encode()
    at = body.rfind(mark)
    if at < 0 or not body.endswith(b'"}'):
        return None
    return body[:at], body[at + len(mark) : -2].decode("ascii", "replace")


def decode_envelope(body: bytes) -> Envelope:
    """Return the envelope of a stored body, its `data` still raw.

    Raises:
        msgspec.DecodeError: it is not an envelope (msgspec.ValidationError is a kind of it).
    """
    return _ENVELOPE.decode(body)


def decode_input(data: msgspec.Raw | bytes) -> Input:
    """Return the fact or observation in an envelope's `data`; raise msgspec.DecodeError if it is none."""
    return _INPUT.decode(data)


def decode_control(data: msgspec.Raw | bytes) -> ControlEvent:
    """Return the control event in an envelope's `data`; raise msgspec.DecodeError if it is none."""
    return _CONTROL.decode(data)


def decode_decision(data: msgspec.Raw | bytes) -> Decision:
    """Return the decision in an envelope's `data`; raise msgspec.DecodeError if it is none."""
    return _DECISION.decode(data)


def decode_event(data: msgspec.Raw | bytes) -> Event:
    """Return whatever event is in an envelope's `data`; raise msgspec.DecodeError if it is none."""
    return _BODIES.decode(data)


__all__ = [
    "decode_control",
    "decode_decision",
    "decode_envelope",
    "decode_event",
    "decode_input",
    "encode",
    "raw",
    "split_tag",
    "tag_of",
    "with_tag",
]

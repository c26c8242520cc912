"""`events`: every message as it was stored, with what can be read from outside its data."""

from typing import Final

import msgspec

from domain.events.codec import decode_envelope
from domain.events.envelope import Envelope
from domain.ports import StoredMessage
from domain.subjects import speaker
from projections.rows import Place, Row, row

COMMIT: Final = "commit"
"""Stands in the column `event` for a message of the ledger."""


def envelope_of(message: StoredMessage) -> Envelope | None:
    """Return the envelope of a message; None if its body is none."""
    try:
        return decode_envelope(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def pseq_of(envelope: Envelope) -> int:
    """Return an envelope's place among its producer's facts; 0 if it states none that can be."""
    text = envelope.pseq
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else 0


def event_row(place: Place, message: StoredMessage, envelope: Envelope | None, *, event: str = "") -> Row:
    """Return the row of one message. `event` stands in where there is no envelope."""
    stated: dict[str, object] = {
        "subject": message.subject.encode("utf-8", "replace"),
        "headers": message.headers,
        "body": message.body,
        "event": event,
    }
    if envelope is not None:
        stated |= {
            "event": envelope.type,
            "producer": speaker(message.subject)[1] or envelope.producer,
            "incarnation": str(envelope.incarnation),
            "pseq": pseq_of(envelope),
            "late": envelope.late,
        }
    return row(place, stated)

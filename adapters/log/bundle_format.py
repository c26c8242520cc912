"""The form of a copy of history (docs/reference/log.md): its manifest, its lines, and what its sums are over."""

import base64
import hashlib
from typing import Final

import msgspec

from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, LEDGER

FORMAT: Final = "leaseway-audit/2"
MANIFEST: Final = "manifest.json"
CHECKPOINTS: Final = "checkpoints.jsonl"
_PURPOSE: Final = b"leaseway/audit/2|"
MEMBER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A member that says it is larger, unpacked, is not read: a piece is six times its messages' bytes at worst."""
STREAMS: Final = (CONTROL, EVENTS, LEDGER)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the copy holds of one stream."""

    first: int
    last: int
    count: int
    missing: tuple[tuple[int, int], ...] = ()
    """Runs of sequences in between that the stream itself did not hold when it was copied: (first, last)."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One file inside."""

    name: str
    digest: str
    """blake2b-16 over its bytes, unpacked."""
    size: int
    stream: str = ""
    first: int = 0
    """Sequence of its first message, or version of the state."""
    count: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest."""

    format: str
    cluster: str
    software: str = ""
    """Version of Leaseway that wrote it."""
    streams: dict[str, Held]
    members: tuple[Member, ...]
    public: str = ""
    """nkey public key that signed this manifest; empty if nobody did."""
    signature: str = ""
    """ed25519 (hex) of `leaseway/audit/2|` and the manifest with an empty signature."""
    operator: str | msgspec.UnsetType = msgspec.UNSET
    """nkey public key of the operator, with which the word is checked that begins a generation; copies of before have none."""

    @property
    def counts(self) -> dict[str, int]:
        """Return the messages of each stream."""
        return {name: held.count for name, held in self.streams.items()}


class Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message."""

    seq: int
    stamp_ns: int
    subject: str
    headers: str = ""
    """As text where it is UTF-8 ..."""
    body: str = ""
    headers64: str = ""
    """... else in base64."""
    body64: str = ""
    sum: str = ""


def checksum(stream: str, message: StoredMessage) -> str:
    """Return blake2b-8 over all that a message is, in hex."""
    hasher = hashlib.blake2b(f"{stream}|{message.seq}|{message.stamp_ns}|{message.subject}|".encode(), digest_size=8)
    hasher.update(b"%d|" % len(message.headers) + message.headers + message.body)
    return hasher.hexdigest()


def digest_of(content: bytes) -> str:
    """Return blake2b-16, in hex: what the manifest states of a member."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def covered(header: Header) -> bytes:
    """Return what the manifest's signature is over."""
    return _PURPOSE + msgspec.json.encode(msgspec.structs.replace(header, signature=""))


def line_of(stream: str, message: StoredMessage) -> Line:
    """Return a message of `stream` as a line has it."""
    headers, headers64 = _text(message.headers)
    body, body64 = _text(message.body)
    return Line(
        message.seq, message.stamp_ns, message.subject, headers, body, headers64, body64, checksum(stream, message)
    )


def _text(content: bytes) -> tuple[str, str]:
    try:
        return content.decode(), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(content).decode()


def bytes_of(text: str, encoded: str) -> bytes:
    """Return the bytes of one of a line's two fields for them; raise ValueError if it is no base64."""
    return base64.b64decode(encoded, validate=True) if encoded else text.encode()

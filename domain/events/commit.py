"""The one stored message of the master's aggregate: an input range and every decision taken from it."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

import msgspec

from domain.events.decision import Decision
from domain.ids import Generation
from domain.ports import StoredMessage

COMMIT_BYTES_MAX = 256 * 1024
GENESIS_DIGEST = "0" * 32
_KEPT_CHARS_MAX = 512
"""A longer subject is none of ours, and is not remembered."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Version `version` of the ledger. Its sequence in LW_LEDGER is its version."""

    version: int
    generation: Generation
    term: int
    """Rises when another master process takes over."""
    policy: str
    """The rules that decided, by name; a change of a rule is a new policy."""
    lo: int
    hi: int
    """Facts folded: LW_EVENTS sequences (lo, hi]."""
    clo: int
    chi: int
    """Control events folded: LW_CONTROL sequences (clo, chi]."""
    n: int
    """Dirty owners decided, the first n in id order."""
    now_us: int
    """Domain time at hi."""
    rejected: tuple[tuple[int, str], ...] = ()
    """Inputs of the range that were not folded: (sequence, code)."""
    decisions: tuple[Decision, ...] = ()
    state: str = ""
    """Digest of the folded state after this commit, where a snapshot of it was taken; else empty."""
    prev: str
    digest: str
    """blake2b-16 over prev, the input messages and this commit's bytes with `digest` empty. It stays the last field."""


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Commit)


def encode_commit(commit: Commit) -> bytes:
    """Return the stored bytes of `commit`."""
    return _ENCODER.encode(commit)


def decode_commit(body: bytes) -> Commit:
    """Return the commit in `body`; raise msgspec.DecodeError if it is none."""
    return _DECODER.decode(body)


class Hasher(Protocol):
    """Anything that takes bytes."""

    def update(self, data: bytes, /) -> None:
        """Take `data`."""
        ...


def digest_inputs(hasher: Hasher, inputs: Iterable[StoredMessage]) -> None:
    """Feed the input messages, in sequence order, to `hasher`: subject, headers, body and stamp, each length-prefixed."""
    hasher.update(
        b"".join(
            [
                b"%b%d:%b%d:%b%d;"
                % (
                    _named(message.subject)
                    if len(message.subject) <= _KEPT_CHARS_MAX
                    else _named.__wrapped__(message.subject),
                    len(message.headers),
                    message.headers,
                    len(message.body),
                    message.body,
                    message.stamp_ns,
                )
                for message in inputs
            ]
        )
    )


@lru_cache(maxsize=16_384)  # a cluster has few subjects
def _named(subject: str) -> bytes:
    encoded = subject.encode()
    return b"%d:%b" % (len(encoded), encoded)


def commit_digest(prev: str, inputs: Iterable[StoredMessage], commit: Commit) -> str:
    """Return the digest of `commit` (whose own `digest` is not read), in hex.

    `inputs`: the control messages of (clo, chi], then the facts of (lo, hi].
    """
    return _digest(prev, inputs, encode_commit(msgspec.structs.replace(commit, digest="")))


def is_sealed(commit: Commit, inputs: Iterable[StoredMessage], body: bytes) -> bool:
    """Tell whether the digest of `commit` was made over these inputs and over `body`, its stored bytes.

    The bytes count, not what is read from them: who knows more fields than the version that wrote them checks the same digest.
    """
    end = b'"digest":"%b"}' % commit.digest.encode()
    if not body.endswith(end):
        return False
    return _digest(commit.prev, inputs, body[: -len(end)] + b'"digest":""}') == commit.digest


def is_read_whole(commit: Commit, body: bytes) -> bool:
    """Tell whether `body` says nothing but `commit`: written as we write, perhaps by a version that knew fewer fields.

    A field with a default that was added since may be missing; nothing may be there that is not read.
    """
    encoded = encode_commit(commit)
    if encoded == body:
        return True
    then = msgspec.json.decode(body)
    return msgspec.json.encode(then) == body and _covers(msgspec.json.decode(encoded), then)


def _covers(now: object, then: object) -> bool:
    if isinstance(now, dict) and isinstance(then, dict):
        return all(name in now and _covers(now[name], value) for name, value in then.items())
    if isinstance(now, list) and isinstance(then, list):  # a row of fields too: what was added stands at its end
        return len(now) >= len(then) and all(map(_covers, now, then))
    return type(now) is type(then) and now == then


def _digest(prev: str, inputs: Iterable[StoredMessage], unsigned: bytes) -> str:
    hasher = hashlib.blake2b(bytes.fromhex(prev), digest_size=16)
    digest_inputs(hasher, inputs)
    hasher.update(unsigned)
    return hasher.hexdigest()


def seal(commit: Commit, inputs: Iterable[StoredMessage]) -> Commit:
    """Return `commit` with its digest."""
    return msgspec.structs.replace(commit, digest=commit_digest(commit.prev, inputs, commit))

"""JetStream's answers, as far as they are read here, and where a delivered message says what it is."""

import base64
import codecs
from datetime import datetime
from typing import Final

import msgspec

from domain.errors import BusError, NoAnswerError, PublishRefusedError, PublishUnknownError, WrongLastSequenceError
from domain.ports import Bounds, Stored, StoredMessage

WRONG_LAST: Final = frozenset({10071, 10164})
UNKNOWN: Final = frozenset({10008, 10009, 10023, 10039, 10076, 10158, 10167})
"""The stream has no leader just now, is short of something, or works on the same message: ask again."""
FULL: Final = frozenset({10002, 10028, 10047, 10077})
TOO_LARGE: Final = frozenset({10054, 10097})
NO_MESSAGE: Final = 10037
NO_STREAM: Final = 10059
NO_CONSUMER: Final = 10014
STOPPED: Final = 10194
"""The server has stopped the stream for good: something about it, or about a consumer of it, it cannot read."""


class ApiError(msgspec.Struct, frozen=True):
    """An error of the JetStream API."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class _Message(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _Got(msgspec.Struct, frozen=True):
    message: _Message | None = None
    error: ApiError | None = None


class _State(msgspec.Struct, frozen=True):
    messages: int
    first_seq: int
    last_seq: int


class _Info(msgspec.Struct, frozen=True):
    created: str = ""
    ts: str = ""
    state: _State | None = None
    error: ApiError | None = None


class _Outcome(msgspec.Struct, frozen=True):
    error: ApiError | None = None


_ACK: Final = msgspec.json.Decoder(_Ack)
_GOT: Final = msgspec.json.Decoder(_Got)
_INFO: Final = msgspec.json.Decoder(_Info)
_OUTCOME: Final = msgspec.json.Decoder(_Outcome)


class StreamMissingError(BusError):
    """The stream does not exist on the bus (yet, or no longer), or the server has stopped it."""


def read_ack(_headers: bytes, body: bytes) -> Stored:
    """Return what a stream answered to a publish; raise as domain.ports.Stream.publish says."""
    try:
        ack = _ACK.decode(body)
    except msgspec.DecodeError as error:
        raise PublishUnknownError(f"not a stream's answer: {body[:80]!r}: {error}") from None
    if ack.error is None:
        return Stored(seq=ack.seq, duplicate=ack.duplicate)
    code, text = ack.error.err_code, f"{ack.error.description} ({ack.error.err_code})"
    if code in WRONG_LAST:
        raise WrongLastSequenceError(text)
    if code in UNKNOWN:
        raise PublishUnknownError(text)
    reason = "full" if code in FULL else "too_large" if code in TOO_LARGE else "refused"
    raise PublishRefusedError(text, reason=reason)


def read_message(_headers: bytes, body: bytes) -> StoredMessage | None:
    """Return the message in an answer of STREAM.MSG.GET; None if there is none."""
    got = _GOT.decode(body)
    if got.error is not None and got.error.err_code == NO_MESSAGE:
        return None
    _require(got.error)
    assert got.message is not None
    found = got.message
    return StoredMessage(
        found.seq, stamp_ns(found.time), found.subject, base64.b64decode(found.hdrs), base64.b64decode(found.data)
    )


def read_bounds(_headers: bytes, body: bytes) -> Bounds:
    """Return what STREAM.INFO says that the stream holds."""
    info = _INFO.decode(body)
    _require(info.error)
    assert info.state is not None
    state = info.state
    first = state.first_seq if state.messages else state.last_seq + 1
    now_ns = stamp_ns(info.ts) if info.ts else 0
    return Bounds(first=first, last=state.last_seq, created_ns=stamp_ns(info.created), now_ns=now_ns)


def read_outcome(_headers: bytes, body: bytes) -> bool:
    """Return True if the answer of the API holds no error; raise BusError for what it holds."""
    _require(_OUTCOME.decode(body).error)
    return True


def subject_text(subject: bytes) -> str:
    """Return a subject as text, as the server itself says it in JSON: each byte that is none becomes U+FFFD.

    The server takes any bytes for a subject; who speaks there must not be able to stop those who read.
    """
    return subject.decode("utf-8", _BYTE_BY_BYTE)


_BYTE_BY_BYTE: Final = "leaseway_byte_by_byte"


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_BYTE_BY_BYTE, _each_byte)


def stamp_ns(text: str) -> int:
    """Return an RFC 3339 time of up to nine decimals as nanoseconds since the epoch, exactly."""
    whole, _, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if rest else ""
    moment = datetime.fromisoformat(whole + zone)
    return int(moment.timestamp()) * 1_000_000_000 + int(digits.ljust(9, "0") or 0)


def place_of(reply: bytes) -> tuple[int, int, int]:
    """Return (stream sequence, stamp in ns, messages still pending) from the reply subject of a delivered message.

    `$JS.ACK.<stream>.<consumer>.<tries>.<stream seq>.<consumer seq>.<stamp>.<pending>`, or with `<domain>.<account>` after
    ACK and a token at the end.
    """
    tokens = reply.split(b".")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 2]), int(tokens[at + 3])


def _require(error: ApiError | None) -> None:
    if error is None:
        return
    text = f"{error.description} ({error.err_code})"
    if error.err_code in UNKNOWN:
        raise NoAnswerError(text)
    if error.err_code in {NO_STREAM, STOPPED}:
        raise StreamMissingError(text)
    raise BusError(text)

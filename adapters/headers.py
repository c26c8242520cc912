"""The header block of a stored message, byte for byte as a stream keeps it: the digest chain covers these bytes."""

from collections.abc import Mapping
from typing import Final

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_LAST: Final = "Nats-Expected-Last-Sequence"
NUMBER_DIGITS_MAX: Final = 18
_VERSION: Final = b"NATS/1.0\r\n"


def encode_headers(
    headers: Mapping[str, str] | None, *, message_id: str = "", expected_last: int | None = None
) -> bytes:
    """Return the header block of a publish, empty if there is nothing to say.

    Raises:
        ValueError: a name or value holds a line break, or a name holds a colon or is empty.
    """
    pairs = dict(headers or {})
    if message_id:
        pairs[MESSAGE_ID] = message_id
    if expected_last is not None:
        pairs[EXPECTED_LAST] = str(expected_last)
    if not pairs:
        return b""
    text = "".join(f"{name}: {value}\r\n" for name, value in pairs.items())
    if text.count("\n") != len(pairs) or text.count("\r") != len(pairs) or any(not n or ":" in n for n in pairs):
        raise ValueError(f"headers {pairs!r}: names and values must be one line each, names without a colon")
    return b"%b%b\r\n" % (_VERSION, text.encode())


def is_number(text: str) -> bool:
    """Tell whether a header's value is a number that may be read: of more than 4,300 digits the interpreter reads none."""
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX


def decode_headers(block: bytes) -> dict[str, str]:
    """Return the headers in a stored block; of a repeated name the last. An inline status (`NATS/1.0 503`) is under ``""``."""
    first, _, rest = block.partition(b"\r\n")
    headers: dict[str, str] = {}
    if len(first) > 8:
        headers[""] = first[8:].decode("utf-8", "replace").strip()
    for line in rest.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace").strip()
    return headers

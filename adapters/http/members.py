"""Where the top-level members of a JSON object stand in its bytes, so that one of them can be replaced and no other byte."""

import re
from typing import Final

import msgspec

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OPEN: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_KEY: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"[ \t\r\n]*:[ \t\r\n]*')
_NEXT: Final = re.compile(rb"[ \t\r\n]*([,}])[ \t\r\n]*")

Span = tuple[int, int]
"""Begin and end of a value's bytes."""


class NotAnObjectError(ValueError):
    """The bytes are not one JSON object."""


class RepeatedKeyError(ValueError):
    """The object has a key twice: two readers of it may see different values."""


def members(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the raw top-level values by key; of a repeated key, the last value.

    Raises:
        NotAnObjectError: it is not JSON, not an object, or nested beyond what the decoder can follow.
    """
    try:
        return _MEMBERS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAnObjectError(str(error)) from None
    except RecursionError:
        raise NotAnObjectError("nested too deeply") from None


def spans(body: bytes, until: str | None = None) -> dict[str, Span]:
    """Return the place of each top-level value, or only of those up to and including member `until`.

    Raises:
        NotAnObjectError: `body` is not a JSON object.
        RepeatedKeyError: a key stands twice (in whatever spelling) among the members walked over.
    """
    values = members(body)
    found: dict[str, Span] = {}
    opened = _OPEN.match(body)
    at = opened.end() if opened else 0
    more = bool(values)
    # the values are known; walking over them costs one comparison each, and fails where a repeated key was dropped
    for key, value in values.items():
        text = bytes(value)
        named = _KEY.match(body, at) if more else None
        if named is None or not body.startswith(text, named.end()):
            raise RepeatedKeyError(key)
        found[key] = named.end(), named.end() + len(text)
        if key == until:
            return found
        following = _NEXT.match(body, found[key][1])
        if following is None:
            raise RepeatedKeyError(key)
        more, at = following[1] == b",", following.end()
    if more:
        raise RepeatedKeyError("")
    return found


def replace(body: bytes, span: Span, value: bytes) -> bytes:
    """Return `body` with the bytes of `span` replaced."""
    return body[: span[0]] + value + body[span[1] :]

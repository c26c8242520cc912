"""Moments as people write them: a version of the ledger, a time of day, or how long ago."""

import re
from datetime import UTC, datetime
from typing import Final

from domain.errors import CallerError

UNIX_MIN: Final = 1_000_000_000
"""A whole number from here on is seconds since 1970; a smaller one is a version."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WORDS: Final = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}
_AGO: Final = re.compile(r"([0-9]{1,9})\s*(s|sec|second|m|min|minute|h|hour|d|day)s?(?:\s+ago)?")
_NUMBER: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?")
_NS: Final = 1_000_000_000


class BadMomentError(CallerError):
    """A text names no moment."""


def moment_of(text: str, now_ns: int) -> tuple[int | None, int | None]:
    """Return (version, None) or (None, time in ns) of a moment as people write it; (None, None) of `now`.

    Raises:
        BadMomentError: it is none of these.
    """
    plain = text.strip().lower()
    if plain == "now":
        return None, None
    if found := _NUMBER.fullmatch(plain):
        whole, part = int(found[1]), found[2] or ""
        if whole < UNIX_MIN and not part:
            return whole, None
        return None, whole * _NS + int(part.ljust(9, "0") or 0)
    if found := _AGO.fullmatch(plain):
        unit = _UNITS[_WORDS.get(found[2], found[2])]
        return None, max(0, now_ns - int(found[1]) * unit * _NS)
    try:
        at = datetime.fromisoformat(text.strip()).astimezone()  # without a zone it is this machine's
    except (ValueError, OverflowError):
        raise BadMomentError(
            f"moment {text[:80]!r}: must be a version (812), a time (2026-11-30T01:20:00Z, or seconds since 1970), "
            "how long ago ('5 minutes ago', 90s), or now"
        ) from None
    return None, int(at.timestamp()) * _NS + at.microsecond * 1000


def when(stamp_ns: int) -> str:
    """Return a stamp as a time of UTC, to the millisecond."""
    whole_s, rest_ns = divmod(stamp_ns, _NS)
    at = datetime.fromtimestamp(whole_s, UTC).replace(microsecond=rest_ns // 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

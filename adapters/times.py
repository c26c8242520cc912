"""Times as people write and read them: one rule for every command, path, parameter and setting.

    2026-11-30T01:20:00Z    a time (RFC 3339); without a zone it is UTC, a day alone begins at midnight
    1796001600              seconds since 1970, from 1,000,000,000 on; a smaller number is no time, but what the asker counts
    10m, -10m, '10 min ago' how long ago (s, m, h, d)
    now

Every time is shown in UTC, with its day, in the form in which it is taken.
"""

import re
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from domain.errors import CallerError

UNIX_MIN: Final = 1_000_000_000
"""A whole number from here on is seconds since 1970."""
RULE: Final = (
    "a time (2026-11-30T01:20:00Z; without a zone it is UTC), seconds since 1970, "
    "how long ago (90s, 10m, 2h, 7d) or now"
)
"""What may be said, to follow `must be`."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WORDS: Final = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}
_AGO: Final = re.compile(r"-?([0-9]{1,9})\s*(s|sec|second|m|min|minute|h|hour|d|day)s?(?:\s+ago)?")
_NUMBER: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?")
_ZONE: Final = re.compile(r"(?<=:[0-9]{2}) (?=[0-9]{2}:?[0-9]{2}$)")
"""The plus of a zone, as a URL in which it was not escaped brings it."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS: Final = 1_000_000_000
_SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999."""
_LAST_NS: Final = _SECONDS_MAX * _NS + _NS - 1


class BadMomentError(CallerError):
    """A text names no moment."""

    def __init__(self, text: str, number: str) -> None:
        self.rule = f"must be {number + ', ' if number else ''}{RULE}, got {text[:80]!r}"
        super().__init__(f"time: {self.rule}")


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What was said: a number, a time, or how long ago; nothing of it is now."""

    number: int | None = None
    """What the asker counts: a version of the ledger, a stream's sequence."""
    at_ns: int | None = None
    ago_ns: int = 0

    @property
    def is_now(self) -> bool:
        """Tell whether no other moment was said."""
        return self.number is None and self.at_ns is None and not self.ago_ns

    def stamp_ns(self, end_ns: int) -> int:
        """Return the time that is meant; what is so long ago counts back from `end_ns`."""
        assert self.number is None, f"number {self.number}: is no time"
        return max(0, end_ns - self.ago_ns) if self.at_ns is None else self.at_ns


def moment_of(text: str, number: str = "") -> Moment:
    """Return what `text` says. `number`: what a small number is here, in words (`a version (812)`); empty: no moment.

    Raises:
        BadMomentError: it is none of these.
    """
    plain = text.strip().lower()
    if plain == "now":
        return Moment()
    if found := _NUMBER.fullmatch(plain):
        whole, part = int(found[1]), found[2] or ""
        if UNIX_MIN <= whole <= _SECONDS_MAX:
            return Moment(at_ns=whole * _NS + int(part.ljust(9, "0") or 0))
        if number and whole < UNIX_MIN and not part:
            return Moment(number=whole)
        raise BadMomentError(text, number)
    if found := _AGO.fullmatch(plain):
        unit = _UNITS[_WORDS.get(found[2], found[2])]
        return Moment(ago_ns=int(found[1]) * unit * _NS)
    return Moment(at_ns=_written(text, number))


def _written(text: str, number: str) -> int:
    try:
        at = datetime.fromisoformat(_ZONE.sub("+", text.strip().upper()))
    except ValueError:
        raise BadMomentError(text, number) from None
    since = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH
    if since.days < 0:
        raise BadMomentError(text, number)
    return (since.days * 86_400 + since.seconds) * _NS + since.microseconds * 1000


def utc(stamp_ns: int, to: Literal["seconds", "milliseconds", "microseconds"] = "milliseconds") -> str:
    """Return a stamp as it is shown: 2026-11-30T01:20:00.123Z. What is finer than `to` is cut off.

    A copy may state any number: what is before 1970 or after 9999 is shown as the nearest that has a form.
    """
    whole_s, rest_ns = divmod(min(max(0, stamp_ns), _LAST_NS), _NS)
    at = datetime.fromtimestamp(whole_s, UTC).replace(microsecond=rest_ns // 1000)
    return at.isoformat(timespec=to).replace("+00:00", "Z")

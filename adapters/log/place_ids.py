"""The id of an event: the place after it, and in which streams that is a place.

`120-3-45@9f3a1c0b22d177aa10`: how far LW_EVENTS, LW_CONTROL and LW_DECISIONS have been read, and six hex digits for each of them
that tell it from one that was made anew under its name, in which the same numbers name other events.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from adapters.log.public import PUBLIC, Missed, Place, parse_place

_BYTES: Final = 3
_LIVES: Final = re.compile(rf"[0-9a-f]{{{2 * _BYTES * len(PUBLIC)}}}")
_OTHER_NS: Final = -1
"""No stream was made then."""


class PlaceId(msgspec.Struct, frozen=True):
    """A place as it is said to those who come back with it."""

    place: Place
    lives: str = ""
    """Of the streams; empty in an id of a release that did not say it."""

    def __str__(self) -> str:
        """Return it as it is carried."""
        return f"{self.place}@{self.lives}" if self.lives else str(self.place)

    def created_ns(self, now: Sequence[int]) -> tuple[int, ...]:
        """Return when the streams were made in which this is a place; `now`: those that are there were made then."""
        if not self.lives:
            return tuple(now)
        size = 2 * _BYTES
        said = (self.lives[size * at : size * (at + 1)] for at in range(len(PUBLIC)))
        return tuple(made if life == _life(made) else _OTHER_NS for life, made in zip(said, now, strict=True))


def lives_of(created_ns: Sequence[int]) -> str:
    """Return how ids name the streams that were made at these times, in the order of PUBLIC."""
    return "".join(map(_life, created_ns))


def made_anew(created_ns: Sequence[int], missed: Missed) -> tuple[int, ...]:
    """Return when the streams were made that a reader is in who was told `missed`."""
    return tuple(
        missed.created_ns if name == missed.stream else was for name, was in zip(PUBLIC, created_ns, strict=True)
    )


def parse_id(text: str) -> PlaceId | None:
    """Return what an id says; None if it is none."""
    said, at, lives = text.partition("@")
    place = parse_place(said)
    if place is None or (at and not _LIVES.fullmatch(lives)):
        return None
    return PlaceId(place, lives)


def _life(created_ns: int) -> str:
    return blake2b(b"%d" % created_ns, digest_size=_BYTES).hexdigest()

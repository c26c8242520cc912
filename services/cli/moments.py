"""Moments on the command line. What is so long ago counts back from the newest message of a copy, or from what time it is.

That is told by the bus: it stamps what is stored, and this machine's clock need not agree with it.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from adapters.clock import SystemClock
from adapters.times import BadMomentError, Moment, moment_of

if TYPE_CHECKING:
    from adapters.log.history import Streams  # every command reads this module for its flags, few read history

A_VERSION: Final = "a version (812)"
A_SEQUENCE: Final = "a sequence (1200)"
TIMES: Final = (
    "TIME is 2026-11-30T01:20:00Z (without a zone it is UTC; a day alone begins at midnight), seconds since 1970,\n"
    "how long ago (90s, 10m, 2h, 7d), or now."
)
"""For the help of each command that takes one."""
TIMES_OF_HISTORY: Final = f"{TIMES} In a copy, how long ago counts back from its newest message."
"""For the help of each command that reads copies too."""


def a_moment(number: str = "") -> Callable[[str], Moment]:
    """Return a reader of moments, for argparse; `number` as `moment_of` takes it."""

    def read(text: str) -> Moment:
        try:
            return moment_of(text, number)
        except BadMomentError as error:
            raise argparse.ArgumentTypeError(error.rule) from None

    return read


def a_time_as_said(text: str) -> str:
    """Return `text`, if it is a time, for argparse: who is asked reads it by the same rule."""
    a_moment()(text)
    return text


def now_ns() -> int:
    """Return this machine's time."""
    return SystemClock().wall_us() * 1000


async def end_of(streams: "Streams", *, copied: bool) -> int:
    """Return from where what is so long ago counts back: the bus' now, or the newest stamp of a copy."""
    if not copied:
        return (await streams.events.bounds()).now_ns or now_ns()
    newest = [await stream.last() for stream in (streams.events, streams.control, streams.ledger)]
    return max((message.stamp_ns for message in newest if message is not None), default=0)

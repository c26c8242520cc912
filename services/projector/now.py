"""The time by the clock that stamps the messages: the bus' own.

"Ten minutes ago" and "how far behind" are said of stamps. This machine's clock may be set back or ahead while the projector runs,
so it is believed only where the bus has never said what time it is; from then on the monotonic clock tells how much later it is.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from domain.errors import BusError
from domain.ports import Clock, Stream
from domain.subjects import EVENTS

_ASK_EVERY_US: Final = 5_000_000
_BUS_S: Final = 1.0


class BusTime:
    """Knows what time it is on the bus."""

    def __init__(self, streams: Mapping[str, Stream], clock: Clock) -> None:
        self._streams, self._clock = streams, clock
        self._said_ns = self._heard_us = 0
        self._asked_us = -_ASK_EVERY_US

    async def now_ns(self) -> int:
        """Return nanoseconds since the epoch, UTC; a bus that is silent is waited for a second, and not at each call."""
        if self._clock.monotonic_us() - self._asked_us >= _ASK_EVERY_US:
            await self._ask()
        if not self._said_ns:
            return self._clock.wall_us() * 1000
        return self._said_ns + (self._clock.monotonic_us() - self._heard_us) * 1000

    async def _ask(self) -> None:
        self._asked_us = self._clock.monotonic_us()
        try:
            async with asyncio.timeout(_BUS_S):
                said_ns = (await self._streams[EVENTS].bounds()).now_ns
        except (BusError, TimeoutError):
            return
        if said_ns:
            self._said_ns, self._heard_us = said_ns, self._clock.monotonic_us()

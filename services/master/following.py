"""A standby's way along the ledger: one subscription a stream for as long as there is something to follow."""

from typing import Final

from adapters.log.history import Cursors, History, last_commit
from domain.ports import Clock

IDLE_US: Final = 10_000_000
"""A subscription that nobody used for so long is given back, before the server takes it."""


class Following:
    """Applies what the active master commits; close it."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history, self._clock = history, clock
        self._cursors: Cursors | None = None
        self._used_us = 0

    async def catch_up(self) -> None:
        """Apply the commits stored since (History.catch_up)."""
        head = await last_commit(self._history.streams.ledger)
        now_us = self._clock.monotonic_us()
        if head is not None and head.version > self._history.position.version:
            if self._cursors is None:
                self._cursors = Cursors(self._history.streams, self._history.position, endless=True)
            await self._history.catch_up(head, self._cursors)
            self._used_us = now_us
        elif now_us - self._used_us > IDLE_US:
            await self.aclose()

    async def aclose(self) -> None:
        """Give the subscriptions back."""
        if self._cursors is not None:
            cursors, self._cursors = self._cursors, None
            await cursors.close()

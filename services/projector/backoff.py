"""How long to wait before something that failed is tried again."""

import asyncio

from adapters.clock import random_fraction

_FIRST_S, _MAX_S = 0.2, 10.0


class Backoff:
    """Waits longer from failure to failure, and a little at random."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next_s = _FIRST_S

    async def wait(self) -> None:
        """Return when it is time to try again."""
        await asyncio.sleep(self._next_s * (0.5 + random_fraction() / 2))
        self._next_s = min(self._next_s * 2, _MAX_S)

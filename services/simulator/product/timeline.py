"""Virtual time in whole microseconds."""

import heapq
from collections.abc import Callable
from typing import Any


class Timeline:
    """What happens when; what is scheduled first for a moment happens first."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.happened = 0
        """How many things have happened."""
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._turn = 0

    def at(self, when_us: int, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what` at `when_us`, or now if that is over."""
        self._turn += 1
        heapq.heappush(self._events, (max(when_us, self.now_us), self._turn, what, arguments))

    def after(self, delay_us: int, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what` after `delay_us`."""
        self.at(self.now_us + delay_us, what, *arguments)

    def due_us(self) -> int | None:
        """Return when the next thing happens; None if nothing will."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Let the next thing happen; tell whether there was one."""
        if not self._events:
            return False
        self.happened += 1
        self.now_us, _, what, arguments = heapq.heappop(self._events)
        what(*arguments)
        return True

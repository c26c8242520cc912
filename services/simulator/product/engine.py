"""The engine of a simulated node: serves one request at a time, in the order in which they were given to it."""

from collections import deque
from collections.abc import Callable

from domain.ids import RequestId
from services.simulator.product.timeline import Timeline


class VirtualEngine:
    """Takes what it is given; says when a request is done."""

    def __init__(
        self, time: Timeline, done: Callable[[RequestId, int], None], begun: Callable[[RequestId], None]
    ) -> None:
        self._time, self._done, self._begun = time, done, begun
        self._waiting: deque[tuple[RequestId, int]] = deque()
        self._serving: RequestId | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is inside."""
        return self._serving is None

    def take(self, request: RequestId, takes_us: int) -> None:
        """Take a request that will need `takes_us`."""
        self._waiting.append((request, takes_us))
        self._next()

    def _next(self) -> None:
        if self._serving is None and self._waiting:
            self._serving, takes_us = self._waiting.popleft()
            self._begun(self._serving)
            self._time.after(takes_us, self._end, self._serving, takes_us)

    def _end(self, request: RequestId, took_us: int) -> None:
        self._serving = None
        self._done(request, took_us)
        self._next()

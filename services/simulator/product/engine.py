"""The engine of a simulated node: serves one request at a time, in the order in which they were given to it."""

from collections import deque
from collections.abc import Callable

from domain.ids import RequestId
from services.simulator.product.timeline import Timeline


class VirtualEngine:
    """Takes what it is given; says when a request begins and when it is done."""

    def __init__(
        self, time: Timeline, begun: Callable[[RequestId], None], done: Callable[[RequestId, int], None]
    ) -> None:
        self._time, self._begun, self._done = time, begun, done
        self._waiting: deque[tuple[RequestId, int]] = deque()
        self._serving: RequestId | None = None
        self._life = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is inside."""
        return self._serving is None

    def take(self, request: RequestId, takes_us: int) -> None:
        """Take a request that will need `takes_us`."""
        self._waiting.append((request, takes_us))
        self._next()

    def die(self) -> None:
        """Lose everything inside, without a word."""
        self._waiting.clear()
        self._serving = None
        self._life += 1

    def _next(self) -> None:
        if self._serving is None and self._waiting:
            self._serving, takes_us = self._waiting.popleft()
            self._begun(self._serving)
            self._time.after(takes_us, self._end, self._serving, takes_us, self._life)

    def _end(self, request: RequestId, took_us: int, life: int) -> None:
        if life != self._life:
            return
        self._serving = None
        self._done(request, took_us)
        self._next()

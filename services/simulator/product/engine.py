"""The engine of a simulated node: as many requests at a time as it has slots, in their order; one model in; no stopping."""

from collections import deque
from collections.abc import Callable

from domain.ids import ModelId, RequestId
from services.simulator.product.timeline import Timeline

Taken = tuple[RequestId, int, int]
"""A request, the time that it needs, and the status that it will be answered with."""


class VirtualEngine:
    """Takes what it is given; says when a request begins and when it is done, and when a load is."""

    def __init__(
        self,
        time: Timeline,
        begun: Callable[[RequestId], None],
        done: Callable[[RequestId, int, int], None],
        loaded: Callable[[ModelId, int], None],
        slots: int = 1,
    ) -> None:
        """`done` is called with (request, time taken, status), 0 for a request that was given up; `loaded` with (model, time)."""
        self._time, self._begun, self._done, self._loaded = time, begun, done, loaded
        self._waiting: deque[Taken] = deque()
        self._slots = slots
        self._serving: dict[RequestId, bool] = {}
        """What is in service, and whether somebody waits for it still."""
        self.loading: ModelId | None = None
        self._life = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is inside."""
        return not self._serving

    def inside(self) -> list[RequestId]:
        """Return what it was given and has not done, in its order."""
        return [*self._serving] + [request for request, _, _ in self._waiting]

    def take(self, request: RequestId, takes_us: int, status: int = 200) -> None:
        """Take a request that will need `takes_us`."""
        assert self.loading is None, f"request {request}: given to an engine that loads {self.loading}"
        self._waiting.append((request, takes_us, status))
        self._next()

    def give_up(self, request: RequestId) -> None:
        """Drop a request that nobody waits for any more: at once if it waits; one in service runs to its end, unheard."""
        if request in self._serving:
            self._serving[request] = False
            return
        for taken in [taken for taken in self._waiting if taken[0] == request]:
            self._waiting.remove(taken)
            self._time.after(0, self._dropped, request, self._life)

    def load(self, model: ModelId, takes_us: int) -> None:
        """Load a model, which nothing can stop but `die`."""
        assert self.is_idle, f"model {model}: loaded while {[*self._serving]} are served"
        self.loading = model
        self._time.after(takes_us, self._end_load, model, takes_us, self._life)

    def die(self) -> None:
        """Lose everything inside, without a word."""
        self._waiting.clear()
        self._serving, self.loading = {}, None
        self._life += 1

    def _next(self) -> None:
        while len(self._serving) < self._slots and self._waiting:
            request, takes_us, status = self._waiting.popleft()
            self._serving[request] = True
            self._begun(request)
            self._time.after(takes_us, self._end, request, takes_us, status, self._life)

    def _end(self, request: RequestId, took_us: int, status: int, life: int) -> None:
        if life != self._life:
            return
        wanted = self._serving.pop(request)
        self._done(request, took_us, status if wanted else 0)
        self._next()

    def _dropped(self, request: RequestId, life: int) -> None:
        if life == self._life:
            self._done(request, 0, 0)

    def _end_load(self, model: ModelId, took_us: int, life: int) -> None:
        if life == self._life:
            self.loading = None
            self._loaded(model, took_us)

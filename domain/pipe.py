"""What is inside one engine: given to it and not finished yet, own and borrowed alike.

An engine takes more requests than it works on (depth 2, one slot), so service begins when a slot is free, not when the
request was given. The engine does not say when that is; it follows from the order of dispatch.
"""

import heapq
from collections.abc import Callable

import msgspec

from domain.estimates import rest_us
from domain.ids import RequestId


class Left(msgspec.Struct, frozen=True):
    """How a request left the engine."""

    service_us: int
    """Time in service alone; 0 if its service never began."""
    began_us: int | None
    """When its service began; None if never."""
    now_serving: tuple[RequestId, ...]
    """Requests whose service begins with this departure."""


class Pipe:
    """The requests inside one engine, with the moment at which each one's service began."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._serving: dict[RequestId, int] = {}
        self._pending: dict[RequestId, int] = {}
        self._borrowed: set[RequestId] = set()
        self._work: dict[RequestId, int] = {}

    def __len__(self) -> int:
        return len(self._serving) + len(self._pending)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._serving or request in self._pending

    @property
    def borrowed(self) -> int:
        """How many of the requests inside are borrowed."""
        return len(self._borrowed)

    @property
    def own_pending(self) -> bool:
        """Whether a request of the node's own is inside and not in service yet."""
        return any(request not in self._borrowed for request in self._pending)

    def free_in_us(self, now_us: int, price: Callable[[int], int]) -> int:
        """Return in what time the service of one more request should begin; `price`: time for a work."""
        left_us = [
            rest_us(price(self._work[request]), now_us - began_us) for request, began_us in self._serving.items()
        ]
        if len(left_us) < self.slots:
            return 0
        heapq.heapify(left_us)
        for request in self._pending:
            heapq.heapreplace(left_us, left_us[0] + price(self._work[request]))
        return left_us[0]

    def enter(self, request: RequestId, now_us: int, *, work: int, borrowed: bool) -> bool:
        """Put `request` in; tell whether its service begins at once."""
        assert request not in self, f"request {request}: is inside the engine already"
        self._work[request] = work
        if borrowed:
            self._borrowed.add(request)
        if len(self._serving) < self.slots:
            self._serving[request] = now_us
            return True
        self._pending[request] = now_us
        return False

    def leave(self, request: RequestId, now_us: int, *, served: bool) -> Left:
        """Take `request` out.

        `served`: it came to an answer. If it was pending then, the engine worked in another order than it was given: the
        service that began first was this one's, and the one that was thought to have it is in service from now on.
        """
        self._borrowed.discard(request)
        del self._work[request]
        if request in self._pending:
            entered_us = self._pending.pop(request)
            if not served or not self._serving:
                return Left(0, None, ())
            mistaken = next(iter(self._serving))
            began_us = max(entered_us, self._serving.pop(mistaken))
            self._serving[mistaken] = now_us
            return Left(now_us - began_us, began_us, ())
        began_us = self._serving.pop(request)
        return Left(now_us - began_us, began_us, self._serve_pending(now_us))

    def clear(self, now_us: int) -> list[tuple[RequestId, Left]]:
        """Empty the pipe, since the engine is dead; return what was inside, in service first."""
        inside = [(request, Left(now_us - began_us, began_us, ())) for request, began_us in self._serving.items()]
        inside += [(request, Left(0, None, ())) for request in self._pending]
        self._serving, self._pending, self._borrowed, self._work = {}, {}, set(), {}
        return inside

    def _serve_pending(self, now_us: int) -> tuple[RequestId, ...]:
        begun: list[RequestId] = []
        while self._pending and len(self._serving) < self.slots:
            following = next(iter(self._pending))
            del self._pending[following]
            self._serving[following] = now_us
            begun.append(following)
        return tuple(begun)

"""The held requests of one owner's queue, in order of arrival; one that comes back goes to its old place.

Three heaps over one dict: a departure leaves its heap entries behind, and they are dropped when they come up or when they
outnumber what is held. So no input looks at more than a few requests, however many are held.
"""

import heapq
from collections.abc import Callable
from typing import TypeVar

from domain.owner.request import OwnRequest

_STALE_ALLOWED = 64
Found = TypeVar("Found")


class HeldQueue:
    """Requests waiting at their owner, ordered by arrival."""

    def __init__(self) -> None:
        self._by_seq: dict[int, OwnRequest] = {}
        self._order: list[int] = []
        self._lendable: list[int] = []
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._by_seq)

    def put(self, request: OwnRequest) -> None:
        """Put `request` at its place in the order of arrival."""
        self._by_seq[request.seq] = request
        heapq.heappush(self._order, request.seq)
        heapq.heappush(self._deadlines, (request.deadline_us, request.seq))
        if request.lendable:
            heapq.heappush(self._lendable, request.seq)

    def remove(self, request: OwnRequest) -> None:
        """Take `request` out, wherever it stands."""
        del self._by_seq[request.seq]
        bound = 2 * len(self._by_seq) + _STALE_ALLOWED
        if len(self._order) > bound:
            self._order = sorted(self._by_seq)
        if len(self._lendable) > bound:
            self._lendable = sorted(seq for seq, held in self._by_seq.items() if held.lendable)
        if len(self._deadlines) > bound:
            self._deadlines = sorted((held.deadline_us, seq) for seq, held in self._by_seq.items())

    def first(self) -> OwnRequest | None:
        """Return the request that arrived first; None if none is held."""
        while self._order:
            request = self._by_seq.get(self._order[0])
            if request is not None:
                return request
            heapq.heappop(self._order)
        return None

    def first_lendable(self) -> OwnRequest | None:
        """Return the lendable request that arrived first; None if there is none."""
        while self._lendable:
            request = self._by_seq.get(self._lendable[0])
            if request is not None and request.lendable:
                return request
            heapq.heappop(self._lendable)
        return None

    def first_that(
        self, suits: Callable[[OwnRequest], Found | None], look_at_most: int
    ) -> tuple[OwnRequest, Found] | None:
        """Return the lendable request that arrived first of those for which `suits` finds something, and what it found.

        None if there is none among the first `look_at_most`.
        """
        passed: list[int] = []
        answer = None
        while len(passed) < look_at_most and (request := self.first_lendable()) is not None:
            found = suits(request)
            if found is not None:
                answer = request, found
                break
            passed.append(heapq.heappop(self._lendable))
        for seq in passed:
            heapq.heappush(self._lendable, seq)
        return answer

    def first_due(self) -> OwnRequest | None:
        """Return the request whose deadline comes first; None if none is held."""
        while self._deadlines:
            deadline_us, seq = self._deadlines[0]
            request = self._by_seq.get(seq)
            if request is not None and request.deadline_us == deadline_us:
                return request
            heapq.heappop(self._deadlines)
        return None

    def in_order(self) -> list[OwnRequest]:
        """Return all held requests in order of arrival. Sorts: for snapshots only."""
        return [self._by_seq[seq] for seq in sorted(self._by_seq)]

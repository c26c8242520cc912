"""n equal jobs on machines with ready times: the n earliest completion slots.

Taking them is optimal for the makespan and for the sum of completion times at once (exchange argument; checked against an
exact solver in docs/discussions/pricing.md). This is the kernel of the lending rule `water`: held requests are poured over
owner and helpers like water over steps of different height.
"""

from bisect import bisect_left
from heapq import heapify, heapreplace

from domain.fixed import ceil_div

Machine = tuple[int, int]
"""(microseconds until it is free, microseconds for one job, at least 1)."""
Slotting = tuple[list[int], int, int]
"""(jobs for each machine, microseconds until the last completes, sum of all completion times)."""

_HEAP_JOBS_MAX = 16
_RATE_ONE = 1 << 96
"""A job in a microsecond."""
_FEW_MACHINES = 6
"""With so few it is cheaper to pour what a machine had over the others than to list the slots after all."""


def earliest_slots(machines: list[Machine], jobs: int) -> Slotting:
    """Return where `jobs` equal jobs go; ties go to the machine that stands first.

    Raises:
        ValueError: there is no machine, or less than one job.
    """
    if not machines or jobs < 1:
        raise ValueError(f"slotting: needs a machine and a job, got {len(machines)} and {jobs}")
    if jobs <= _HEAP_JOBS_MAX:
        return _by_heap(machines, jobs)
    return _by_level(machines, jobs)


def _by_heap(machines: list[Machine], jobs: int) -> Slotting:
    """One job at a time to the earliest completion: O(jobs log machines)."""
    heap = [(ready + job, index) for index, (ready, job) in enumerate(machines)]
    heapify(heap)
    counts = [0] * len(machines)
    total = last = 0
    for _ in range(jobs):
        at, index = heap[0]
        counts[index] += 1
        total += at
        last = at
        heapreplace(heap, (at + machines[index][1], index))
    return counts, last, total


def _by_level(machines: list[Machine], jobs: int) -> Slotting:
    """Fill up to just below the water level, then one job at a time: O(machines log machines) however many jobs.

    All slots up to `level` are among the earliest: even machines that shared jobs in parts would not be through before it.
    """
    level = rates = filled = 0
    for ready, job in sorted(machines):
        if rates and ready >= level:
            break
        rate = ceil_div(_RATE_ONE, job)  # rounded up, so that the level is never too high
        rates += rate
        filled += ready * rate
        level = (jobs * _RATE_ONE + filled) // rates
    counts, heap, last = [], [], 0
    for index, (ready, job) in enumerate(machines):
        n = (level - ready) // job if level > ready else 0
        counts.append(n)
        heap.append((ready + (n + 1) * job, index))
        if n:
            last = max(last, ready + n * job)
    heapify(heap)
    for _ in range(jobs - sum(counts)):
        last, index = heap[0]
        counts[index] += 1
        heapreplace(heap, (last + machines[index][1], index))
    total = sum(n * ready + job * n * (n + 1) // 2 for n, (ready, job) in zip(counts, machines, strict=True))
    return counts, last, total


def saved_by_each(machines: list[Machine], counts: list[int]) -> list[int]:
    """Return for each machine how much the sum of all completion times would grow without it; 0 for the first.

    `counts` are its slots of `earliest_slots`. Without a machine the others keep all their slots, since these are still among
    the earliest; the jobs that it had go to the earliest slots of the others after those. So nothing is poured anew.

    The first is the owner's own: there is no pouring without it.
    """
    nexts = [(ready + n * job, job) for (ready, job), n in zip(machines, counts, strict=True)]
    if len(machines) <= _FEW_MACHINES:
        grown = [earliest_slots(nexts[:at] + nexts[at + 1 :], n)[2] if at and n else 0 for at, n in enumerate(counts)]
    else:
        grown = _Waiting(nexts).without_each(counts)
    return [
        total - (n * ready + job * n * (n + 1) // 2) if at and n else 0
        for at, (total, n, (ready, job)) in enumerate(zip(grown, counts, machines, strict=True))
    ]


class _Waiting:
    """The slots that come after those taken, over all machines in order, as far as somebody asked."""

    def __init__(self, nexts: list[Machine]) -> None:
        self._nexts = nexts
        self._heap = [(ready + job, index) for index, (ready, job) in enumerate(nexts)]
        heapify(self._heap)
        self._sums = [0]
        """Sum of the first i completions."""
        self._places: list[list[int]] = [[] for _ in nexts]
        """Where in the order each machine's completions stand, from 0."""

    def without_each(self, counts: list[int]) -> list[int]:
        """Return for each machine but the first the sum of the next `counts` completions of all others."""
        return [self._without(at, n) if at and n else 0 for at, n in enumerate(counts)]

    def _without(self, machine: int, jobs: int) -> int:
        own, upto = 0, jobs
        while True:
            while len(self._sums) <= upto:
                self._take()
            own = bisect_left(self._places[machine], upto)
            if upto - own == jobs:
                ready, job = self._nexts[machine]
                return self._sums[upto] - (own * ready + job * own * (own + 1) // 2)
            upto = jobs + own

    def _take(self) -> None:
        at, index = self._heap[0]
        self._places[index].append(len(self._sums) - 1)
        self._sums.append(self._sums[-1] + at)
        heapreplace(self._heap, (at + self._nexts[index][1], index))

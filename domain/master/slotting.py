"""n equal jobs on machines with ready times: the n earliest completion slots.

Taking them is optimal for the makespan and for the sum of completion times at once (exchange argument; checked against an
exact solver in docs/discussions/pricing.md). This is the kernel of the lending rule `water`: held requests are poured over
owner and helpers like water over steps of different height.
"""

from heapq import heapify, heapreplace

Machine = tuple[int, int]
"""(microseconds until it is free, microseconds for one job, at least 1)."""
Slotting = tuple[list[int], int, int]
"""(jobs for each machine, microseconds until the last completes, sum of all completion times)."""

_HEAP_JOBS_MAX = 32


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
    """Find the water level, the earliest time by which `jobs` jobs can be complete: O(machines log time)."""
    high = min(ready + jobs * job for ready, job in machines)
    low = min(ready for ready, _ in machines)
    while high - low > 1:
        middle = (low + high) // 2
        if sum((middle - ready) // job for ready, job in machines if middle > ready) >= jobs:
            high = middle
        else:
            low = middle
    counts = [(high - ready) // job if high > ready else 0 for ready, job in machines]
    surplus = sum(counts) - jobs
    # Only jobs that complete exactly at the level can be too many; the later machines give theirs up.
    for index in range(len(machines) - 1, -1, -1):
        ready, job = machines[index]
        if surplus and counts[index] and ready + counts[index] * job == high:
            counts[index] -= 1
            surplus -= 1
    total = sum(n * ready + job * n * (n + 1) // 2 for n, (ready, job) in zip(counts, machines, strict=True))
    return counts, high, total

"""n equal jobs on machines with ready times: the n earliest completion slots.

Taking them is optimal for the makespan and for the sum of completion times at once (exchange argument; checked against an
exact solver in docs/discussions/pricing.md). This is the kernel of the lending rule `water`: held requests are poured over
owner and helpers like water over steps of different height.
"""

from heapq import heapify, heapreplace
from itertools import accumulate

Machine = tuple[int, int]
"""(microseconds until it is free, microseconds for one job, at least 1)."""
Slotting = tuple[list[int], int, int]
"""(jobs for each machine, microseconds until the last completes, sum of all completion times)."""

_HEAP_JOBS_MAX = 16
_FEW_MACHINES = 2
"""With so few it is cheaper to pour what a machine had over the others than to list the slots after all."""
_WALK = 3
"""Up to so many completions a machine it is cheaper to list one after the other."""
_RATE_ONE = 1 << 96
"""A job in a microsecond."""


def earliest_slots(machines: list[Machine], jobs: int) -> Slotting:
    """Return where `jobs` equal jobs go; ties go to the machine that stands first.

    Raises:
        ValueError: there is no machine, or less than one job.
    """
    if not machines or jobs < 1:
        raise ValueError(f"slotting: needs a machine and a job, got {len(machines)} and {jobs}")
    if len(machines) == 1:
        ready, job = machines[0]
        return [jobs], ready + jobs * job, jobs * ready + job * jobs * (jobs + 1) // 2
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
        last, index = heap[0]
        counts[index] += 1
        total += last
        heapreplace(heap, (last + machines[index][1], index))
    return counts, last, total


def _by_level(machines: list[Machine], jobs: int) -> Slotting:
    """Fill up to just below the water level, then one job at a time: O(machines log machines) however many jobs.

    All slots up to `level` are among the earliest: even machines that shared jobs in parts would not be through before it.
    """
    level = _level(machines, jobs)
    counts, heap = [], []
    last = total = 0
    for index, (ready, job) in enumerate(machines):
        n = 0
        if level > ready:
            n = (level - ready) // job
            if n:
                end = ready + n * job
                last = max(last, end)
                total += n * ready + job * n * (n + 1) // 2
                jobs -= n
        counts.append(n)
        heap.append((ready + (n + 1) * job, index))
    if jobs:
        heapify(heap)
        for _ in range(jobs):
            last, index = heap[0]
            counts[index] += 1
            total += last
            heapreplace(heap, (last + machines[index][1], index))
    return counts, last, total


def _level(machines: list[Machine], jobs: int) -> int:
    """Return when machines that could share a job in parts would have done all of them, or a little before."""
    level = rates = filled = 0
    for ready, job in sorted(machines):
        if rates and ready >= level:
            break
        rate = -(-_RATE_ONE // job)  # rounded up, so that the level is never too high
        rates += rate
        filled += ready * rate
        level = (jobs * _RATE_ONE + filled) // rates
    return level


def saved_by_each(machines: list[Machine], counts: list[int]) -> list[int]:
    """Return for each machine how much the sum of all completion times would grow without it; 0 for the first.

    `counts` are its slots of `earliest_slots`. Without a machine the others keep all their slots, since these are still among
    the earliest; the jobs that it had go to the earliest slots of the others after those. So nothing is poured anew.

    The first is the owner's own: there is no pouring without it.
    """
    nexts = [(ready + n * job, job) for (ready, job), n in zip(machines, counts, strict=True)]
    waiting = _Waiting(nexts, max(counts[1:], default=0)) if len(machines) > _FEW_MACHINES else None
    saved = [0] * len(machines)
    for at in range(1, len(machines)):
        n = counts[at]
        if n:
            ready, job = machines[at]
            without = waiting.without(at, n) if waiting is not None else _without(nexts, at, n)
            saved[at] = without - (n * ready + job * n * (n + 1) // 2)
    return saved


def _without(nexts: list[Machine], machine: int, jobs: int) -> int:
    """Return the sum of the next `jobs` completions of all machines but one."""
    return earliest_slots(nexts[:machine] + nexts[machine + 1 :], jobs)[2]


class _Waiting:
    """The slots that come after those taken, over all machines in order, as far as somebody asked."""

    def __init__(self, nexts: list[Machine], most: int) -> None:
        """`most`: the largest number of jobs that will be asked for."""
        self._nexts = nexts
        self._heap = [(ready + job, index) for index, (ready, job) in enumerate(nexts)]
        """Of each machine its first completion that is not listed yet."""
        heapify(self._heap)
        self._ends: list[int] = []
        """Completions in order."""
        self._sums = [0]
        """Sum of the first i of them."""
        self._first = most + most // 4 + 2
        self._ends_max = 4 * (most + len(nexts))

    def without(self, machine: int, jobs: int) -> int:
        """Return the sum of the next `jobs` completions of all others.

        They are the first of all, less the machine's own among them. Which of equal ones are its own does not change a sum.
        """
        ready, job = self._nexts[machine]
        upto = jobs
        while upto <= self._ends_max:
            if upto > len(self._ends):
                self._take(max(self._first, upto))
            own = max(0, (self._ends[upto - 1] - ready) // job)
            if upto - own == jobs:
                return self._sums[upto] - (own * ready + job * own * (own + 1) // 2)
            upto = jobs + own
        # it is so much faster than the others that what they do next lies behind very many of its own
        return _without(self._nexts, machine, jobs)

    def _take(self, upto: int) -> None:
        """List the earliest `upto` completions."""
        count = upto - len(self._ends)
        ends = self._one_by_one(count) if count <= _WALK * len(self._nexts) else self._at_once(count)
        sums = accumulate(ends, initial=self._sums[-1])
        next(sums)
        self._ends += ends
        self._sums += sums

    def _one_by_one(self, count: int) -> list[int]:
        heap, ends = self._heap, []
        for _ in range(count):
            at, index = heap[0]
            ends.append(at)
            heapreplace(heap, (at + self._nexts[index][1], index))
        return ends

    def _at_once(self, count: int) -> list[int]:
        machines = [(at - self._nexts[index][1], self._nexts[index][1]) for at, index in self._heap]
        ends: list[int] = []
        for place, n in enumerate(earliest_slots(machines, count)[0]):
            if n:
                at, index = self._heap[place]
                job = self._nexts[index][1]
                self._heap[place] = (at + n * job, index)
                ends += range(at, at + n * job, job)
        heapify(self._heap)
        ends.sort()
        return ends

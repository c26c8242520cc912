"""The n earliest completion slots are the best that any assignment can do."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.master import slotting
from domain.master.slotting import Machine, earliest_slots

machines = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=5)


def cost(on: list[Machine], counts: list[int]) -> tuple[int, int]:
    ends = [ready + job * (k + 1) for (ready, job), n in zip(on, counts, strict=True) for k in range(n)]
    return max(ends), sum(ends)


@given(machines, st.integers(1, 6))
def test_no_assignment_ends_earlier_or_waits_less(on: list[Machine], jobs: int):
    counts, last, total = earliest_slots(on, jobs)
    assert sum(counts) == jobs
    assert (last, total) == cost(on, counts)
    every = [c for c in product(range(jobs + 1), repeat=len(on)) if sum(c) == jobs]
    assert last == min(cost(on, list(c))[0] for c in every)
    assert total == min(cost(on, list(c))[1] for c in every)


@given(machines, st.integers(1, 400))
def test_the_deep_and_the_shallow_way_agree(on: list[Machine], jobs: int):
    assert slotting._by_level(on, jobs) == slotting._by_heap(on, jobs)
    assert sum(slotting._by_level(on, jobs)[0]) == jobs


@given(machines, st.integers(1, 100), st.integers(0, 60), st.integers(1, 40))
def test_one_more_machine_never_makes_it_worse(on: list[Machine], jobs: int, ready: int, job: int):
    before, with_one_more = earliest_slots(on, jobs), earliest_slots([*on, (ready, job)], jobs)
    assert with_one_more[1] <= before[1]
    assert with_one_more[2] <= before[2]


def test_ties_go_to_the_machine_that_stands_first():
    assert earliest_slots([(0, 10), (0, 10)], 1)[0] == [1, 0]
    assert earliest_slots([(0, 10), (0, 10)], 101)[0] == [51, 50]


def test_nothing_to_place_is_refused():
    with pytest.raises(ValueError, match="needs a machine and a job"):
        earliest_slots([(0, 1)], 0)


unequal = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 3, 40, 10**6, 10**12])), min_size=2, max_size=9)


@given(st.one_of(machines.filter(lambda on: len(on) > 1), unequal), st.integers(1, 90))
def test_what_each_machine_saves_is_the_sum_without_it_less_the_sum_with_it(on: list[Machine], jobs: int):
    counts, _, total = earliest_slots(on, jobs)
    poured_anew = [earliest_slots(on[:at] + on[at + 1 :], jobs)[2] - total for at in range(1, len(on))]
    assert slotting.saved_by_each(on, counts) == [0, *poured_anew]

"""The unit of work: it changes with a model's first answers, and what is measured and what waits must change together."""

from domain.events import BorrowFinished, Finished, Held, Lent
from domain.inputs import EngineResult, NewSize
from tests.unit.machine_rig import BACK_LINK, OK, facts, lease, new, of, offer, order, rid, runtime, told


def test_a_request_ends_with_its_work_in_the_unit_of_that_moment():
    made = runtime()
    made.submit(new(1, work=3000), 0)
    assert of(made.engine_finished(rid(1), EngineResult(work=1000), 5), Finished).work == 1000
    made.submit(new(2, work=3000), 6)
    assert of(made.engine_finished(rid(2), OK, 7), Finished).work == 3000


def test_a_borrowed_request_ends_with_its_work_in_the_unit_of_that_moment():
    made = runtime(owner=(), helper=(BACK_LINK,))
    for number, result in ((1, EngineResult(work=200)), (2, OK)):
        made.borrow(offer(number), 0)
        made.borrow_body(rid(number), 0)
        assert of(made.engine_finished(rid(number), result, 5), BorrowFinished).work == (200 if number == 1 else 500)


def test_one_that_the_engine_did_not_begin_is_held_again_with_its_newest_work():
    made = runtime()
    made.submit(new(1, work=3000), 0)
    outputs = made.engine_finished(rid(1), EngineResult(status=0, complete=False, not_started=True, work=900), 5)
    assert of(outputs, Held).work == 900


def test_held_requests_are_stated_again_with_their_works_and_each_may_change_again():
    made = runtime()
    for number in range(1, 5):
        made.submit(new(number, work=3000), 0)
    outputs = made.resize({rid(number): NewSize(work=1000 + number) for number in range(1, 5)}, 7)
    assert [(held.request, held.work, held.est_tokens) for held in facts(outputs, Held)] == [
        (rid(3), 1003, 0),
        (rid(4), 1004, 0),
    ]
    assert made.resize({rid(3): NewSize(work=1003)}, 8) == []
    again = of(made.resize({rid(3): NewSize(work=1100, est_tokens=60)}, 9), Held)
    assert (again.work, again.est_tokens) == (1100, 60)
    assert [one.work for one in made.snapshot(9)[0].requests] == [1001, 1002, 1100, 1004]


def test_what_is_lent_afterwards_is_lent_with_its_new_work():
    made = runtime()
    for number in range(1, 4):
        made.submit(new(number, work=3000), 0)
    made.resize({rid(3): NewSize(work=1000)}, 1)
    outputs = made.take_lease(lease(slots=1), order(1), 1, 1)
    assert "Lend r3" in told(outputs)
    assert of(outputs, Lent).work == 1000

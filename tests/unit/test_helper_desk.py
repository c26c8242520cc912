"""A helper's desk: what it takes, what it hands back, and how its own work goes first."""

import pytest

from domain.actions import FORGET_US, AcceptBorrow, CancelEngine, Dispatch, RefuseBorrow
from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    LeaseChecked,
    NativeWaited,
    NotAccepting,
    StillRunning,
)
from domain.ids import LeaseId, LinkId
from domain.inputs import EngineResult
from tests.unit.machine_rig import (
    BACK_LINK,
    LINK,
    OK,
    OTHER_LINK,
    SECOND,
    TTL,
    facts,
    lease,
    new,
    of,
    offer,
    order,
    rid,
    runtime,
    told,
    word,
)


def helper(**changes):
    return runtime(owner=(), helper=(BACK_LINK, OTHER_LINK), **changes)


def borrowing(*numbers, whole=True, made=None):
    """Return a helper that accepted `numbers`, with their bodies if `whole`."""
    made = made or helper()
    for number in numbers:
        made.borrow(offer(number), number)
        if whole:
            made.borrow_body(rid(number), number)
    return made


def test_a_lend_is_accepted_before_its_body_and_starts_once_the_body_is_whole():
    made = helper()
    outputs = made.borrow(offer(1), 0)
    assert told(outputs) == ["BorrowAccepted r1", "AcceptBorrow r1"]
    assert of(outputs, AcceptBorrow).position == 0
    outputs = made.borrow_body(rid(1), 5)
    assert told(outputs) == ["BorrowStarted r1", "Dispatch r1"]
    assert of(outputs, Dispatch).borrowed
    outputs = made.engine_finished(rid(1), OK, 5 + SECOND)
    assert (of(outputs, BorrowFinished).ok, of(outputs, BorrowFinished).service_us) == (True, SECOND)
    assert made.idle


def test_a_slow_body_keeps_nobody_else_waiting():
    made = borrowing(1, 2, whole=False)
    assert told(made.borrow_body(rid(2), 5)) == ["BorrowStarted r2", "Dispatch r2"]


def test_the_desk_takes_no_more_than_the_depth_whatever_the_leases_say():
    made = borrowing(1, 2)
    outputs = made.borrow(offer(3, slots=99, link=OTHER_LINK), 9)
    assert told(outputs) == ["BorrowBusy r3", "RefuseBorrow r3"]
    assert of(outputs, RefuseBorrow) == RefuseBorrow(request=rid(3), status=503, code="offload_busy")
    assert (of(outputs, BorrowBusy).borrowed, of(outputs, BorrowBusy).depth) == (2, 2)
    made.engine_finished(rid(1), OK, 10)
    assert told(made.borrow(offer(3), 11)) == ["BorrowAccepted r3", "AcceptBorrow r3"]


def test_the_desk_takes_no_more_of_an_owner_than_its_lease_has_slots():
    made = borrowing(1)
    assert told(made.borrow(offer(2, slots=1), 9)) == ["BorrowBusy r2", "RefuseBorrow r2"]
    assert told(made.borrow(offer(2, slots=1, link=OTHER_LINK), 9)) == ["BorrowAccepted r2", "AcceptBorrow r2"]


@pytest.mark.parametrize("changes", [{"lease_live": False}, {"remaining_us": 0}])
def test_a_lend_without_a_live_lease_is_refused(changes):
    outputs = helper().borrow(offer(1, **changes), 0)
    assert of(outputs, BorrowReturned).reason == "no_live_lease"
    assert of(outputs, RefuseBorrow) == RefuseBorrow(
        request=rid(1), status=403, code="no_live_lease", reason="no_live_lease"
    )


def test_a_helper_with_own_work_waiting_hands_a_lend_back_and_says_that_it_was_busy_before():
    made = helper()
    for number in (11, 12, 13):
        made.submit(new(number), 0)
    outputs = made.borrow(offer(1), 5)
    assert told(outputs) == ["BorrowReturned r1", "RefuseBorrow r1"]
    assert (of(outputs, BorrowReturned).reason, of(outputs, BorrowReturned).after_arrival) == ("own_work", False)
    assert of(outputs, RefuseBorrow) == RefuseBorrow(
        request=rid(1), status=409, code="offload_returned", reason="own_work"
    )


def test_own_work_that_arrives_takes_back_every_borrowed_request_that_has_not_started():
    made = borrowing(1)
    made.borrow(offer(2), 5)
    outputs = made.submit(new(11), 6)
    assert told(outputs)[:4] == ["Started r11", "Dispatch r11", "BorrowReturned r2", "RefuseBorrow r2"]
    assert (of(outputs, BorrowReturned).reason, of(outputs, BorrowReturned).after_arrival) == ("own_work", True)
    assert made.borrow_body(rid(2), 7) == []  # it came too late and changes nothing


def test_own_work_waits_for_borrowed_jobs_inside_the_engine_only_and_its_wait_is_written_down():
    made = borrowing(1, 2)
    outputs = made.submit(new(11), SECOND)
    assert told(outputs) == ["Held r11", "NotAccepting"]
    assert told(made.engine_finished(rid(1), OK, 2 * SECOND)) == ["BorrowFinished r1", "Started r11", "Dispatch r11"]
    outputs = made.engine_finished(rid(2), OK, 3 * SECOND)
    assert told(outputs) == ["BorrowFinished r2", "NativeWaited r11", "Accepting"]
    assert (of(outputs, NativeWaited).borrowed_in_engine, of(outputs, NativeWaited).wait_us) == (2, 2 * SECOND)


def test_a_helper_says_once_that_it_takes_nothing_and_once_that_it_does_again():
    made = helper()
    outputs = [output for number in range(11, 16) for output in made.submit(new(number), 0)]
    assert of(outputs, NotAccepting).reason == "own_work"
    outputs = [output for number in range(11, 16) for output in made.engine_finished(rid(number), OK, number)]
    assert len(facts(outputs, Accepting)) == 1
    assert made.idle


def test_a_model_that_helps_nobody_says_nothing_about_borrowed_work():
    made = runtime()
    outputs = [output for number in range(11, 16) for output in made.submit(new(number), 0)]
    assert facts(outputs, NotAccepting) == []
    assert of(made.set_links([], [BACK_LINK], 5), NotAccepting).reason == "own_work"


def test_an_owner_that_leaves_takes_its_unstarted_request_with_it():
    made = borrowing(1, whole=False)
    assert of(made.borrower_gone(rid(1), 5), BorrowReturned).reason == "owner_gone"
    assert made.borrower_gone(rid(1), 5) == []
    assert made.idle


def test_an_owner_that_leaves_cancels_its_running_request_and_no_other():
    made = borrowing(1, 2)
    assert made.borrower_gone(rid(1), 5) == [CancelEngine(request=rid(1))]
    assert made.borrower_gone(rid(1), 5) == []
    outputs = made.engine_finished(rid(1), EngineResult(status=0, complete=False), 6)
    finished = of(outputs, BorrowFinished)
    assert (finished.ok, finished.owner_gone, made.counts().borrowed) == (False, True, 1)


def test_an_answer_that_nobody_waits_for_teaches_nothing():
    made = borrowing(1)
    made.borrower_gone(rid(1), 5)
    assert not of(made.engine_finished(rid(1), OK, 6), BorrowFinished).ok


def test_a_second_copy_of_a_lend_starts_nothing_and_closes_nothing():
    made = borrowing(1)
    copy = RefuseBorrow(request=rid(1), status=409, code="offload_duplicate")
    assert made.borrow(offer(1), 5) == [copy]
    made.engine_finished(rid(1), OK, 6)
    assert made.borrow(offer(1), 7) == [copy]
    assert made.borrow(offer(1, lease_live=False), TTL + 9) == [copy]


def test_a_copy_starts_nothing_however_often_its_lease_was_renewed():
    made = borrowing(1)
    made.engine_finished(rid(1), OK, 6)
    copy = RefuseBorrow(request=rid(1), status=409, code="offload_duplicate")
    assert made.borrow(offer(1), 100 * TTL) == [copy]


@pytest.mark.parametrize("ends", ["its owner left", "it was handed back"])
def test_a_copy_of_a_lend_that_was_taken_back_or_handed_back_before_it_started_is_not_accepted(ends: str):
    made = borrowing(1)
    made.borrow(offer(2), 5)
    if ends == "its owner left":
        made.borrower_gone(rid(2), 6)
    else:
        made.submit(new(9), 6)
        made.client_gone(rid(9), 6)
    assert len(made.borrow(offer(3), 7)) == 2
    assert made.borrow(offer(2), 8) == [RefuseBorrow(request=rid(2), status=409, code="offload_duplicate")]


def test_what_started_under_a_lease_is_forgotten_when_its_link_has_another_one():
    made = borrowing(1)
    made.engine_finished(rid(1), OK, 6)
    made.borrow(offer(2, lease=LeaseId("l2")), 7)
    made.borrow_body(rid(2), 8)
    assert told(made.borrow(offer(1, lease_live=False), 9)) == ["BorrowReturned r1", "RefuseBorrow r1"]


def test_what_came_over_links_that_were_removed_is_forgotten():
    made = helper()
    for number in range(20):
        link, at_us = LinkId(f"{number:04x}"), number * 3600 * SECOND
        made.set_links((), (link,), at_us)
        made.borrow(offer(number, link=link, lease=LeaseId(f"l{number}")), at_us)
        made.borrow_body(rid(number), at_us)
        made.engine_finished(rid(number), OK, at_us + 1)
    assert len(made.desk.accepted) == 2, "the link that is there, and the one that it took the place of just now"


def test_a_copy_starts_nothing_when_its_link_was_removed_and_added_again_while_its_lease_may_live():
    made = borrowing(1)
    made.engine_finished(rid(1), OK, 6)
    copy = RefuseBorrow(request=rid(1), status=409, code="offload_duplicate")
    made.set_links((), (), 7)
    made.set_links((), (), 7 + FORGET_US - 1)
    made.set_links((), (BACK_LINK,), 7 + FORGET_US)
    assert made.borrow(offer(1), 8 + FORGET_US) == [copy]
    made.set_links((), (), 9 + FORGET_US)
    made.set_links((), (), 8 + 2 * FORGET_US)
    assert made.borrow(offer(1), 9 + 2 * FORGET_US) == [copy], "the time counts from when it was removed last"


def test_a_node_does_not_borrow_what_it_owns():
    made = helper()
    made.submit(new(1), 0)
    assert of(made.borrow(offer(1), 1), RefuseBorrow).code == "offload_duplicate"


def test_an_engine_that_dies_ends_running_borrowed_work_and_hands_back_the_rest():
    made = borrowing(1)
    made.borrow(offer(2), 5)
    outputs = made.set_engine_up(False, 6)
    assert told(outputs) == [
        "CancelEngine r1",
        "BorrowFinished r1",
        "BorrowReturned r2",
        "RefuseBorrow r2",
        "NotAccepting",
    ]
    assert (of(outputs, BorrowFinished).status, of(outputs, BorrowFinished).ok) == (502, False)
    assert of(outputs, NotAccepting).reason == "engine_down"
    assert of(made.borrow(offer(3), 7), BorrowReturned).reason == "engine_down"
    assert told(made.set_engine_up(True, 8)) == ["Accepting"]


def test_a_draining_helper_hands_back_what_has_not_started_and_ends_what_has():
    made = borrowing(1)
    made.borrow(offer(2), 5)
    assert told(made.drain(6)) == ["BorrowReturned r2", "RefuseBorrow r2", "NotAccepting"]
    assert not made.idle
    assert told(made.engine_finished(rid(1), OK, 7)) == ["BorrowFinished r1"]
    assert made.idle


def test_results_that_come_twice_or_late_free_no_slot_twice():
    made = borrowing(1, 2)
    made.engine_finished(rid(1), OK, 5)
    assert made.engine_finished(rid(1), OK, 5) == []
    assert made.counts().borrowed == 1
    assert told(made.borrow(offer(3), 6)) == ["BorrowAccepted r3", "AcceptBorrow r3"]
    assert told(made.borrow(offer(4), 6)) == ["BorrowBusy r4", "RefuseBorrow r4"]


def test_positions_count_what_is_before_the_request():
    made = borrowing(1)
    assert of(made.borrow(offer(2), 5), BorrowAccepted).position == 1


def test_a_helpers_snapshot_tells_running_and_waiting_apart():
    made = borrowing(1)
    made.borrow(offer(2), 5)
    _, desk = made.snapshot(9)
    assert [(told.request, told.state, told.age_us) for told in desk.requests] == [
        (rid(1), "running", 8),
        (rid(2), "waiting", 4),
    ]
    assert facts(made.borrow_body(rid(2), 10), BorrowStarted)


def test_only_borrowed_jobs_that_are_inside_count_as_waited_behind():
    made = borrowing(1)
    made.engine_finished(rid(1), OK, 5)
    borrowing(2, made=made)
    made.submit(new(11), 7)
    outputs = made.engine_finished(rid(2), OK, 9)
    assert of(outputs, NativeWaited).borrowed_in_engine == 1


def test_an_own_request_that_comes_home_goes_before_a_borrowed_one_that_waits():
    made = runtime(owner=(LINK,), helper=(BACK_LINK,))
    for number in (11, 12, 13):
        made.submit(new(number), 0)
    made.take_lease(lease(), order(1), 0, 0)  # 13 is lent
    made.engine_finished(rid(11), OK, 5)
    made.borrow(offer(1), 6)
    made.borrow_body(rid(1), 6)
    made.borrow(offer(2), 7)  # 12 runs, 1 is inside, 2 waits for room
    made.borrow_body(rid(2), 7)
    made.lend_returned(rid(13), LeaseId("l1"), "own_work", 8)
    assert told(made.engine_finished(rid(12), OK, 9))[1:3] == ["Started r13", "Dispatch r13"]


def test_a_stall_check_is_answered_for_each_request_of_that_link_that_waits_or_runs():
    made = borrowing(1)
    made.borrow(offer(2), 5)
    made.borrow(offer(3, link=OTHER_LINK), 5)
    outputs = made.take_word(word(LeaseChecked, BACK_LINK, quiet_us=180 * SECOND), order(1), 9)
    assert [(fact.request, fact.running_us, fact.link) for fact in facts(outputs, StillRunning)] == [
        (rid(1), 8, BACK_LINK),
        (rid(2), 4, BACK_LINK),
    ]
    assert made.take_word(word(LeaseChecked, LINK, quiet_us=1), order(2), 9) == []

"""What borrowed work drove out of a runtime: when it is loaded back, and when nothing is owed any more."""

from typing import Any

import pytest

from domain.events import (
    BorrowReturned,
    Loaded,
    RestoreCancelled,
    RestoreScheduled,
)
from domain.ids import LinkId, ModelId, NodeId
from domain.inputs import RuntimeConfig
from domain.runtime import ModelRuntime
from tests.unit.machine_rig import OK, SECOND, facts, new, of, offer, rid, told
from tests.unit.room_rig import A, B, C, Rig, loads


def displacing(delay_us: int = SECOND, *, keep: bool = False) -> Rig:
    """Return a room in which borrowed work of `b` drove out `a` (a load of 3 s) and has ended at 10 s."""
    rig = Rig(restore_delay_us=delay_us, keep_while_likely=keep)
    rig.borrow(B, 1, 0, restore=True)
    rig.room.loaded(B, 3 * SECOND, 3 * SECOND)
    outputs = rig.done(B, 1, 10 * SECOND)
    assert of(outputs, RestoreScheduled) == RestoreScheduled(model=A, delay_us=delay_us)
    return rig


def test_what_borrowed_work_drove_out_is_loaded_back_after_the_quiet_time():
    rig = displacing()
    assert rig.room.next_timer_us() == 11 * SECOND
    assert rig.room.tick(11 * SECOND - 1) == []
    outputs = rig.room.tick(11 * SECOND)
    assert loads(outputs) == [(A, "restore")]
    assert of(rig.borrow(B, 2, 12 * SECOND), BorrowReturned).reason == "restoring"
    outputs = rig.room.loaded(A, 2 * SECOND, 13 * SECOND)
    assert told(outputs)[:2] == ["Loaded", "Restored"]
    assert (rig.room.resident, rig.room.displaced, rig.room.next_timer_us()) == (A, None, None)


def test_without_a_link_that_wants_it_back_nothing_is_restored():
    rig = Rig()
    rig.borrow(B, 1, 0)
    rig.room.loaded(B, 3 * SECOND, 3 * SECOND)
    assert facts(rig.done(B, 1, 10 * SECOND), RestoreScheduled) == []
    assert rig.room.next_timer_us() is None


def test_a_run_of_borrowed_work_restores_what_was_loaded_before_it_not_a_model_in_between():
    rig = displacing()
    assert loads(rig.borrow(C, 2, 10 * SECOND)) == [(C, "borrowed")]
    rig.room.loaded(C, SECOND, 11 * SECOND)
    assert rig.room.displaced == A
    rig.done(C, 2, 12 * SECOND)
    assert restored_after_us(rig, 12 * SECOND) == SECOND


def test_an_own_request_cancels_the_restore():
    rig = displacing()
    outputs = rig.submit(B, 2, 10 * SECOND + 5)
    assert "RestoreCancelled" in told(outputs)
    assert loads(rig.done(B, 2, 20 * SECOND)) == []
    assert rig.room.next_timer_us() is None


def test_an_own_request_cancels_a_restore_that_more_borrowed_work_has_put_off():
    rig = displacing()
    rig.borrow(B, 2, 10 * SECOND + 5)
    outputs = rig.submit(B, 3, 10 * SECOND + 6)
    assert of(outputs, RestoreCancelled) == RestoreCancelled(model=A, reason="own_work")
    rig.done(B, 2, 11 * SECOND)
    rig.done(B, 3, 12 * SECOND)
    assert rig.room.next_timer_us() is None


@pytest.mark.parametrize("restore", [True, False], ids=["to be restored", "not to be restored"])
def test_own_work_for_the_loaded_model_makes_it_the_nodes_own_choice_and_nothing_is_owed_to_a_later_run(restore):
    rig = Rig(restore_delay_us=SECOND)
    rig.borrow(B, 1, 0, restore=restore)
    rig.room.loaded(B, 3 * SECOND, 3 * SECOND)
    rig.done(B, 1, 10 * SECOND)
    outputs = rig.submit(B, 2, 10 * SECOND + 5)
    assert of(outputs, RestoreCancelled) == RestoreCancelled(model=A, reason="own_work")
    assert rig.room.displaced is None
    rig.done(B, 2, 20 * SECOND)
    rig.borrow(B, 3, 3000 * SECOND, restore=True)
    assert facts(rig.done(B, 3, 3001 * SECOND), RestoreScheduled) == []


def test_a_link_that_wants_back_what_it_drove_out_says_nothing_about_what_another_drives_out_later():
    rig = Rig()
    rig.borrow(A, 1, 0, restore=True)  # it is loaded already
    rig.done(A, 1, SECOND)
    rig.borrow(B, 2, 2 * SECOND)
    rig.room.loaded(B, 3 * SECOND, 5 * SECOND)
    assert facts(rig.done(B, 2, 10 * SECOND), RestoreScheduled) == []


def test_own_work_during_a_run_of_borrowed_work_leaves_what_that_drove_out_to_be_restored():
    rig = Rig(restore_delay_us=SECOND)
    rig.borrow(B, 1, 0, restore=True)
    rig.room.loaded(B, 3 * SECOND, 3 * SECOND)
    assert facts(rig.submit(B, 2, 4 * SECOND), RestoreCancelled) == []
    rig.done(B, 1, 5 * SECOND)
    rig.done(B, 2, 5 * SECOND + 5)
    assert rig.room.displaced == A
    assert restored_after_us(rig, 5 * SECOND) == SECOND


def test_a_restore_without_delay_looks_again_after_a_tenth_of_a_second_at_a_node_that_is_busy():
    rig = Rig(restore_delay_us=0)
    other = ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=ModelId("image"), lane="image"))
    rig.room.watch([*rig.models.values(), other])
    other.submit(new(7), 0)
    rig.borrow(B, 1, 0, restore=True)
    rig.room.loaded(B, SECOND, SECOND)
    rig.done(B, 1, 2 * SECOND)
    assert rig.room.next_timer_us() == 2 * SECOND
    assert loads(rig.room.tick(2 * SECOND)) == []
    assert rig.room.next_timer_us() == 2 * SECOND + 100_000
    other.engine_finished(rid(7), OK, 2 * SECOND + 50_000)
    assert loads(rig.room.tick(2 * SECOND + 100_000)) == [(A, "restore")]


def test_borrowed_work_that_brings_the_displaced_model_back_itself_settles_the_restore():
    rig = displacing()
    rig.borrow(A, 2, 10 * SECOND)
    outputs = rig.room.loaded(A, SECOND, 11 * SECOND)
    assert (of(outputs, RestoreCancelled).reason, rig.room.displaced) == ("loaded", None)


def test_an_own_load_settles_what_is_loaded_and_nothing_is_owed_back():
    rig = displacing()
    assert loads(rig.submit(C, 2, 10 * SECOND + 5)) == [(C, "own")]
    assert rig.room.displaced is None


def test_more_borrowed_work_puts_the_restore_off_and_does_not_cancel_it():
    rig = displacing()
    outputs = rig.borrow(B, 2, 10 * SECOND + 5)
    assert "RestoreCancelled" not in told(outputs)
    rig.done(B, 2, 10 * SECOND + 6)
    assert loads(rig.room.tick(11 * SECOND)) == []
    assert restored_after_us(rig, 10 * SECOND + 6) >= SECOND


def test_a_restore_that_comes_due_while_another_model_is_loaded_waits_for_that_load_without_a_timer():
    rig = displacing()
    assert loads(rig.borrow(C, 2, 10 * SECOND)) == [(C, "borrowed")]
    assert rig.room.next_timer_us() is None
    assert rig.room.tick(11 * SECOND) == []
    rig.room.loaded(C, 5 * SECOND, 15 * SECOND)
    assert rig.room.next_timer_us() == 16 * SECOND


@pytest.mark.parametrize("kind", ["own", "borrowed"])
def test_a_restore_waits_for_quiet_on_every_lane_of_the_node(kind):
    rig = displacing()
    other = ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=ModelId("image"), lane="image"))
    other.set_links((), (LinkId("dddd"),), 0)
    rig.room.watch([*rig.models.values(), other])
    if kind == "own":
        other.submit(new(7), 10 * SECOND)
    else:
        other.borrow(offer(7), 10 * SECOND)
        other.borrow_body(rid(7), 10 * SECOND)
    assert loads(rig.room.tick(11 * SECOND)) == []
    other.engine_finished(rid(7), OK, 11 * SECOND)
    assert rig.room.next_timer_us() == 12 * SECOND  # looked at again a whole delay later
    assert loads(rig.room.tick(12 * SECOND)) == [(A, "restore")]


def test_a_restore_that_fails_is_tried_again_and_given_up_after_the_third_time():
    rig = displacing()
    rig.room.tick(11 * SECOND)
    assert facts(rig.room.load_failed(A, "gone", 11 * SECOND), RestoreScheduled) == []  # it is still the one scheduled
    assert loads(rig.room.tick(12 * SECOND)) == [(A, "restore")]
    rig.room.load_failed(A, "gone", 12 * SECOND)
    assert loads(rig.room.tick(14 * SECOND)) == [(A, "restore")]
    outputs = rig.room.load_failed(A, "gone", 14 * SECOND)
    assert "RestoreCancelled" in told(outputs)
    assert rig.room.displaced is None


def visited(*, keep: bool) -> tuple[Rig, int]:
    """Return a room with an own request a minute, then visits of borrowed work every 23 s, and when the last one left."""
    rig = Rig(restore_delay_us=20 * SECOND, keep_while_likely=keep)
    for minute in range(6):
        rig.submit(A, minute, minute * 60 * SECOND)
        rig.done(A, minute, minute * 60 * SECOND + 1)
    rig.borrow(B, 100, 310 * SECOND, restore=True)
    rig.room.loaded(B, SECOND, 311 * SECOND)
    rig.done(B, 100, 312 * SECOND)
    for number in range(1, 4):
        now_us = (310 + number * 23) * SECOND
        rig.borrow(B, 100 + number, now_us, restore=True)
        rig.done(B, 100 + number, now_us + 1)
    return rig, 379 * SECOND + 1


def restored_after_us(rig: Rig, left_us: int) -> int:
    """Tick at every timer; return how long after `left_us` the restore begins."""
    while (due_us := rig.room.next_timer_us()) is not None and due_us < left_us + 3600 * SECOND:
        if loads(rig.room.tick(due_us)) == [(A, "restore")]:
            return due_us - left_us
    raise AssertionError("it is never restored")


def test_the_borrowed_model_stays_while_its_next_visit_is_likelier_by_its_cost_than_the_next_own_request():
    # 3 visits in 67 s and the quiet time q, against 5.5 own requests in 305 s + 79 s + q: even at q = 313 s
    assert 313 * SECOND <= restored_after_us(*visited(keep=True)) <= 333 * SECOND


def test_without_keep_while_likely_the_plain_delay_counts():
    assert 20 * SECOND <= restored_after_us(*visited(keep=False)) <= 40 * SECOND


def test_jobs_longer_than_the_delay_that_follow_each_other_at_once_are_one_visit():
    rig = Rig(restore_delay_us=SECOND, keep_while_likely=True)
    rig.borrow(B, 1, 0, restore=True)
    rig.room.loaded(B, SECOND, SECOND)
    for number in range(1, 6):
        rig.done(B, number, (10 * number - 1) * SECOND)
        rig.borrow(B, number + 1, (10 * number - 1) * SECOND + 1, restore=True)
    rig.done(B, 6, 59 * SECOND)
    assert restored_after_us(rig, 59 * SECOND) <= 2 * SECOND


def test_a_first_visit_is_followed_by_the_plain_delay():
    assert loads(displacing(keep=True).room.tick(11 * SECOND)) == [(A, "restore")]


def rarely_asked(pause_us: int, visits: int = 9) -> tuple[Rig, int]:
    """Return a room with three own requests, then visits of borrowed work `pause_us` apart; and when the last one left."""
    rig = Rig()
    for model in (A, B):
        rig.room.remember_load(model, 20 * SECOND)
    for minute in range(3):
        rig.submit(A, minute, minute * 60 * SECOND)
        rig.done(A, minute, minute * 60 * SECOND + SECOND)
    now_us = 180 * SECOND
    for number in range(10, 10 + visits):
        if loads(rig.borrow(B, number, now_us, restore=True)):
            rig.room.loaded(B, 20 * SECOND, now_us)
        rig.done(B, number, now_us + SECOND)
        now_us += pause_us + SECOND
    return rig, now_us - pause_us


def test_where_own_work_is_rarer_than_borrowed_the_model_is_kept_for_sixteen_of_the_longest_pauses_and_no_longer():
    rig, left_us = rarely_asked(120 * SECOND)
    assert loads(rig.room.tick(left_us + 16 * 120 * SECOND - 1)) == []
    assert restored_after_us(rig, left_us) <= 16 * 120 * SECOND + rig.room.config.restore_delay_us


def test_however_long_the_pauses_were_a_model_is_kept_for_a_day_at_most():
    rig, left_us = rarely_asked(20 * 3600 * SECOND)
    assert loads(rig.room.tick(left_us + 86_400 * SECOND - 1)) == []
    assert loads(rig.room.tick(left_us + 86_402 * SECOND)) == [(A, "restore")]


# -- a load of the node's own that borrowed work breaks off


def starting(**config: Any) -> Rig:
    """Return a room whose node loads `a` by itself."""
    rig = Rig(resident=None, restore_delay_us=SECOND, **config)
    rig.room.begin(None, 0, starting=A)
    return rig


def test_what_the_node_was_loading_at_its_start_is_owed_when_borrowed_work_took_its_place():
    rig = starting()
    assert loads(rig.borrow(B, 1, 1, restore=True)) == [(B, "borrowed")]
    outputs = rig.room.loaded(B, SECOND, SECOND)
    assert of(outputs, Loaded).displaced == A
    assert of(rig.done(B, 1, 2 * SECOND), RestoreScheduled).model == A
    assert restored_after_us(rig, 2 * SECOND) == SECOND


def test_without_a_link_that_wants_it_back_the_broken_off_load_is_not_owed():
    rig = starting()
    rig.borrow(B, 1, 1)
    rig.room.loaded(B, SECOND, SECOND)
    assert facts(rig.done(B, 1, 2 * SECOND), RestoreScheduled) == []


def test_if_the_load_in_its_place_fails_the_node_loads_its_own_model():
    rig = starting()
    rig.borrow(B, 1, 1)
    assert loads(rig.room.load_failed(B, "exit 1", SECOND)) == [(A, "restore")]


@pytest.mark.parametrize("first", ["up", "replaced"])
def test_a_first_model_that_has_come_up_or_that_own_work_replaced_is_owed_nothing_later(first):
    rig = starting()
    if first == "up":
        rig.models[A].set_engine_up(True, SECOND)
    else:
        rig.submit(B, 1, 1)
        rig.room.loaded(B, SECOND, SECOND)
        rig.done(B, 1, 2 * SECOND)
    there = rig.room.resident
    assert there is not None
    rig.models[there].set_engine_up(False, 5 * SECOND)
    rig.borrow(C, 2, 10 * SECOND, restore=True)
    rig.room.loaded(C, SECOND, 11 * SECOND)
    assert facts(rig.done(C, 2, 12 * SECOND), RestoreScheduled) == []


def test_borrowed_work_for_the_very_model_that_was_being_loaded_drives_nothing_out():
    rig = starting()
    rig.borrow(A, 1, 1, restore=True)
    outputs = rig.room.loaded(A, SECOND, SECOND)
    assert of(outputs, Loaded).displaced is None
    assert facts(outputs, RestoreCancelled) == []
    assert facts(rig.done(A, 1, 2 * SECOND), RestoreScheduled) == []
    assert rig.room.displaced is None

"""An owner's queue: what waits, what is in the engine, and how each request ends."""

import pytest

from domain.actions import CancelEngine, Dispatch, Refuse
from domain.events import Cancelled, Expired, Failed, Finished, Held, QueueSnapshot, Rejected, Started
from domain.inputs import EngineResult, LendResult
from tests.unit.machine_rig import (
    LINK,
    OK,
    SECOND,
    TTL,
    changed,
    facts,
    lease,
    new,
    of,
    order,
    rid,
    runtime,
    told,
)


def full(**changes):
    """Return a runtime with r1 in service, r2 waiting inside the engine, r3 and r4 held."""
    made = runtime(**changes)
    for number in range(1, 5):
        made.submit(new(number), number)
    return made


def test_the_seeds_example_ten_requests_with_depth_two():
    made = runtime()
    outputs = [output for number in range(10) for output in made.submit(new(number), 0)]
    # 2 go straight to A's backend
    assert told(outputs)[:4] == ["Started r0", "Dispatch r0", "Started r1", "Dispatch r1"]
    # the other 8 are held in the router
    assert told(outputs)[4:] == [f"Held r{number}" for number in range(2, 10)]
    assert [held.waiting for held in facts(outputs, Held)] == [1, 2, 3, 4, 5, 6, 7, 8]
    # a helper that pays off gets 2 of them in flight
    outputs = made.take_lease(lease(slots=2), order(1), 0, 1)
    assert told(outputs) == ["LeaseUpdated", "Lent r2", "Lend r2", "Lent r3", "Lend r3"]
    # A is always topped back up to 2 from the held requests
    outputs = made.engine_finished(rid(0), OK, 5 * SECOND)
    assert told(outputs) == ["Finished r0", "Started r4", "Dispatch r4"]
    # every result that comes back from the helper triggers the next decision; the lease still has a slot: one more is lent
    outputs = made.lend_answered(rid(2), lease().lease, LendResult(status=200, service_us=SECOND), 6 * SECOND)
    assert told(outputs) == ["LendAnswered r2", "Finished r2", "Lent r5", "Lend r5"]
    # the two in A's pipe never move, and the rest stay held
    assert (made.counts().held, made.counts().in_engine, made.counts().lent) == (4, 2, 2)


def test_a_model_in_no_link_states_one_terminal_fact_a_request_and_nothing_else():
    made = runtime(owner=())
    assert told(made.submit(new(1), 0)) == ["Dispatch r1"]
    assert told(made.submit(new(2), 0)) == []  # one slot stated: the second waits, in silence
    assert told(made.engine_finished(rid(1), OK, 5)) == ["Finished r1", "Dispatch r2"]
    assert told(made.client_gone(rid(2), 6)) == ["CancelEngine r2"]
    assert told(made.engine_finished(rid(2), EngineResult(status=0, complete=False), 7)) == ["Cancelled r2"]


def test_a_model_in_no_link_gives_its_engine_its_stated_slots_and_the_rest_waits_in_order():
    made = runtime(owner=(), slots=4)
    outputs = [output for number in range(10) for output in made.submit(new(number), 0)]
    assert told(outputs) == [f"Dispatch r{number}" for number in range(4)]
    for number in range(6):
        assert told(made.engine_finished(rid(number), OK, 9))[1] == f"Dispatch r{number + 4}"


def test_enrolling_states_what_is_open_already():
    made = runtime(owner=())
    for number in (1, 2, 3):
        made.submit(new(number), 0)
    assert told(made.set_links([LINK], [], 5)) == ["Started r1", "Held r2", "Held r3", "Started r2", "Dispatch r2"]


def test_service_begins_when_the_engines_slot_is_free_not_when_the_request_was_given_to_it():
    made = full()
    first = of(made.engine_finished(rid(1), OK, 10 * SECOND), Finished)
    assert (first.wait_us, first.service_us) == (0, 10 * SECOND - 1)
    second = of(made.engine_finished(rid(2), OK, 14 * SECOND), Finished)
    assert (second.wait_us, second.service_us) == (10 * SECOND - 2, 4 * SECOND)


def test_an_engine_that_answers_out_of_order_is_given_the_service_time_of_the_slot():
    made = full()
    second = of(made.engine_finished(rid(2), OK, 10 * SECOND), Finished)
    assert second.service_us == 10 * SECOND - 2
    assert of(made.engine_finished(rid(1), OK, 13 * SECOND), Finished).service_us == 3 * SECOND


def test_a_full_queue_refuses_at_once_with_the_measured_drain_rate():
    made = full(held_max=2)
    outputs = made.submit(new(5), SECOND)
    assert (of(outputs, Rejected).code, of(outputs, Refuse).status, of(outputs, Refuse).code) == (
        "queue_full",
        503,
        "queue_full",
    )
    for number in (1, 2):
        made.engine_finished(rid(number), OK, number * 10 * SECOND)
    for number in (6, 7):
        made.submit(new(number), 20 * SECOND)
    assert of(made.submit(new(8), 20 * SECOND), Refuse).retry_after_s == 10
    assert of(made.submit(new(9), 20 * SECOND), Refuse).retry_after_s == 20  # it comes after the one refused before it


def test_a_request_that_waited_its_bound_expires_and_never_starts():
    made = full(wait_us_max=60 * SECOND)
    assert made.next_timer_us() == 4 + TTL // 3
    assert told(made.tick(60 * SECOND + 3)) == ["Expired r3", "Refuse r3"]
    outputs = made.engine_finished(rid(1), OK, 60 * SECOND + 4)
    assert told(outputs) == ["Finished r1", "Expired r4", "Refuse r4"]
    assert (of(outputs, Expired).status, of(outputs, Refuse).code) == (504, "queue_timeout")


def test_a_client_that_leaves_while_held_is_gone_at_once_and_never_dispatched():
    made = full()
    outputs = made.client_gone(rid(3), 9)
    assert told(outputs) == ["Cancelled r3"]
    assert of(outputs, Cancelled).code == "held"
    assert told(made.engine_finished(rid(1), OK, 10)) == ["Finished r1", "Started r4", "Dispatch r4"]
    assert made.client_gone(rid(3), 11) == []


def test_cancelling_a_request_that_waits_inside_the_engine_leaves_the_running_one_alone():
    made = full()
    assert made.client_gone(rid(2), 9) == [CancelEngine(request=rid(2))]
    assert made.client_gone(rid(2), 9) == []
    outputs = made.engine_finished(rid(2), EngineResult(status=0, complete=False), 10)
    assert told(outputs) == ["Cancelled r2", "Started r3", "Dispatch r3"]
    assert (of(outputs, Cancelled).code, of(outputs, Cancelled).service_us) == ("engine", 0)
    assert of(made.engine_finished(rid(1), OK, 11), Finished).service_us == 10


def test_a_cancelled_request_that_was_answered_in_the_same_moment_still_ends_once():
    made = full()
    made.client_gone(rid(1), 9)
    assert told(made.engine_finished(rid(1), OK, 9))[0] == "Cancelled r1"
    assert made.engine_finished(rid(1), OK, 9) == []


def test_a_dead_engine_takes_what_was_inside_it_and_nothing_else():
    made = full()
    outputs = made.set_engine_up(False, SECOND)
    assert told(outputs) == ["CancelEngine r1", "Failed r1", "Refuse r1", "CancelEngine r2", "Failed r2", "Refuse r2"]
    assert {(fact.status, fact.code) for fact in facts(outputs, Failed)} == {(502, "engine_failed")}
    assert all(refuse.may_have_run for refuse in facts(outputs, Refuse))
    assert made.engine_finished(rid(1), EngineResult(status=0, complete=False), SECOND) == []
    assert told(made.submit(new(5), SECOND)) == ["Held r5"]
    assert told(made.set_engine_up(True, 2 * SECOND)) == ["Started r3", "Dispatch r3", "Started r4", "Dispatch r4"]


def test_a_request_that_provably_did_not_start_is_held_again_and_tried_a_second_later():
    made = full()
    outputs = made.engine_finished(rid(1), EngineResult(status=0, complete=False, not_started=True), SECOND)
    assert told(outputs) == ["Held r1"]
    assert made.next_timer_us() == 2 * SECOND
    assert told(made.tick(2 * SECOND)) == ["Started r1", "Dispatch r1"]


def test_an_answer_with_an_error_status_is_passed_on_and_ends_the_request():
    made = full()
    bad = made.engine_finished(rid(1), EngineResult(status=400), 9)
    assert (told(bad)[0], of(bad, Finished).status) == ("Finished r1", 400)
    worse = made.engine_finished(rid(2), EngineResult(status=500), 9)
    assert (told(worse)[0], of(worse, Failed).status, facts(worse, Refuse)) == ("Failed r2", 500, [])


def test_an_answer_that_broke_off_fails_the_request_and_tells_its_client():
    outputs = full().engine_finished(rid(1), EngineResult(status=200, complete=False), 9)
    assert told(outputs)[:2] == ["Failed r1", "Refuse r1"]
    assert of(outputs, Refuse).may_have_run


def test_a_queue_with_held_work_states_a_fact_every_third_of_the_leases_lifetime():
    made = full()
    due_us = made.next_timer_us()
    assert due_us == 4 + TTL // 3
    assert made.tick(due_us - 1) == []
    fact = of(made.tick(due_us), QueueSnapshot)
    assert (fact.held, fact.in_engine, fact.lent, fact.lease) == (2, 2, 0, None)
    assert made.next_timer_us() == due_us + TTL // 3
    made.take_lease(changed(slots=0, ttl_us=9 * SECOND), order(1), due_us, due_us)
    assert made.next_timer_us() == due_us + 3 * SECOND


def test_an_idle_queue_waits_for_no_timer():
    made = runtime()
    made.submit(new(1), 0)
    made.engine_finished(rid(1), OK, 5)
    assert made.next_timer_us() is None
    assert made.idle


def test_a_draining_node_refuses_what_is_new_and_ends_what_it_has():
    made = full()
    assert made.drain(5) == []
    outputs = made.submit(new(5), 6)
    assert (of(outputs, Rejected).code, of(outputs, Refuse).code) == ("draining", "model_unavailable")
    for number in (1, 2, 3, 4):
        made.engine_finished(rid(number), OK, 10 + number)
    assert made.idle


@pytest.mark.parametrize(("depth", "straight"), [(1, 1), (2, 2), (3, 3)])
def test_the_engine_gets_exactly_the_depth(depth, straight):
    made = runtime(depth=depth)
    outputs = [output for number in range(5) for output in made.submit(new(number), 0)]
    assert len(facts(outputs, Dispatch)) == straight == len(facts(outputs, Started))
    assert [fact.in_engine for fact in facts(outputs, Started)] == list(range(1, depth + 1))


def test_a_greater_depth_tops_up_at_once_and_a_smaller_one_takes_nothing_back():
    made = full()
    assert told(made.set_depth(3, 9)) == ["Started r3", "Dispatch r3"]
    assert made.set_depth(1, 9) == []
    assert told(made.engine_finished(rid(1), OK, 10)) == ["Finished r1"]


def test_a_service_never_seems_to_begin_before_the_request_came():
    made = runtime(depth=3)
    for number in (1, 2, 3):
        made.submit(new(number), number * SECOND)
    third = of(made.engine_finished(rid(3), OK, 10 * SECOND), Finished)
    assert (third.wait_us, third.service_us) == (0, 7 * SECOND)

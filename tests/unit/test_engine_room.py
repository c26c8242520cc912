"""Several models in one runtime: whose turn it is, what is loaded for whom, and what goes back."""

from domain.actions import Refuse
from domain.engine_room import EngineRoom
from domain.events import (
    Accepting,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Failed,
    Loaded,
    NativeWaited,
    NotAccepting,
    RestoreCancelled,
)
from domain.ids import NodeId
from domain.inputs import RoomConfig, RuntimeConfig
from domain.runtime import ModelRuntime
from tests.unit.machine_rig import LINK, OK, SECOND, facts, new, of, offer, rid, told
from tests.unit.room_rig import LINK_OF, RIVAL_US, A, B, C, Rig, loads

# -- own work


def test_an_own_request_for_another_model_loads_it_at_once_when_the_engine_is_empty():
    rig = Rig()
    outputs = rig.submit(B, 1, 5)
    assert told(outputs)[:4] == ["Held r1", "Unloaded", "LoadStarted", "LoadModel"]
    assert loads(outputs) == [(B, "own")]
    assert (rig.room.resident, rig.room.loading) == (None, B)
    outputs = rig.room.loaded(B, 4 * SECOND, 5 + 4 * SECOND)
    assert told(outputs) == ["Loaded", "Started r1", "Dispatch r1", "Accepting", "Accepting", "Accepting"]
    assert of(outputs, Loaded) == Loaded(model=B, load_us=4 * SECOND, cause="own")


def test_a_model_in_no_link_is_stated_like_its_siblings_while_one_of_them_is_linked():
    rig = Rig()
    rig.models[B].set_links((), (), 1)
    assert "Started r1" in told(rig.submit(B, 1, 2) + rig.room.loaded(B, SECOND, SECOND))
    for model in (A, C):
        rig.models[model].set_links((), (), SECOND)
    assert told(rig.submit(B, 2, 2 * SECOND)) == []
    assert told(rig.models[C].set_links((), (LINK_OF[C],), 3 * SECOND))[:2] == ["Started r1", "Held r2"]


def test_a_load_waits_until_no_request_of_any_model_is_inside_the_engine():
    rig = Rig()
    rig.submit(A, 1, 0)
    rig.submit(A, 2, 0)
    assert loads(rig.submit(B, 3, 1)) == []
    assert loads(rig.done(A, 1, 2)) == []
    assert loads(rig.done(A, 2, 3)) == [(B, "own")]


def test_the_loaded_model_is_served_until_none_of_its_own_waits_so_that_two_models_do_not_swap_at_every_request():
    rig = Rig()
    rig.submit(A, 1, 0)
    for number in range(2, 12):
        rig.submit(A if number % 2 else B, number, number)
    swaps = [loads(rig.done(A, number, SECOND + number)) for number in (1, 3, 5, 7, 9, 11)]
    assert swaps == [[], [], [], [], [], [(B, "own")]]


def test_own_work_of_another_model_is_swapped_in_once_it_waited_its_share_and_the_engine_empties():
    rig = Rig()
    for number in range(1, 6):
        rig.submit(A, number, 0)
    rig.submit(B, 9, 0)
    assert "Dispatch r3" in told(rig.done(A, 1, RIVAL_US))
    assert told(rig.done(A, 2, RIVAL_US + 1)) == ["Finished r2"]  # nothing more of a goes in
    assert loads(rig.done(A, 3, RIVAL_US + 2)) == [(B, "own")]


def test_a_queue_that_is_old_when_its_rival_comes_in_waits_its_share_from_then_so_that_each_load_serves_something():
    rig = Rig()
    for number in range(1, 5):
        rig.submit(A, number, 0)
        rig.submit(B, 10 + number, 0)
    rig.done(A, 1, RIVAL_US + 1)
    assert loads(rig.done(A, 2, RIVAL_US + 2)) == [(B, "own")]
    outputs = rig.room.loaded(B, SECOND, RIVAL_US + SECOND)
    assert [text for text in told(outputs) if "Dispatch" in text] == ["Dispatch r11", "Dispatch r12"]
    assert "Dispatch r13" in told(rig.done(B, 11, 2 * RIVAL_US))


def test_the_share_grows_with_what_the_swap_there_and_back_takes():
    rig = Rig()
    rig.submit(B, 1, 0)
    rig.room.loaded(B, 10 * SECOND, 10 * SECOND)
    rig.submit(A, 2, 10 * SECOND)
    assert loads(rig.done(B, 1, 10 * SECOND)) == [(A, "own")]
    rig.room.loaded(A, 20 * SECOND, 30 * SECOND)
    for number in (3, 4, 5):
        rig.submit(A, number, 30 * SECOND)
    rig.submit(B, 9, 30 * SECOND)
    share_us = 4 * (10 + 20) * SECOND
    assert "Dispatch r4" in told(rig.done(A, 2, 30 * SECOND + share_us))
    assert told(rig.done(A, 3, 30 * SECOND + share_us + 1)) == ["Finished r3"]


def test_a_load_that_fails_is_tried_again_after_one_second_doubling_and_the_third_failure_refuses_those_that_wait():
    rig = Rig()
    rig.submit(B, 1, 0)
    assert told(rig.room.load_failed(B, "out of memory", 0)) == ["LoadFailed"]
    assert rig.room.next_timer_us() == SECOND
    assert loads(rig.room.tick(SECOND)) == [(B, "own")]
    rig.room.load_failed(B, "out of memory", SECOND)
    assert rig.room.next_timer_us() == 3 * SECOND
    assert loads(rig.room.tick(3 * SECOND)) == [(B, "own")]
    outputs = rig.room.load_failed(B, "out of memory", 3 * SECOND)
    assert told(outputs)[:3] == ["LoadFailed", "Failed r1", "Refuse r1"]
    assert (of(outputs, Failed).code, of(outputs, Failed).status) == ("load_failed", 503)
    assert (of(outputs, Refuse).status, of(outputs, Refuse).code) == (503, "model_unavailable")
    assert rig.models[B].idle


def test_a_model_that_cannot_be_loaded_does_not_stop_the_others():
    rig = Rig()
    rig.submit(B, 1, 0)
    rig.submit(C, 2, 1)
    assert loads(rig.room.load_failed(B, "gone", 2)) == [(C, "own")]


def test_an_echo_of_a_load_that_is_not_going_on_changes_nothing():
    rig = Rig()
    assert rig.room.loaded(B, SECOND, 1) == []
    assert rig.room.load_failed(B, "x", 1) == []
    assert rig.room.resident == A


def test_when_the_loaded_models_engine_dies_nothing_is_loaded_and_it_is_loaded_again_a_second_later():
    rig = Rig()
    for number in (1, 2, 3):
        rig.submit(A, number, 0)
    outputs = rig.models[A].set_engine_up(False, 10)
    assert told(outputs)[:5] == ["LoadFailed", "CancelEngine r1", "Failed r1", "Refuse r1", "CancelEngine r2"]
    assert loads(outputs) == []
    assert rig.room.resident is None
    assert loads(rig.room.tick(10 + SECOND)) == [(A, "own")]


# -- borrowed work


def test_borrowed_work_loads_its_model_only_while_no_own_work_of_any_model_is_here():
    rig = Rig()
    rig.submit(A, 1, 0)
    assert loads(rig.borrow(B, 2, 1)) == []
    outputs = rig.done(A, 1, 2)
    assert loads(outputs) == [(B, "borrowed")]
    outputs = rig.room.loaded(B, 3 * SECOND, 3 * SECOND)
    assert (of(outputs, Loaded).cause, of(outputs, Loaded).displaced) == ("borrowed", A)
    assert of(outputs, BorrowStarted).load_us == 3 * SECOND
    assert of(rig.done(B, 2, 4 * SECOND), BorrowFinished).load_us == 3 * SECOND


def test_only_the_first_that_claims_the_engine_after_a_load_says_what_the_load_took():
    rig = Rig()
    rig.borrow(B, 1, 0)
    rig.borrow(B, 2, 0)
    outputs = rig.room.loaded(B, 3 * SECOND, 3 * SECOND)
    assert [fact.load_us for fact in facts(outputs, BorrowStarted)] == [3 * SECOND, 0]


def test_a_borrowed_request_that_would_need_a_load_its_link_forbids_is_handed_back():
    rig = Rig()
    outputs = rig.borrow(B, 1, 0, may_load=False)
    assert (of(outputs, BorrowReturned).reason, of(outputs, BorrowReturned).after_arrival) == ("load_needed", False)
    assert told(rig.borrow(A, 2, 0, may_load=False))[-1] == "Dispatch r2"


def test_a_borrowed_request_may_wait_for_a_load_that_goes_on_already_whatever_its_link_says():
    rig = Rig()
    rig.borrow(B, 1, 0)
    assert told(rig.borrow(B, 2, 1, may_load=False)) == ["BorrowAccepted r2", "AcceptBorrow r2"]


def test_one_that_waits_for_its_body_goes_back_when_another_model_is_loaded_and_its_link_forbids_to_load_its_own_again():
    rig = Rig()
    rig.borrow(B, 1, 0)
    rig.models[B].borrow(offer(2, link=LINK_OF[B], may_load=False), 1)
    rig.room.loaded(B, SECOND, SECOND)
    rig.done(B, 1, 2 * SECOND)
    outputs = rig.borrow(C, 3, 3 * SECOND)
    assert loads(outputs) == [(C, "borrowed")]
    assert (of(outputs, BorrowReturned).request, of(outputs, BorrowReturned).reason) == (rid(2), "load_needed")


def test_own_work_that_comes_during_a_load_for_borrowed_work_takes_its_place_and_is_loaded_next():
    rig = Rig()
    rig.borrow(B, 1, 0)
    outputs = rig.submit(A, 2, 5)
    assert of(outputs, BorrowReturned).reason == "own_work"
    assert loads(outputs) == []  # a load is not broken off
    assert loads(rig.room.loaded(B, SECOND, SECOND)) == [(A, "own")]
    outputs = rig.room.loaded(A, SECOND, 2 * SECOND)
    assert (of(outputs, NativeWaited).borrowed_in_engine, of(outputs, NativeWaited).wait_us) == (0, 2 * SECOND - 5)


def test_own_work_for_the_model_that_is_loaded_for_borrowed_work_is_served_by_that_load():
    rig = Rig()
    rig.borrow(B, 1, 0)
    rig.submit(B, 2, 5)
    outputs = rig.room.loaded(B, SECOND, SECOND)
    assert "Dispatch r2" in told(outputs)
    assert facts(outputs, BorrowStarted) == []


def test_own_work_hands_back_what_is_borrowed_for_every_model_of_the_runtime_and_all_say_so():
    rig = Rig()
    rig.borrow(A, 1, 0)
    rig.borrow(B, 2, 0)
    outputs = rig.submit(C, 3, 5)
    assert told(outputs)[:3] == ["Held r3", "BorrowReturned r2", "RefuseBorrow r2"]  # r1 runs, and ends
    assert [(fact.model, fact.reason) for fact in facts(outputs, NotAccepting)] == [
        (A, "own_work"),
        (B, "own_work"),
        (C, "own_work"),
    ]
    assert of(rig.borrow(A, 4, 6), BorrowReturned).reason == "own_work"
    assert loads(rig.done(A, 1, 7)) == [(C, "own")]
    assert {fact.model for fact in facts(rig.room.loaded(C, SECOND, SECOND), Accepting)} == {A, B, C}


def test_borrowed_requests_of_all_models_count_together_against_the_depth():
    rig = Rig()
    rig.borrow(A, 1, 0)
    rig.borrow(B, 2, 0)
    assert told(rig.borrow(C, 3, 0)) == ["BorrowBusy r3", "RefuseBorrow r3"]


def test_an_engine_that_comes_up_by_itself_while_nothing_is_loaded_is_the_loaded_one_and_owed_back_no_more():
    rig = Rig()
    rig.borrow(B, 1, 0)
    rig.submit(C, 2, 1)
    rig.models[C].client_gone(rid(2), 2)
    rig.room.load_failed(B, "out of memory", SECOND)
    rig.room.load_failed(A, "out of memory", SECOND)  # the way back fails too
    outputs = rig.models[A].set_engine_up(True, SECOND + 1)
    assert of(outputs, RestoreCancelled).reason == "loaded"
    assert rig.room.resident == A
    assert loads(rig.room.tick(10 * SECOND)) == []
    assert told(rig.borrow(A, 3, 10 * SECOND))[-1] == "Dispatch r3"


def test_a_failed_load_hands_borrowed_work_back_and_brings_back_what_was_loaded():
    rig = Rig()
    rig.borrow(B, 1, 0)
    outputs = rig.room.load_failed(B, "out of memory", SECOND)
    assert of(outputs, BorrowReturned).reason == "load_failed"
    assert loads(outputs) == [(A, "restore")]
    assert {fact.reason for fact in facts(outputs, NotAccepting)} == {"restoring"}
    outputs = rig.room.loaded(A, SECOND, 2 * SECOND)
    assert told(outputs)[:2] == ["Loaded", "Restored"]
    assert rig.room.displaced is None


def test_the_rooms_state_tells_what_is_loaded_loading_and_owed_back():
    rig = Rig()
    rig.borrow(B, 1, 0)
    state = rig.room.state(5)
    assert (state.resident, state.loading, state.loading_us, state.displaced) == (None, B, 5, A)


def test_a_model_in_no_link_has_its_own_slots_beside_a_linked_one_whatever_the_depth():
    room = EngineRoom(RoomConfig(node=NodeId("n1"), runtime="gpu0"))
    linked = ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=A, runtime="gpu0"))
    alone = ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=B, runtime="gpu0", slots=4, lane="image"))
    for made, links in ((linked, (LINK,)), (alone, ())):
        room.join(made)
        made.set_links(links, (), 0)
    room.begin(B, 0)
    for number in range(8):
        assert "Held" in told(alone.submit(new(number), number))[0] or number < 4  # it is stated all the same
    assert alone.counts().in_engine == 4
    alone.set_links((LINK_OF[B],), (), 10)
    for number in range(3):
        alone.engine_finished(rid(number), OK, 20)
    assert alone.counts().in_engine == 2

"""Settings that change while requests are held."""

from domain.events import Held, Lent
from domain.ids import LeaseId
from tests.unit.machine_rig import OK, TTL, facts, lease, new, of, order, rid, runtime, told

L1 = LeaseId("l1")


def streams(count: int = 4, **changes):
    """Return a runtime with r1 and r2 in its engine and the rest held; all of them streams."""
    made = runtime(**changes)
    for number in range(1, count + 1):
        made.submit(new(number, streaming=True), 0)
    return made


def test_streams_that_are_held_when_the_setting_goes_off_are_stated_again_and_not_lent():
    made = streams()
    made.submit(new(5), 0)
    outputs = made.set_lending(TTL, False, 10)
    assert [(held.request, held.lendable, held.not_lendable) for held in facts(outputs, Held)] == [
        (rid(3), False, "streaming_off"),
        (rid(4), False, "streaming_off"),
    ]
    assert facts(made.set_lending(TTL, False, 11), Held) == []
    assert [fact.request for fact in facts(made.take_lease(lease(slots=3), order(1), 11, 11), Lent)] == [rid(5)]


def test_a_stream_that_comes_back_from_a_full_desk_after_the_setting_went_off_is_not_lent_again():
    made = streams(3)
    assert facts(made.take_lease(lease(slots=1), order(1), 0, 0), Lent)
    made.set_lending(TTL, False, 10)
    assert of(made.lend_busy(rid(3), L1, 20), Held).not_lendable == "streaming_off"
    outputs = made.take_lease(lease(slots=1, name="l2"), order(2), 21, 21)
    assert facts(outputs, Lent) == []


def test_streams_that_came_while_the_setting_was_off_are_lent_once_it_is_on():
    made = streams(offload_streams=False)
    made.take_lease(lease(slots=2), order(1), 0, 0)
    assert made.counts().lent == 0
    outputs = made.set_lending(TTL, True, 10)
    assert told(outputs)[:2] == ["Held r3", "Held r4"]
    assert [fact.request for fact in facts(outputs, Lent)] == [rid(3), rid(4)]


def test_what_may_not_be_lent_for_another_reason_stays_whatever_becomes_of_the_setting():
    made = runtime()
    for number in range(1, 5):
        made.submit(new(number, streaming=True, replayable=number != 3, lendable=number != 4), 0)
    made.set_lending(TTL, False, 10)
    made.set_lending(TTL, True, 20)
    assert facts(made.take_lease(lease(slots=2), order(1), 20, 20), Lent) == []
    made.engine_finished(rid(1), OK, 30)
    assert made.counts().in_engine == 2


def test_a_model_in_no_link_states_nothing_of_a_setting_and_follows_it_once_it_is_in_one():
    made = streams(owner=())
    assert made.set_lending(TTL, False, 10) == []
    held = facts(made.set_links(["aaaa"], (), 20), Held)
    assert {fact.not_lendable for fact in held} == {"streaming_off"}

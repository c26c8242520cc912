"""When a request had better wait for a faster helper than inside its owner's engine, and when it waits no longer."""

import pytest

from domain.events import Kept, LinkPriced
from domain.ids import LeaseId
from domain.inputs import LendResult
from tests.unit.machine_rig import (
    LINK,
    OK,
    OTHER_LINK,
    SECOND,
    changed,
    cleared,
    facts,
    lease,
    new,
    of,
    order,
    rid,
    runtime,
    told,
    word,
)

L1 = LeaseId("l1")
PRICED = {"job_us": 2 * SECOND, "owner_job_us": 10 * SECOND, "work": 1000}


def priced(slots=1, **changes):
    return lease(slots=slots, **{**PRICED, **changes})


def keeping(grant=None, **config):
    """Return a runtime with r1 in its engine, r2 lent over its one slot, and r3 kept, all at 0; and the last outputs."""
    made = runtime(**config)
    made.take_lease(grant or priced(), order(1), 0, 0)
    outputs = [made.submit(new(number), 0) for number in (1, 2, 3)]
    return made, outputs[-1]


def test_the_second_place_stays_free_while_a_helper_whose_slots_are_taken_ends_the_request_sooner():
    _, outputs = keeping()
    assert told(outputs) == ["Held r3", "Kept r3"]
    kept = of(outputs, Kept)
    assert (kept.link, kept.helper) == (LINK, "h-aaaa")
    assert (kept.owner_finish_us, kept.helper_finish_us) == (20 * SECOND, 4 * SECOND)
    assert (kept.owner_job_us, kept.helper_job_us, kept.waited_us) == (10 * SECOND, 2 * SECOND, 0)


def test_what_a_free_slot_of_a_faster_helper_can_take_goes_there_and_not_into_the_second_place():
    made = runtime()
    made.take_lease(priced(), order(1), 0, 0)
    made.submit(new(1), 0)
    assert told(made.submit(new(2), 0)) == ["Held r2", "Lent r2", "Lend r2"]


def test_it_is_told_once_a_request_and_link():
    made, _ = keeping()
    assert facts(made.submit(new(4), SECOND), Kept) == []
    assert facts(made.take_lease(changed(slots=1, **PRICED), order(2), SECOND, SECOND), Kept) == []


def test_the_engine_never_runs_empty_for_it():
    made, _ = keeping()
    assert told(made.engine_finished(rid(1), OK, SECOND)) == ["Finished r1", "Started r3", "Dispatch r3"]


def test_the_kept_request_goes_to_the_helper_at_its_next_answer():
    made, _ = keeping()
    outputs = made.lend_answered(rid(2), L1, LendResult(), 2 * SECOND)
    assert told(outputs) == ["LendAnswered r2", "Finished r2", "Lent r3", "Lend r3"]


@pytest.mark.parametrize(
    "release",
    [
        lambda made: made.take_lease(cleared(), order(2), None, SECOND),
        lambda made: made.set_hold(False, SECOND),
        lambda made: made.take_lease(changed(slots=0, **PRICED), order(2), SECOND, SECOND),
    ],
    ids=["lease_cleared", "setting_off", "no_slots"],
)
def test_it_is_released_when_the_lease_or_the_setting_ends(release):
    made, _ = keeping()
    assert "Started r3" in told(release(made))


def test_it_is_released_when_the_helper_took_a_job_longer_than_predicted_by_a_timer_of_its_own():
    made, _ = keeping()
    assert made.next_timer_us() == 6 * SECOND  # predicted to be done after 4 s, and one job of 2 s
    assert "Started r3" not in told(made.tick(6 * SECOND - 1))
    assert "Started r3" in told(made.tick(6 * SECOND))


def test_each_answer_of_the_helper_starts_the_clock_anew():
    made, _ = keeping(priced(slots=2))  # r2 and r3 are lent, r4 is kept: 2 + 2 + 2 s, and one job
    assert "Kept r4" in told(made.submit(new(4), 0))
    made.take_lease(changed(slots=1, **PRICED), order(2), 3 * SECOND, 3 * SECOND)
    outputs = made.lend_answered(rid(2), L1, LendResult(), 4 * SECOND)
    assert "Started r4" not in told(outputs)
    assert "Started r4" not in told(made.tick(8 * SECOND))
    assert "Started r4" in told(made.tick(10 * SECOND))  # 4 s + 2 + 2 s, and one job


def test_a_helper_that_is_long_overdue_loses_to_an_engine_that_is_less_so():
    made, _ = keeping(priced(job_us=9 * SECOND))
    made.client_gone(rid(3), 0)
    # 28 s later: there 28 s x 0.3 and 9 s, here a tenth of 10 s and 10 s
    assert told(made.submit(new(4), 28 * SECOND))[-2:] == ["Started r4", "Dispatch r4"]


@pytest.mark.parametrize(
    "changes",
    [{"probe": True}, {"job_us": 0}, {"owner_job_us": 0}, {"job_us": 30 * SECOND}, {"ready_us": 30 * SECOND}],
    ids=["probe", "helper_unpriced", "owner_unpriced", "helper_slower", "helper_not_ready_soon"],
)
def test_nothing_is_kept_for_a_helper_that_is_not_known_to_be_sooner(changes):
    made = runtime()
    made.take_lease(priced(**changes), order(1), 0, 0)
    made.submit(new(1), 0)
    assert told(made.submit(new(2), 0)) == ["Started r2", "Dispatch r2"]


@pytest.mark.parametrize(
    "changes",
    [{"lendable": False}, {"replayable": False}, {"est_tokens": 5000}, {"vision": True}],
    ids=["not_lendable", "not_replayable", "too_large", "image"],
)
def test_what_the_helper_may_not_have_is_not_kept_for_it(changes):
    made = runtime()
    made.take_lease(priced(context=4096), order(1), 0, 0)
    made.submit(new(1), 0)
    assert told(made.submit(new(2, **changes), 0)) == ["Started r2", "Dispatch r2"]


def test_finish_times_follow_the_work_of_each_request():
    made = runtime()
    made.take_lease(priced(slots=0), order(1), 0, 0)
    made.submit(new(1, work=500), 0)
    made.take_lease(changed(slots=1, **PRICED), order(2), 0, 0)
    made.submit(new(2, work=4000), 0)
    kept = of(made.submit(new(3, work=2000), 0), Kept)
    assert (kept.owner_finish_us, kept.helper_finish_us) == (25 * SECOND, 12 * SECOND)


def test_what_has_run_is_taken_off_but_a_job_that_is_overdue_is_never_taken_for_done():
    made = runtime()
    made.take_lease(priced(), order(1), 0, 0)
    made.submit(new(1), 0)
    made.submit(new(2), 0)
    kept = of(made.submit(new(3), SECOND), Kept)
    assert (kept.owner_finish_us, kept.helper_finish_us) == (19 * SECOND, 3 * SECOND)
    made.client_gone(rid(3), SECOND)
    kept = of(made.submit(new(4), 2 * SECOND), Kept)  # a tenth of the job is left at least
    assert kept.helper_finish_us == 2 * SECOND + SECOND // 5
    made.client_gone(rid(4), 2 * SECOND)
    kept = of(made.submit(new(5), 7 * SECOND), Kept)  # beyond three times the job, three tenths of what it has taken
    assert kept.helper_finish_us == 2 * SECOND + 21 * SECOND // 10


def test_a_model_that_serves_several_at_once_keeps_only_what_its_slots_cannot_begin():
    made = runtime(slots=2, depth=4)
    made.take_lease(priced(), order(1), 0, 0)
    assert told(made.submit(new(1), 0)) == ["Started r1", "Dispatch r1"]
    assert told(made.submit(new(2), 0)) == ["Started r2", "Dispatch r2"]
    assert "Lend r3" in told(made.submit(new(3), 0))
    assert "Kept r4" in told(made.submit(new(4), 0))


def test_what_waits_inside_the_engine_counts_as_before_the_request():
    made = runtime(depth=3)
    for number in (1, 2):
        made.submit(new(number), 0)
    made.take_lease(priced(job_us=25 * SECOND), order(1), 0, 0)
    assert "Lend r3" in told(made.submit(new(3), 0))  # here 10 + 10 + 10 s


def test_with_the_setting_off_from_the_start_two_go_straight():
    made, outputs = keeping(hold_for_faster_helper=False)
    assert told(outputs) == ["Held r3", "Lent r3", "Lend r3"]
    assert made.counts().in_engine == 2


def test_the_nearest_helper_that_is_sooner_counts_whichever_has_slots():
    made = runtime(owner=(LINK, OTHER_LINK))
    made.take_lease(priced(), order(1), 0, 0)
    made.take_lease(priced(link=OTHER_LINK, job_us=3 * SECOND), order(2), 0, 0)
    outputs = [made.submit(new(number), 0) for number in range(1, 5)][-1]
    assert (of(outputs, Kept).link, of(outputs, Kept).helper_finish_us) == (LINK, 4 * SECOND)


# -- while a decision is in flight


def hinted(**config):
    made = runtime(owner=(LINK, OTHER_LINK), **config)
    made.take_word(word(LinkPriced, faster=True), order(1), 0)
    made.submit(new(1), 0)
    return made


def test_where_a_measured_helper_is_faster_the_second_request_waits_for_the_decision_that_can_take_it():
    made = hinted()
    assert told(made.submit(new(2), 5)) == ["Held r2"]
    outputs = made.take_lease(priced(), order(2), 5, 3000)
    assert told(outputs) == ["LeaseUpdated", "Lent r2", "Lend r2"]


def test_it_waits_for_a_second_at_most_and_a_decision_that_gives_nothing_releases_it():
    made = hinted()
    made.submit(new(2), 5)
    assert made.next_timer_us() == 5 + SECOND
    assert told(made.tick(5 + SECOND)) == ["Started r2", "Dispatch r2"]
    made = hinted()
    made.submit(new(2), 5)
    assert "Started r2" in told(made.take_lease(priced(link=OTHER_LINK, slots=0), order(2), 5, 3000))


@pytest.mark.parametrize("hint", ["none", "slower", "taken_back", "of_no_link", "stale", "setting_off"])
def test_without_a_valid_hint_two_go_straight(hint):
    made = runtime(hold_for_faster_helper=hint != "setting_off")
    if hint != "none":
        link = OTHER_LINK if hint == "of_no_link" else LINK
        made.take_word(word(LinkPriced, link, faster=hint not in {"slower", "stale"}), order(2), 0)
    if hint == "taken_back":
        made.take_word(word(LinkPriced, faster=False), order(3), 0)
    if hint == "stale":
        made.take_word(word(LinkPriced, faster=True), order(1), 0)
    made.submit(new(1), 0)
    assert told(made.submit(new(2), 0)) == ["Started r2", "Dispatch r2"]


def test_nothing_waits_for_a_decision_of_a_helper_that_has_just_handed_one_back():
    made = hinted()
    made.take_lease(priced(), order(2), 0, 0)
    made.submit(new(2), 1)
    made.lend_returned(rid(2), L1, "own_work", 2)
    assert made.counts().in_engine == 2
    made.engine_finished(rid(1), OK, 3)
    assert told(made.submit(new(3), 4)) == ["Started r3", "Dispatch r3"]

"""What is cut off from a helper, which request may go to which helper, and what a helper that fails still gets."""

import pytest

from domain.actions import CancelLend, Lend
from domain.events import CutOff, Held, LeaseChecked, LeaseStalled, LendReturned, Lent, LinkPriced
from domain.ids import LeaseId, RequestId
from domain.inputs import LendFailure, LendResult, NewSize
from domain.runtime import Counts
from tests.unit.machine_rig import (
    LINK,
    OK,
    OTHER_LINK,
    SECOND,
    TTL,
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


def lending(grant, *, held=2, **changes):
    """Return a runtime with r1 and r2 in its engine and `held` more, some of them lent under `grant`."""
    made = runtime(owner=(LINK, OTHER_LINK))
    for number in range(1, held + 3):
        made.submit(new(number, **changes), 0)
    return made, made.take_lease(grant, order(1), 0, 0)


# -- cut-offs

LATE_US = 3 * (5 + 2) * SECOND + 30 * SECOND
UNWATCHED_US = 4 * 180 * SECOND


def test_a_helper_that_does_not_begin_to_answer_in_three_times_switch_and_job_and_half_a_minute_is_cut_off():
    made, _ = lending(lease(slots=1, job_us=2 * SECOND, switch_us=5 * SECOND, ttl_us=10 * TTL), held=1)
    assert CutOff not in [type(output) for output in made.tick(LATE_US - 1)]
    outputs = made.tick(LATE_US)
    assert told(outputs)[:3] == ["CancelLend r3", "CutOff r3", "Held r3"]
    assert (of(outputs, CutOff).reason, of(outputs, CutOff).may_have_run) == ("answer_late", True)
    assert of(outputs, CancelLend).lease == L1
    assert (of(outputs, Held).lendable, of(outputs, Held).not_lendable) == (False, "cut_off")
    assert made.lend_answered(rid(3), L1, LendResult(), LATE_US + 1) == []


def test_the_cut_off_has_a_timer_of_its_own():
    made, _ = lending(lease(slots=1, job_us=2 * SECOND, switch_us=5 * SECOND, ttl_us=3 * SECOND), held=1)
    made.tick(3 * SECOND)
    assert made.next_timer_us() == LATE_US


def test_one_that_waits_behind_another_of_ours_at_the_helper_has_the_time_of_both():
    made, _ = lending(lease(slots=2, job_us=2 * SECOND, ttl_us=10 * TTL))
    assert [fact.request for fact in facts(made.tick(36 * SECOND), CutOff)] == [rid(3)]
    assert [fact.request for fact in facts(made.tick(42 * SECOND), CutOff)] == [rid(4)]


@pytest.mark.parametrize("grant", [lease(slots=1, job_us=0), lease(slots=1, probe=True)], ids=["unpriced", "probe"])
def test_a_lease_without_a_price_cuts_nothing_off_for_being_late(grant):
    made, _ = lending(grant, held=1)
    assert facts(made.tick(UNWATCHED_US - 1), CutOff) == []
    assert made.counts().lent == 1


def test_once_the_answer_has_begun_it_may_take_as_long_as_it_takes():
    made, _ = lending(lease(slots=1), held=1)
    made.lend_answering(rid(3), L1, 30 * SECOND)
    assert facts(made.tick(500 * SECOND), CutOff) == []


def test_a_stream_that_the_helper_took_fails_when_it_is_cut_off():
    made, _ = lending(lease(slots=1, ttl_us=10 * TTL), held=1, streaming=True)
    made.lend_accepted(rid(3), L1, 1)
    assert told(made.tick(33 * SECOND))[:4] == ["CancelLend r3", "CutOff r3", "Failed r3", "Refuse r3"]


def test_a_stalled_link_gives_back_at_once_all_that_was_lent_over_it_before_the_decision():
    made, _ = lending(lease(slots=3, job_us=0), held=4)
    made.lend_answering(rid(3), L1, 1)
    made.lend_answered(rid(5), L1, LendResult(), 2)  # r6 goes out
    made.take_lease(changed(slots=4, job_us=0), order(7), 3, 3)
    assert told(made.submit(new(7), 3)) == ["Held r7", "Lent r7", "Lend r7"]
    outputs = made.take_word(word(LeaseStalled, quiet_us=180 * SECOND), order(5), 4)
    cut = facts(outputs, CutOff)
    assert [(fact.request, fact.reason) for fact in cut] == [(rid(n), "stalled") for n in (4, 6)]
    assert {"Held r4", "Held r6"} <= set(told(outputs))
    assert made.counts().lent == 2  # r3 is being answered, and r7 was lent after that decision
    assert "Finished r3" in told(made.lend_answered(rid(3), L1, LendResult(), 5))
    assert made.take_word(word(LeaseStalled, quiet_us=1), order(5), 5) == []


def test_an_answer_that_stopped_in_its_middle_is_taken_for_stalled_and_one_that_goes_on_is_not():
    made, _ = lending(lease(slots=2, job_us=0, ttl_us=10 * TTL), held=2)
    for request in (rid(3), rid(4)):
        made.lend_answering(request, L1, 1)
    made.lend_answering(rid(4), L1, 185 * SECOND)
    outputs = made.take_word(word(LeaseStalled, quiet_us=180 * SECOND), order(5), 190 * SECOND)
    assert [fact.request for fact in facts(outputs, CutOff)] == [rid(3)]
    assert made.counts().lent == 1


def test_a_stall_on_a_link_that_is_not_ours_changes_nothing():
    made, _ = lending(lease(slots=2))
    assert made.take_word(word(LeaseStalled, "eeee", quiet_us=1), order(5), 4) == []


def test_a_stall_gives_back_what_is_out_over_a_link_that_was_removed_meanwhile():
    made, _ = lending(lease(slots=1, probe=True), held=1)
    made.set_links((), (), 1)
    outputs = made.take_word(word(LeaseStalled, quiet_us=180 * SECOND), order(5), 200 * SECOND)
    assert [(fact.request, fact.reason) for fact in facts(outputs, CutOff)] == [(rid(3), "stalled")]
    assert made.counts().lent == 0


# -- a helper that nobody watches


PROBE = lease(slots=1, probe=True, ttl_us=100 * TTL)


def test_a_helper_that_says_nothing_for_four_stall_timeouts_while_no_master_asks_it_loses_the_request():
    made, _ = lending(PROBE, held=1)
    outputs = made.tick(UNWATCHED_US)
    assert told(outputs)[:3] == ["CancelLend r3", "CutOff r3", "Held r3"]
    assert (of(outputs, CutOff).reason, of(outputs, CutOff).may_have_run) == ("unwatched", True)
    assert made.counts().lent == 0


def test_an_answer_that_stopped_in_its_middle_fails_when_nobody_watches():
    made, _ = lending(lease(slots=1, ttl_us=100 * TTL), held=1)
    for at_us in (30 * SECOND, 100 * SECOND):
        made.lend_answering(rid(3), L1, at_us)
    assert facts(made.tick(UNWATCHED_US + 100 * SECOND - 1), CutOff) == []
    outputs = made.tick(UNWATCHED_US + 100 * SECOND)
    assert told(outputs)[:4] == ["CancelLend r3", "CutOff r3", "Failed r3", "Refuse r3"]


def test_a_helper_that_a_master_asks_what_it_runs_has_all_its_time_again():
    made, _ = lending(PROBE, held=1)
    assert facts(made.take_word(word(LeaseChecked, quiet_us=1), order(5), 500 * SECOND), CutOff) == []
    assert facts(made.tick(UNWATCHED_US + 500 * SECOND - 1), CutOff) == []
    assert [fact.reason for fact in facts(made.tick(UNWATCHED_US + 500 * SECOND), CutOff)] == ["unwatched"]


def answers(made, at_us):
    made.lend_answered(rid(4), L1, LendResult(), at_us)


def hands_back(made, at_us):
    made.lend_returned(rid(4), L1, "own_work", at_us)


def is_full(made, at_us):
    made.lend_busy(rid(4), L1, at_us)


def is_leased_again(made, at_us):
    made.take_lease(changed(slots=2, job_us=0), order(5), at_us, at_us)


@pytest.mark.parametrize("sign", [answers, hands_back, is_full, is_leased_again])
def test_over_a_busy_link_where_no_master_has_to_ask_a_long_job_has_all_its_time_from_the_last_that_was_heard(sign):
    made, _ = lending(lease(slots=2, job_us=0, ttl_us=TTL))
    assert made.counts().lent == 2
    sign(made, 500 * SECOND)
    late = [rid(3), rid(4)] if sign is is_leased_again else [rid(3)]
    assert facts(made.tick(UNWATCHED_US + 500 * SECOND - 1), CutOff) == []
    outputs = made.tick(UNWATCHED_US + 500 * SECOND)
    assert [(fact.request, fact.reason) for fact in facts(outputs, CutOff)] == [(one, "unwatched") for one in late]


def test_that_another_is_taken_back_gives_it_no_time():
    made, _ = lending(lease(slots=2, job_us=0, ttl_us=TTL))
    made.lend_failed(rid(4), L1, LendFailure(reason="helper_failed"), 500 * SECOND)
    assert [fact.request for fact in facts(made.tick(UNWATCHED_US), CutOff)] == [rid(3)]


def test_that_it_is_asked_is_heard_once_and_hides_no_older_word_of_the_link_which_may_come_after_it():
    made, _ = lending(PROBE, held=1)
    made.take_word(word(LeaseChecked, quiet_us=1), order(5), 500 * SECOND)
    made.take_word(word(LeaseChecked, quiet_us=1), order(5), 600 * SECOND)  # by who replays it, too
    made.take_word(word(LinkPriced, faster=True), order(4), 600 * SECOND)
    assert made.owner.leases.track(LINK).faster
    assert [fact.reason for fact in facts(made.tick(UNWATCHED_US + 500 * SECOND), CutOff)] == ["unwatched"]


def test_that_it_is_asked_over_another_link_gives_it_no_time():
    made, _ = lending(PROBE, held=1)
    made.take_word(word(LeaseChecked, OTHER_LINK, quiet_us=1), order(5), 500 * SECOND)
    assert [fact.reason for fact in facts(made.tick(UNWATCHED_US), CutOff)] == ["unwatched"]


def test_by_a_shorter_stall_timeout_silence_counts_from_the_change_for_the_master_could_not_ask_before():
    made, _ = lending(PROBE, held=1)
    assert facts(made.set_stall(10 * SECOND, 500 * SECOND), CutOff) == []
    # with every other control event it is said again
    assert facts(made.set_stall(10 * SECOND, 530 * SECOND), CutOff) == []
    assert facts(made.tick(540 * SECOND - 1), CutOff) == []
    assert [fact.reason for fact in facts(made.tick(540 * SECOND), CutOff)] == ["unwatched"]


def test_an_owner_listens_at_a_time_of_its_own_and_no_longer_than_something_is_lent():
    made, _ = lending(lease(slots=1, probe=True, ttl_us=SECOND), held=1, lendable=True)
    ticks, now_us = 0, 0
    while made.counts().lent:
        due_us = made.next_timer_us()
        assert due_us is not None
        assert due_us > now_us, "a timer that is due for ever would be a loop without end"
        ticks, now_us = ticks + 1, due_us
        made.tick(now_us)
        for request in (rid(1), rid(2)):
            made.engine_finished(request, OK, now_us)
    assert now_us == UNWATCHED_US


def test_of_what_came_back_no_timer_is_left():
    made, _ = lending(PROBE, held=1)
    made.lend_answered(rid(3), L1, LendResult(), SECOND)
    for request in (rid(1), rid(2)):
        made.engine_finished(request, OK, SECOND)
    made.take_lease(cleared(), order(2), 0, SECOND)
    assert made.counts() == Counts(held=0, in_engine=0, lent=0, borrowed=0)
    made.tick(UNWATCHED_US)
    assert made.next_timer_us() is None


# -- gates


def test_a_request_that_does_not_fit_the_helpers_window_stays_and_the_next_that_does_goes():
    made = runtime()
    for number, tokens in enumerate((1, 1, 5000, 4096, 4097, 7), 1):
        made.submit(new(number, est_tokens=tokens), 0)
    outputs = made.take_lease(lease(slots=3, context=4096), order(1), 0, 0)
    assert [fact.request for fact in facts(outputs, Lent)] == [rid(4), rid(6)]


def test_a_request_of_unknown_size_goes_only_where_there_is_no_window():
    made = runtime(owner=(LINK, OTHER_LINK))
    for number in range(1, 5):
        made.submit(new(number), 0)
    assert facts(made.take_lease(lease(slots=3, context=4096), order(1), 0, 0), Lent) == []
    outputs = made.take_lease(lease(link=OTHER_LINK, slots=1, job_us=2), order(2), 0, 0)
    assert of(outputs, Lend).link == OTHER_LINK


def test_what_one_helper_cannot_hold_another_gets():
    made = runtime(owner=(LINK, OTHER_LINK))
    for number in (1, 2):
        made.submit(new(number), 0)
    made.take_lease(lease(slots=1, context=4096, job_us=1), order(1), 0, 0)
    made.take_lease(lease(link=OTHER_LINK, slots=1, job_us=2), order(2), 0, 0)
    assert of(made.submit(new(3, est_tokens=5000), 0), Lend).link == OTHER_LINK
    assert of(made.submit(new(4, est_tokens=5000), 0), Held).lendable
    assert of(made.submit(new(5, est_tokens=100), 0), Lend).link == LINK


def test_a_request_with_an_image_goes_only_to_a_helper_that_sees():
    made = runtime(owner=(LINK, OTHER_LINK))
    for number in (1, 2):
        made.submit(new(number), 0)
    made.take_lease(lease(slots=1, job_us=1), order(1), 0, 0)
    outputs = made.submit(new(3, vision=True), 0)
    assert told(outputs) == ["Held r3"]
    assert of(outputs, Held).vision
    outputs = made.take_lease(lease(link=OTHER_LINK, slots=1, vision=True), order(2), 0, 0)
    assert of(outputs, Lend).link == OTHER_LINK


def test_no_more_than_the_first_thirty_two_are_looked_at_so_that_a_deep_queue_costs_no_more():
    made = runtime()
    for number in range(1, 36):
        made.submit(new(number, est_tokens=5000), 0)
    made.submit(new(36, est_tokens=1), 0)
    assert facts(made.take_lease(lease(context=4096), order(1), 0, 0), Lent) == []
    for number in (3, 4):
        made.client_gone(rid(number), 1)
    assert made.counts().lent == 1


# -- after failures


def failing(slots=2):
    made, _ = lending(lease(slots=slots), held=8)
    made.lend_failed(rid(3), L1, LendFailure(reason="helper_failed"), 10)
    return made


def test_after_a_failure_nothing_is_lent_over_the_link_for_a_second_and_then_one_at_a_time_until_it_answers():
    made = failing()
    made.lend_failed(rid(4), L1, LendFailure(reason="helper_failed"), 10)
    outputs = made.tick(10 + SECOND)
    assert [fact.request for fact in facts(outputs, Lent)] == [rid(5)]
    outputs = made.lend_answered(rid(5), L1, LendResult(), 2 * SECOND)
    assert len(facts(outputs, Lent)) == 2


def test_a_decision_that_knows_of_the_failure_lends_again_at_once_and_one_that_does_not_does_not():
    made = failing()
    assert facts(made.take_lease(changed(), order(2), 9, 11), Lent) == []
    assert [fact.out for fact in facts(made.take_lease(changed(), order(3), 10, 12), Lent)] == [2]


def test_a_helper_that_fails_everything_at_once_gets_few_of_the_backlog_while_the_master_says_nothing():
    made, _ = lending(lease(slots=2, ttl_us=10 * TTL), held=100)
    burnt = 0
    pending = [rid(3), rid(4)]
    for now_us in range(0, 30 * SECOND, SECOND // 2):
        outputs = made.tick(now_us)
        pending += [fact.request for fact in facts(outputs, Lent)]
        for request in pending:
            burnt += 1
            made.lend_refused(request, L1, "helper_unreachable", now_us)
        pending = []
    assert burnt <= 7


def test_what_comes_back_says_the_leases_slots_and_what_is_still_out():
    made, outputs = lending(lease(slots=2))
    assert [fact.slots for fact in facts(outputs, Lent)] == [2, 2]
    fact = of(made.lend_returned(rid(3), L1, "own_work", 1), LendReturned)
    assert (fact.slots, fact.out) == (2, 1)


def test_a_snapshot_says_what_the_gates_ask_of_each_request():
    made = runtime()
    sizes: tuple[dict[str, int], ...] = ({}, {}, {"est_tokens": 70}, {"vision": True})
    for number, fields in enumerate(sizes, 1):
        made.submit(new(number, **fields), 0)
    queue, _ = made.snapshot(0)
    assert [(one.est_tokens, one.vision) for one in queue.requests] == [(0, False), (0, False), (70, False), (0, True)]


# -- sizes that come later


def sized(tokens: dict[int, int]) -> dict[RequestId, NewSize]:
    return {rid(number): NewSize(est_tokens=count) for number, count in tokens.items()}


def test_a_held_request_whose_size_becomes_known_is_stated_again_and_lent_under_a_lease_that_waited_for_it():
    made = runtime()
    for number in range(1, 6):
        made.submit(new(number), 0)
    assert facts(made.take_lease(lease(slots=1, context=4096), order(1), 0, 0), Lent) == []
    outputs = made.resize(sized({5: 90, 4: 4096}), 7)
    assert told(outputs) == ["Held r4", "Held r5", "Lent r4", "Lend r4"]
    assert [(held.est_tokens, held.work, held.waiting) for held in facts(outputs, Held)] == [
        (4096, 1000, 3),
        (90, 1000, 3),
    ]
    assert made.resize(sized({5: 91, 4: 1}), 8) == []  # each size is told once
    assert [one.est_tokens for one in made.snapshot(8)[0].requests] == [0, 0, 0, 4096, 90]


def test_what_is_not_held_or_not_known_is_not_stated_again_and_has_its_size_when_it_is_held_again():
    made, _ = lending(lease(slots=1), held=1)
    assert made.resize(sized({1: 50, 3: 70, 9: 90}), 1) == []
    assert made.resize(sized({9: 0}), 1) == []
    assert of(made.lend_busy(rid(3), L1, 2), Held).est_tokens == 70


def test_a_size_of_nothing_is_none():
    made = runtime()
    for number in range(1, 4):
        made.submit(new(number), 0)
    assert made.resize(sized({3: 0}), 1) == []
    assert told(made.resize(sized({3: 1}), 1)) == ["Held r3"]


def test_a_model_in_no_link_states_nothing_of_sizes_and_tells_them_once_it_is_in_one():
    made = runtime(owner=())
    for number in range(1, 3):
        made.submit(new(number), 0)
    assert made.resize(sized({2: 70}), 1) == []
    outputs = made.set_links([LINK], [], 2)
    assert [(held.request, held.est_tokens) for held in facts(outputs, Held)] == [(rid(2), 70)]


def test_no_more_than_the_first_thousand_are_stated_again_at_once():
    made = runtime(held_max=2_000)
    for number in range(1, 1_103):
        made.submit(new(number), 0)
    sizes = sized({number: number for number in range(1_102, 2, -1)})
    assert [held.est_tokens for held in facts(made.resize(sizes, 1), Held)] == list(range(3, 1_003))
    assert [held.est_tokens for held in facts(made.resize(sizes, 2), Held)] == list(range(1_003, 1_103))

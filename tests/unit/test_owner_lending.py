"""What an owner lends, under which lease, and what happens to what comes back."""

import pytest

from domain.actions import FORGET_US, CancelLend, Lend, Refuse
from domain.events import CutOff, Failed, Finished, Held, LeaseRefused, LeaseUpdated, Lent, LinkPriced
from domain.ids import LeaseId, LinkId
from domain.inputs import EngineResult, LendFailure, LendResult
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


def lending(*, held=4, slots=2, **changes):
    """Return a runtime with r1 and r2 in its engine, `held` more that came after, and a lease under which some are lent."""
    made = runtime(**changes)
    for number in range(1, held + 3):
        made.submit(new(number), number)
    outputs = made.take_lease(lease(slots=slots), order(1), 10, 10)
    return made, outputs


def test_held_requests_are_lent_first_come_first_up_to_the_leases_slots():
    _, outputs = lending()
    assert told(outputs) == ["LeaseUpdated", "Lent r3", "Lend r3", "Lent r4", "Lend r4"]
    assert [fact.out for fact in facts(outputs, Lent)] == [1, 2]
    assert [fact.waited_us for fact in facts(outputs, Lent)] == [7, 6]
    assert facts(outputs, Lend)[0].remaining_us == TTL


def test_a_lease_that_comes_before_its_link_is_refused_and_taken_once_the_link_is_known():
    made, _ = lending(slots=0)
    early = lease(link=OTHER_LINK, slots=1, name="l9")
    refused = of(made.take_lease(early, order(5), 100, 100), LeaseRefused)
    assert (refused.reason, refused.link) == ("not_an_owner", OTHER_LINK)
    made.take_lease(changed(link=OTHER_LINK, slots=2, name="l9"), order(4), 100, 101)  # older
    outputs = made.set_links((LINK, OTHER_LINK), (), 200)
    assert told(outputs) == ["LeaseUpdated", "Lent r3", "Lend r3"]
    assert of(outputs, LeaseUpdated).slots == 1
    made.set_links((LINK,), (), 300)
    assert facts(made.set_links((LINK, OTHER_LINK), (), 301), LeaseUpdated) == []  # it is offered once
    assert facts(made.take_lease(early, order(5), 100, 302), LeaseUpdated) == []  # and is known as old from then on


def test_a_lease_that_came_before_its_link_is_worth_nothing_once_it_is_over_or_cleared():
    made = runtime()
    made.take_lease(lease(link=OTHER_LINK), order(5), 100, 100)
    assert told(made.set_links((LINK, OTHER_LINK), (), TTL + 100)) == []
    made = runtime()
    made.take_lease(lease(link=OTHER_LINK), order(5), 100, 100)
    made.take_lease(cleared(OTHER_LINK), order(6), 100, 101)
    assert told(made.set_links((LINK, OTHER_LINK), (), 200)) == []


def test_no_more_than_64_leases_are_kept_for_links_that_are_not_known():
    made, _ = lending(slots=0)
    links = [LinkId(f"x{number:03}") for number in range(65)]
    for link in links:
        made.take_lease(lease(link=link, slots=0), order(5), 100, 100)
    assert len(facts(made.set_links((LINK, *links), (), 200), LeaseUpdated)) == 64


def test_a_new_arrival_is_lent_at_once_when_a_slot_is_free():
    made, _ = lending(held=1)
    assert told(made.submit(new(9), 11)) == ["Held r9", "Lent r9", "Lend r9"]
    assert told(made.submit(new(10), 11)) == ["Held r10"]


def test_the_engine_is_topped_up_before_anything_is_lent():
    made, _ = lending(held=2, slots=0)
    made.take_lease(changed(slots=1), order(2), 11, 11)
    outputs = made.engine_finished(rid(1), OK, 12)
    assert told(outputs) == ["Finished r1", "Started r4", "Dispatch r4"]


def test_a_request_is_never_recalled_not_even_when_its_lease_is_cleared():
    made, _ = lending()
    outputs = made.take_lease(cleared(), order(2), None, 20)
    assert told(outputs) == ["LeaseUpdated"]
    assert (of(outputs, LeaseUpdated).slots, of(outputs, LeaseUpdated).out) == (0, 2)
    assert told(made.lend_answered(rid(3), L1, LendResult(), 21)) == ["LendAnswered r3", "Finished r3"]


def test_a_lease_ends_when_its_basis_was_sent_plus_its_lifetime_on_the_owners_own_clock():
    made, _ = lending(slots=1)
    assert made.next_timer_us() == 10 + TTL // 3
    made.tick(9 + TTL)
    outputs = made.lend_answered(rid(3), L1, LendResult(), 9 + TTL)
    assert "Lend r4" in told(outputs)
    outputs = made.lend_answered(rid(4), L1, LendResult(), 10 + TTL)
    assert told(outputs) == ["LendAnswered r4", "Finished r4", "LeaseUpdated"]


def test_a_grant_whose_basis_is_unknown_or_whose_time_is_over_or_whose_link_is_not_ours_is_refused_and_says_why():
    made = runtime()
    reasons = [
        of(made.take_lease(lease(), order(1), None, 10), LeaseRefused).reason,
        of(made.take_lease(lease(), order(2), 0, TTL), LeaseRefused).reason,
        of(made.take_lease(lease(link=OTHER_LINK), order(3), 10, 10), LeaseRefused).reason,
    ]
    assert reasons == ["unknown_basis", "expired", "not_an_owner"]


def test_a_model_that_is_only_a_helper_never_lends():
    made = runtime(owner=(), helper=(OTHER_LINK,))
    for number in range(1, 5):
        made.submit(new(number), 0)
    assert of(made.take_lease(lease(link=OTHER_LINK), order(1), 0, 1), LeaseRefused).reason == "not_an_owner"
    assert made.counts().held == 2


def test_an_older_or_equal_lease_event_changes_nothing():
    made, _ = lending()
    made.take_lease(cleared(), order(5), None, 20)
    assert made.take_lease(lease(slots=4), order(5), 20, 20) == []
    assert made.take_lease(lease(slots=4), order(4), 20, 20) == []
    assert made.counts().lent == 2


def test_a_newer_grant_that_cannot_be_used_ends_the_older_one():
    made, _ = lending(slots=1)
    assert told(made.take_lease(changed(slots=1), order(2), None, 20)) == ["LeaseRefused"]
    assert told(made.lend_answered(rid(3), L1, LendResult(), 21)) == ["LendAnswered r3", "Finished r3"]


def test_fewer_slots_take_nothing_back_and_lend_nothing_until_enough_came_home():
    made, _ = lending()
    made.take_lease(changed(slots=1), order(2), 11, 11)
    assert "Lend r5" not in told(made.lend_answered(rid(3), L1, LendResult(), 12))
    assert "Lend r5" in told(made.lend_answered(rid(4), L1, LendResult(), 13))


def test_several_helpers_get_the_next_request_in_order_of_predicted_answer():
    made = runtime(owner=(LINK, OTHER_LINK, LinkId("dddd")))
    for number in range(1, 3):
        made.submit(new(number), 0)
    made.take_lease(lease(link=LINK, job_us=3 * SECOND), order(1), 0, 0)
    made.take_lease(lease(link=OTHER_LINK, job_us=2 * SECOND), order(2), 0, 0)
    made.take_lease(lease(link=LinkId("dddd"), job_us=0), order(3), 0, 0)  # a probe: nobody knows
    lends = [of(made.submit(new(number), 1), Lend).link for number in range(3, 9)]
    assert lends == [OTHER_LINK, LINK, OTHER_LINK, LINK, "dddd", "dddd"]


def test_equal_helpers_are_told_apart_by_their_link():
    made = runtime(owner=(LINK, OTHER_LINK))
    for number in range(1, 3):
        made.submit(new(number), 0)
    made.take_lease(lease(link=OTHER_LINK), order(1), 0, 0)
    made.take_lease(lease(link=LINK), order(2), 0, 0)
    lends = [of(made.submit(new(number), 1), Lend).link for number in range(3, 7)]
    assert lends == [LINK, OTHER_LINK, LINK, OTHER_LINK]


def test_a_returned_request_goes_back_to_its_place_runs_at_its_owner_and_is_never_lent_again():
    made, _ = lending()
    outputs = made.lend_returned(rid(4), L1, "own_work", 20)
    assert told(outputs) == ["LendReturned r4", "Held r4"]
    assert (of(outputs, Held).lendable, of(outputs, Held).not_lendable) == (False, "returned")
    outputs = made.take_lease(lease(slots=9, name="l2"), order(2), 21, 21)
    assert [fact.request for fact in facts(outputs, Lent)] == [rid(5), rid(6)]
    assert told(made.engine_finished(rid(1), OK, 22)) == ["Finished r1", "Started r4", "Dispatch r4"]


def test_what_came_back_keeps_the_order_of_arrival_among_itself():
    made, _ = lending(held=6, slots=3)
    for number in (5, 3, 4):
        made.lend_returned(rid(number), L1, "own_work", 20)
    for finished, started in ((1, 3), (2, 4), (3, 5), (4, 6)):
        assert told(made.engine_finished(rid(finished), OK, 21))[1] == f"Started r{started}"


def test_a_helper_that_hands_everything_back_at_once_does_not_spend_the_whole_backlogs_lendability():
    made, _ = lending(held=8)
    now_us, burnt = 20, 0
    made.lend_returned(rid(3), L1, "own_work", now_us)
    made.lend_returned(rid(4), L1, "own_work", now_us)
    lent = 0
    for now_us in range(SECOND, 20 * SECOND, SECOND):
        for fact in facts(made.tick(now_us), Lent):
            lent += 1
            made.lend_returned(fact.request, L1, "own_work", now_us)
            burnt += 1
    assert lent == burnt == 4  # two each after pauses of 2 s and 8 s


def test_an_answer_or_a_new_lease_ends_the_pause_after_a_return():
    made, _ = lending(held=6)
    assert told(made.lend_returned(rid(3), L1, "own_work", 20)) == ["LendReturned r3", "Held r3"]
    assert told(made.take_lease(changed(), order(2), 21, 21)) == ["LeaseUpdated"]  # renewed: the pause stays
    assert "Lend r5" in told(made.lend_answered(rid(4), L1, LendResult(), 22))
    made.lend_returned(rid(5), L1, "own_work", 23)
    made.take_lease(cleared(), order(3), None, 24)
    assert "Lend r7" in told(made.take_lease(lease(name="l2"), order(4), 25, 25))


def test_busy_keeps_the_request_lendable_and_asks_again_only_when_something_changed():
    made, _ = lending(held=2, slots=1)
    outputs = made.lend_busy(rid(3), L1, 20)
    assert told(outputs) == ["LendBusy r3", "Held r3"]
    assert of(outputs, Held).lendable
    assert made.tick(21) == []
    assert "Lend r3" in told(made.take_lease(changed(slots=1), order(2), 22, 22))
    made.lend_busy(rid(3), L1, 23)
    assert told(made.submit(new(9), 24)) == ["Held r9"]
    assert "Lend r4" in told(made.engine_finished(rid(1), OK, 25))  # r3 topped up the engine, r4 is the next


def test_a_request_that_could_not_be_passed_on_is_run_by_its_owner():
    made, _ = lending()
    outputs = made.lend_refused(rid(3), L1, "helper_unreachable", 20)
    assert told(outputs) == ["RelayRefused r3", "Held r3"]
    assert not of(outputs, Held).lendable


def test_a_replayable_request_whose_helper_died_runs_again_at_its_owner_after_a_cut_off():
    made, _ = lending()
    outputs = made.lend_failed(rid(3), L1, LendFailure(reason="helper_failed"), 20)
    assert told(outputs) == ["CutOff r3", "Held r3"]
    assert (of(outputs, CutOff).reason, of(outputs, CutOff).may_have_run) == ("helper_failed", True)
    assert told(made.engine_finished(rid(1), OK, 21))[1:] == ["Started r3", "Dispatch r3"]
    fact = of(made.engine_finished(rid(3), OK, 22), Finished)
    assert fact.helper == ""


@pytest.mark.parametrize(
    ("changes", "accepted", "failure"),
    [
        ({}, True, LendFailure(reason="helper_failed", sent=True)),
        ({"streaming": True}, True, LendFailure(reason="helper_failed")),
        ({}, True, LendFailure(reason="helper_failed", poison=True)),
    ],
    ids=["bytes_went_to_the_client", "accepted_stream", "poison"],
)
def test_what_may_not_run_again_fails_with_its_helper(changes, accepted, failure):
    made = runtime()
    for number in (1, 2, 3):
        made.submit(new(number, **changes), 0)
    made.take_lease(lease(), order(1), 0, 0)
    if accepted:
        made.lend_accepted(rid(3), L1, 1)
    outputs = made.lend_failed(rid(3), L1, failure, 2)
    assert told(outputs) == ["CutOff r3", "Failed r3", "Refuse r3"]
    assert (of(outputs, Failed).status, of(outputs, Failed).helper) == (502, "h-aaaa")
    assert of(outputs, Refuse).may_have_run


def test_a_stream_may_be_lent_while_held_and_run_again_until_its_helper_accepts_it():
    made = runtime()
    for number in (1, 2, 3):
        made.submit(new(number, streaming=True), 0)
    assert "Lend r3" in told(made.take_lease(lease(), order(1), 0, 0))
    assert made.may_run_again(rid(3))
    made.lend_accepted(rid(3), L1, 1)
    assert not made.may_run_again(rid(3))


@pytest.mark.parametrize(
    ("config", "changes", "why"),
    [
        ({"offload_streams": False}, {"streaming": True}, "streaming_off"),
        ({}, {"replayable": False}, "not_replayable"),
        ({}, {"lendable": False, "not_lendable": "image"}, "image"),
    ],
)
def test_what_may_not_be_lent_stays_and_says_why(config, changes, why):
    made = runtime(**config)
    made.take_lease(lease(), order(1), 0, 0)
    outputs = [output for number in (1, 2, 3) for output in made.submit(new(number, **changes), 0)]
    assert (of(outputs, Held).lendable, of(outputs, Held).not_lendable) == (False, why)
    assert facts(outputs, Lend) == []


def test_a_client_that_leaves_while_its_request_is_lent_frees_the_slot_and_ends_it_once():
    made, _ = lending(held=3)
    outputs = made.client_gone(rid(3), 20)
    assert told(outputs) == ["CancelLend r3", "CutOff r3", "Cancelled r3", "Lent r5", "Lend r5"]
    assert of(outputs, CancelLend).lease == L1
    assert made.lend_failed(rid(3), L1, LendFailure(reason="helper_failed"), 21) == []
    assert made.lend_answered(rid(3), L1, LendResult(), 21) == []
    assert made.counts().lent == 2


def test_a_late_result_of_an_older_lease_frees_no_slot_of_a_newer_one():
    made, _ = lending(held=1, slots=1)
    made.lend_busy(rid(3), L1, 20)
    made.take_lease(lease(name="l2", slots=1), order(2), 21, 21)
    assert made.counts().lent == 1
    for late in (
        made.lend_answered(rid(3), L1, LendResult(), 22),
        made.lend_returned(rid(3), L1, "own_work", 22),
        made.lend_busy(rid(3), L1, 22),
        made.lend_failed(rid(3), L1, LendFailure(reason="helper_failed"), 22),
    ):
        assert late == []
    assert made.counts().lent == 1


def test_a_helpers_client_error_passes_unchanged_and_is_not_run_again():
    made, _ = lending()
    outputs = made.lend_answered(rid(3), L1, LendResult(status=422), 20)
    assert told(outputs)[:2] == ["LendAnswered r3", "Finished r3"]
    assert of(outputs, Finished).status == 422


def test_a_request_cut_off_from_a_helper_never_claims_that_it_did_not_start():
    made, _ = lending(wait_us_max=60 * SECOND)
    made.set_engine_up(False, 19)
    made.lend_failed(rid(3), L1, LendFailure(reason="helper_failed"), 30 * SECOND)
    outputs = made.tick(90 * SECOND)
    assert of([output for output in outputs if getattr(output, "request", "") == rid(3)], Failed).status == 502


def test_cutting_a_link_ends_its_lease_and_leaves_what_is_out():
    made, _ = lending()
    outputs = made.set_links([OTHER_LINK], [], 20)
    assert of(outputs, LeaseUpdated).slots == 0
    assert told(made.lend_answered(rid(3), L1, LendResult(), 21)) == ["LendAnswered r3", "Finished r3"]


def test_links_that_are_removed_for_good_are_forgotten():
    made = runtime(owner=())
    for number in range(20):
        link, at_us = LinkId(f"{number:04x}"), number * 3600 * SECOND
        made.set_links((link,), (), at_us)
        made.take_lease(lease(link=link), order(number + 1), at_us, at_us)
    assert len(made.owner.leases._tracks) == 2, "the link that is there, and the one that it took the place of just now"


def test_a_removed_link_is_not_forgotten_while_something_is_out_over_it():
    made, _ = lending(held=1, slots=0)
    made.take_lease(lease(probe=True), order(2), 10, 10)
    for look in (1, 2, 3):
        made.lend_answering(rid(3), L1, look * FORGET_US)
        made.set_links((), (), look * FORGET_US)
    assert made.counts().lent == 1
    assert told(made.lend_answered(rid(3), L1, LendResult(), 4 * FORGET_US)) == ["LendAnswered r3", "Finished r3"]
    made.set_links((), (), 5 * FORGET_US)
    assert list(made.owner.leases._tracks) == [LINK], "the time counts from when nothing was out"
    made.set_links((), (), 6 * FORGET_US)
    assert not made.owner.leases._tracks


def forgotten():
    """Return a runtime that has forgotten LINK, of which it last heard by order 6, and knows it anew; and what time it is."""
    made, _ = lending(held=1, slots=0)
    made.take_lease(cleared(), order(6), 10, 20)
    made.set_links((), (), 30)
    now_us = 30 + FORGET_US
    made.set_links((), (), now_us)
    assert not made.owner.leases._tracks
    return made, now_us


def test_an_old_lease_of_a_removed_link_is_refused_though_the_link_is_forgotten_and_added_again():
    made, now_us = forgotten()
    # by whatever basis it might live
    assert of(made.take_lease(lease(), order(5), now_us, now_us), LeaseRefused).reason == "not_an_owner"
    for outputs in (
        made.set_links((LINK,), (), now_us + 1),
        made.take_lease(changed(), order(6), now_us, now_us + 2),
    ):
        assert not facts(outputs, LeaseUpdated)
    made.submit(new(9), now_us + 3)
    assert "Lend r9" in told(made.take_lease(lease(), order(7), now_us, now_us + 3))


def test_an_old_word_on_a_removed_link_is_none_though_the_link_is_forgotten_and_added_again():
    made, now_us = forgotten()
    made.set_links((LINK,), (), now_us + 1)
    for version, faster in ((6, False), (7, True)):
        made.take_word(word(LinkPriced, faster=True), order(version), now_us + 2)
        assert made.owner.leases.track(LINK).faster == faster


def test_an_engine_that_is_down_does_not_stop_lending():
    made, _ = lending(slots=1)
    made.set_engine_up(False, 20)
    assert "Lend r4" in told(made.lend_answered(rid(3), L1, LendResult(), 21))
    assert made.engine_finished(rid(1), EngineResult(), 22) == []

"""Given a helper that fails or falls silent, when it goes on so, then it gets no more, and what it holds is taken back."""

import pytest

from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    BreakerChanged,
    CutOff,
    Due,
    HeartbeatMissed,
    HeartbeatSeen,
    LeaseChecked,
    LeaseGranted,
    LeaseStalled,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    LinkAdded,
    LinkRemoved,
    RelayRefused,
    SettingChanged,
    StillRunning,
)
from domain.ids import NodeId
from domain.master import slots
from domain.master.breaker import quarantine_us
from domain.master.timers import next_due_us
from tests.support.history import borrow, finished, held, lend, link, registered
from tests.support.stories import ON, Story, leases, verdict

KEY = slots.key_of(ON)
LOST = {"reason": "helper_failed", "may_have_run": True}


def sent(story: Story, request: str, on: LinkAdded = ON) -> None:
    story.recorder.state(on.owner, lend(Lent, request, on, work=64_000_000, out=1, waited_us=1))


def fail(story: Story, request: str, on: LinkAdded = ON, kind=CutOff, **fields) -> None:
    """Let a lend fail; its request is held again and may not be lent any more."""
    sent(story, request, on)
    story.recorder.state(on.owner, lend(kind, request, on, **(fields or LOST)))
    story.recorder.state(on.owner, held(request, lendable=False))


def answer(story: Story, request: str, on: LinkAdded = ON, status: int = 200) -> None:
    sent(story, request, on)
    story.recorder.state(on.owner, lend(LendAnswered, request, on, status=status, service_us=1_000_000))


def breakers(decisions) -> list[tuple[str, int, int]]:
    return [(d.state, d.failures, d.quarantine_us // 1_000_000) for d in decisions if isinstance(d, BreakerChanged)]


# ---- the breaker -----------------------------------------------------------------------------------------------------


def test_after_one_failure_a_helper_has_one_slot_until_it_completes_a_request():
    story = Story()
    assert leases(story.burst(20)) == [("LeaseGranted", "b", 2)]
    fail(story, "req_2")
    decisions = story.look()
    assert (leases(decisions), breakers(decisions)) == ([("LeaseChanged", "b", 1)], [])
    answer(story, "req_3")
    assert leases(story.look()) == [("LeaseChanged", "b", 2)]


def test_after_two_failures_without_a_completion_it_is_quarantined_and_loses_its_lease():
    story = Story()
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_3")
    decisions = story.look()
    assert breakers(decisions) == [("opened", 2, 4)]  # of 5 s a moment is gone
    assert leases(decisions) == [("LeaseCleared", "b", 0)]
    assert verdict(decisions).code == "quarantined"


def test_the_end_of_a_quarantine_half_opens_it_at_that_moment_with_one_slot_and_a_completion_closes_it():
    story = Story()
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_3")
    story.look()
    failed_us = story.master.state.traffic[KEY].failed_us
    assert next_due_us(story.master.state) == failed_us + 5_000_000
    decisions = story.ring()
    assert breakers(decisions) == [("half_open", 2, 0)]
    assert leases(decisions) == [("LeaseGranted", "b", 1)]
    answer(story, "req_4")
    decisions = story.look()
    assert breakers(decisions) == [("closed", 0, 0)]
    assert leases(decisions)[-1] == ("LeaseChanged", "b", 2)


def test_a_failure_while_half_open_shuts_it_for_twice_as_long_up_to_two_minutes():
    story = Story()
    story.burst(40)
    fail(story, "req_2")
    fail(story, "req_3")
    story.look()
    shut = []
    for i in range(4, 12):
        story.ring()
        fail(story, f"req_{i}")
        shut += [seconds for state, _, seconds in breakers(story.look()) if state == "opened"]
    assert shut[:4] == [9, 19, 39, 79]
    assert set(shut[4:]) == {119}
    assert [quarantine_us(failures) // 1_000_000 for failures in (0, 1, 2, 3, 7, 10**6)] == [0, 0, 5, 10, 120, 120]


def test_one_failing_helper_leaves_the_backlog_to_the_others():
    story = Story("a", "b", "c", links=(ON, link("a", "c")))
    story.burst(50)
    lost = 0
    for i in range(2, 40):
        if not any(lease.event.helper == "b" for lease in story.master.state.leases.values()):
            break
        fail(story, f"req_{i}")
        lost += 1
        story.look()
    assert lost == 2
    assert verdict(story.look_again(), "c").outcome == "granted"


@pytest.mark.parametrize(
    ("kind", "fields", "counts"),
    [
        (CutOff, {"reason": "answer_late", "may_have_run": True}, True),
        (CutOff, {"reason": "client_gone", "may_have_run": True}, False),
        (RelayRefused, {"reason": "helper_unreachable"}, True),
        (RelayRefused, {"reason": "forward_failed"}, True),
        (RelayRefused, {"reason": "no_live_lease"}, False),
        (LendAnswered, {"status": 502, "service_us": 1}, True),
        (LendAnswered, {"status": 422, "service_us": 1}, False),
        (LendReturned, {"reason": "own_work"}, False),
        (LendBusy, {}, False),
    ],
)
def test_what_speaks_against_a_helper_and_what_does_not(kind, fields, counts):
    story = Story()
    story.burst(20)
    for i in (2, 3):
        sent(story, f"req_{i}")
        story.recorder.state("a", lend(kind, f"req_{i}", ON, **fields))
    assert bool(breakers(story.look())) == counts


def test_what_both_ends_say_of_one_failure_counts_once():
    story = Story()
    story.burst(20)
    story.recorder.state("b", borrow(BorrowFinished, "req_2", ON, work=64_000_000, service_us=1, status=502, ok=False))
    fail(story, "req_2")
    assert breakers(story.look()) == []


def test_requests_that_run_out_of_time_by_one_outage_are_one_failure():
    story = Story()
    story.burst(20)
    for request in ("req_2", "req_3"):
        sent(story, request)
    for request in ("req_2", "req_3"):
        story.wait(20_000_000)
        story.recorder.state(ON.owner, lend(CutOff, request, ON, reason="answer_late", may_have_run=True))
        story.recorder.state(ON.owner, held(request, lendable=False))
    assert breakers(story.look()) == []
    fail(story, "req_4")  # lent after the others had failed
    assert [each[:2] for each in breakers(story.look())] == [("opened", 2)]


def test_two_requests_that_one_engine_takes_with_it_are_one_failure_by_its_helper_and_two_by_their_owners():
    story = Story()
    story.burst(20)
    for request in ("req_2", "req_3"):
        sent(story, request)
    for request in ("req_2", "req_3"):
        said = borrow(BorrowFinished, request, ON, work=64_000_000, service_us=1, status=502, ok=False)
        story.recorder.state("b", said)
    assert breakers(story.look()) == []
    for request in ("req_2", "req_3"):
        story.recorder.state(ON.owner, lend(CutOff, request, ON, **LOST))
    assert [each[:2] for each in breakers(story.look())] == [("opened", 2)]


def test_a_helper_that_says_itself_that_it_fails_is_believed():
    story = Story()
    story.burst(20)
    for i in (2, 3):
        said = borrow(BorrowFinished, f"req_{i}", ON, work=64_000_000, service_us=1, status=500, ok=False)
        story.recorder.state("b", said)
    story.recorder.state("a", held("req_more"))
    assert breakers(story.look())[0][0] == "opened"


def test_owners_that_leave_do_not_speak_against_a_helper():
    story = Story()
    story.burst(20)
    for i in (2, 3, 4):
        said = borrow(
            BorrowFinished, f"req_{i}", ON, work=64_000_000, service_us=1, status=502, ok=False, owner_gone=True
        )
        story.recorder.state("b", said)
    story.recorder.state("a", held("req_more"))
    assert breakers(story.look()) == []


def test_a_helper_that_only_says_that_all_went_well_stays_shut():
    story = Story()
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_3")
    for i in range(3):
        said = borrow(BorrowFinished, f"req_x{i}", ON, work=64_000_000, service_us=1, status=200, ok=True)
        story.recorder.state("b", said)
    assert breakers(story.look())[-1][0] == "opened"


def test_failures_of_two_owners_add_up_and_an_answer_to_either_is_a_completion():
    other = link("c", "b")
    story = Story("a", "b", "c", links=(ON, other))
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_c1", other)
    assert breakers(story.look())[-1][:2] == ("opened", 2)
    answer(story, "req_c2", other)
    assert breakers(story.look()) == [("closed", 0, 0)]


def test_the_failure_of_one_owner_halves_no_other_once_the_helper_has_answered():
    other = link("c", "b")
    story = Story("a", "b", "c", links=(ON, other))
    sent(story, "req_a")
    story.recorder.state("a", lend(CutOff, "req_a", ON, **LOST))
    story.recorder.state("c", finished("req_fit_c", service_us=1_000_000))
    for i in range(20):
        story.recorder.state("c", held(f"req_c{i}"))
    story.look()
    assert verdict(story.look_again(), owner="c").slots == 1
    answer(story, "req_c1", other)
    story.recorder.state("c", finished("req_c1", helper="b"))
    assert leases(story.look())[-1] == ("LeaseChanged", "b", 2)


def test_the_slot_of_a_half_open_helper_is_first_for_an_owner_whose_own_lends_did_not_fail():
    other = link("c", "b")
    story = Story("a", "b", "c", links=(ON, other))
    story.recorder.state("c", finished("req_fit_c", service_us=1_000_000))
    for i in range(20):
        story.recorder.state("c", held(f"req_c{i}"))
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_3")
    assert breakers(story.look())[0][:2] == ("opened", 2)
    while not breakers(decisions := story.ring()):
        pass
    assert breakers(decisions) == [("half_open", 2, 0)]
    assert [(d.owner, d.slots) for d in decisions if isinstance(d, LeaseGranted)] == [("c", 1)]  # a comes before c
    answer(story, "req_c1", other)
    assert breakers(story.look()) == [("closed", 0, 0)]
    fail(story, "req_4")
    assert breakers(story.look()) == []  # the third of a's, the first since somebody was answered


def test_a_helper_that_nobody_else_wants_is_tried_again_by_the_owner_whose_lends_failed():
    other = link("c", "b")
    story = Story("a", "b", "c", links=(ON, other))
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_3")
    story.look()
    while not breakers(decisions := story.ring()):
        pass
    assert [(d.owner, d.slots) for d in decisions if isinstance(d, LeaseGranted)] == [("a", 1)]


def test_a_process_that_begins_anew_begins_without_failures():
    story = Story()
    story.burst(20)
    fail(story, "req_2")
    fail(story, "req_3")
    story.look()
    story.recorder.restart("b")
    story.recorder.state("b", registered())
    decisions = story.look()
    assert breakers(decisions) == [("closed", 0, 0)]
    assert leases(decisions)[-1] == ("LeaseGranted", "b", 1)  # its own last lends failed, for this owner


def test_nobody_shuts_a_helper_that_he_has_no_link_to():
    story = Story("a", "b", "x")
    story.burst(20)
    stranger = link("x", "b")
    for i in range(5):
        fail(story, f"req_x{i}", stranger)
        fail(story, f"req_y{i}", ON.__class__(**{**{f: getattr(ON, f) for f in ON.__struct_fields__}, "owner": "x"}))
    assert breakers(story.look()) == []
    assert not story.master.state.breakers


def test_a_quarantined_helper_is_not_probed():
    story = Story(fit_us=0)
    story.wait(60_000_000)
    assert verdict(story.burst(10)).outcome == "probe"
    fail(story, "req_2")
    fail(story, "req_3")
    found = verdict(story.look())
    assert (found.outcome, found.code) == ("skipped", "quarantined")


# ---- the stall check -------------------------------------------------------------------------------------------------


def stalled(links=(ON,)) -> Story:
    """Something is out, and a helper began it; nothing more is said."""
    story = Story(links=links)
    story.burst(3)
    sent(story, "req_2")
    story.recorder.state("b", borrow(BorrowAccepted, "req_2", ON, position=0))
    story.recorder.state("b", borrow(BorrowStarted, "req_2", ON))
    story.look()
    return story


def words(decisions) -> list[LeaseChecked | LeaseStalled]:
    return [d for d in decisions if isinstance(d, LeaseChecked | LeaseStalled)]


def until_checked(story: Story) -> LeaseChecked:
    for _ in range(20):
        said = words(story.ring())
        if said:
            assert isinstance(said[0], LeaseChecked)
            return said[0]
    raise AssertionError("nobody asked")


def test_a_helper_that_is_silent_about_lent_work_for_three_minutes_is_asked_once():
    story = stalled()
    asked = until_checked(story)
    assert (asked.link, asked.helper, asked.quiet_us) == (ON.link, "b", 180_000_000)
    assert words(story.look()) == []


def test_the_first_alarm_after_three_minutes_without_a_word_is_enough_to_ask():
    story = stalled()
    while (next_due_us(story.master.state) or 0) - story.master.state.now_us < 100_000_000:
        assert words(story.ring()) == []  # what comes sooner is for the owner
    assert [type(word) for word in words(story.ring())] == [LeaseChecked]


def test_one_that_does_not_answer_in_ten_seconds_has_stalled_and_is_asked_again_after_three_more_minutes():
    story = stalled()
    until_checked(story)
    at_us = story.master.state.now_us
    (said,) = words(story.ring())
    assert isinstance(said, LeaseStalled)
    assert story.master.state.now_us - at_us == 10_000_000
    until_checked(story)  # what was being answered stays out, and may have stopped since
    assert story.master.state.now_us - at_us == 190_000_000


def test_what_an_offline_helper_goes_on_to_answer_has_stalled_again_when_nothing_changes():
    story = stalled()
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("b"), silent_us=10_000_000))
    story.look()
    rung = [(story.master.state.now_us, word) for _ in range(30) for word in words(story.ring())]
    assert {type(word) for _, word in rung} == {LeaseStalled}
    assert rung[1][0] - rung[0][0] == 180_000_000


def test_an_owner_that_is_silent_is_not_told_again_of_a_stall():
    story = stalled()
    until_checked(story)
    assert [type(word) for word in words(story.ring())] == [LeaseStalled]
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("a"), silent_us=3_000_000))
    assert words(story.look()) == []
    assert next_due_us(story.master.state) is None


def test_one_that_answers_keeps_its_requests_and_is_asked_again_after_three_more_minutes():
    story = stalled()
    until_checked(story)
    story.recorder.state("b", borrow(StillRunning, "req_2", ON, running_us=180_000_000), after_us=5_000_000)
    story.look()
    answered_us = story.master.state.now_us
    until_checked(story)
    assert story.master.state.now_us - answered_us == 180_000_000


def test_a_helper_that_the_master_does_not_hear_is_not_asked_nor_said_to_have_stalled_before_it_can_answer():
    story = stalled()
    until_checked(story)
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("b"), silent_us=3_000_000))
    story.look()
    assert next_due_us(story.master.state) is None
    story.recorder.observe(1, Due(elapsed_us=50_000_000, since_us=story.master.state.now_us), after_us=50_000_000)
    assert words(story.look()) == []
    assert story.master.state.traffic[f"a>b>{ON.link}"].checked_us
    story.recorder.observe(1, HeartbeatSeen(node=NodeId("b")))
    asked = words(story.look())  # anew, since it may not know of the question
    assert [type(word) for word in asked] == [LeaseChecked]
    at_us = story.master.state.now_us
    assert [type(word) for word in words(story.ring())] == [LeaseStalled]
    assert story.master.state.now_us - at_us == 10_000_000


def test_a_helper_that_is_offline_is_not_asked_and_has_stalled_when_it_would_have_been():
    story = stalled()
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("b"), silent_us=10_000_000))
    assert words(story.look()) == []
    rung: list[LeaseChecked | LeaseStalled] = []
    for _ in range(20):
        rung += words(story.ring())
        if rung:
            break
    assert [type(word) for word in rung] == [LeaseStalled]
    assert rung[0].quiet_us >= 180_000_000


@pytest.mark.parametrize("end", ["answered", "cut_off"])
def test_where_nothing_is_out_nobody_is_asked(end):
    story = stalled()
    story.recorder.state(
        "a",
        lend(LendAnswered, "req_2", ON, status=200, service_us=1)
        if end == "answered"
        else lend(CutOff, "req_2", ON, **LOST),
    )
    story.look()
    assert next_due_us(story.master.state) is None


def test_a_change_in_what_is_out_starts_the_clock_anew():
    story = stalled()
    story.wait(170_000_000)
    sent(story, "req_9")
    story.recorder.state("b", borrow(BorrowReturned, "req_9", ON, reason="own_work", after_arrival=True))
    story.look()
    changed_us = story.master.state.now_us
    until_checked(story)
    assert story.master.state.now_us - changed_us == 180_000_000


def test_the_time_until_a_helper_is_asked_is_a_setting_that_holds_at_once():
    story = stalled()
    story.recorder.decree(SettingChanged(name="cluster.offload_lent_stall_timeout", value=20_000_000))
    story.recorder.state("a", finished("req_0"))
    story.look()
    assert until_checked(story).quiet_us == 20_000_000


def test_a_link_that_was_removed_is_still_watched_while_something_is_out_over_it():
    story = stalled()
    story.recorder.decree(LinkRemoved(link=ON.link, owner=NodeId("a"), owner_model=ON.owner_model))
    story.look()
    assert until_checked(story).link == ON.link

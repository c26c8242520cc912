"""Given a linked helper that nobody measured, when it idles and cannot hurt, then it gets one request to be measured by."""

import pytest

from domain.events import (
    BorrowFinished,
    LeaseChanged,
    LeaseGranted,
    LendAnswered,
    Lent,
    Loaded,
    LoadStarted,
    SettingChanged,
)
from domain.master.timers import next_due_us
from tests.support.history import borrow, finished, held, lend, link, registered, started
from tests.support.stories import ON, K, M, Story, leases, verdict

COLD = link("a", "b", load_if_unloaded=True)


def unpriced(*, idle_us: int = 60_000_000) -> Story:
    """Neither owner nor helper was ever measured, and the helper has its model in."""
    story = Story(fit_us=0)
    story.wait(idle_us)
    return story


def test_an_idle_helper_that_was_not_chosen_gets_one_request_and_the_code_says_why_it_was_not_chosen():
    decisions = unpriced().burst(10)
    found = verdict(decisions)
    assert (found.outcome, found.code, found.slots) == ("probe", "service_unpriced", 1)
    granted = next(d for d in decisions if isinstance(d, LeaseGranted))
    assert (granted.slots, granted.probe, granted.reason) == (1, True, "probe")
    assert (granted.job_us, granted.owner_job_us, granted.work) == (0, 0, 0)


def test_a_loaded_helper_whose_answer_would_come_in_time_is_chosen_and_needs_no_probe():
    story = Story()
    story.wait(60_000_000)
    assert verdict(story.burst(10)).outcome == "granted"


def test_a_helper_whose_answer_would_come_after_the_drain_gets_no_probe():
    story = Story()
    story.recorder.state("b", finished("req_b", service_us=60_000_000))
    story.wait(60_000_000)
    found = verdict(story.burst(6))
    assert (found.outcome, found.code, found.probe_in_us) == ("skipped", "cost_rejected", -1)


def test_a_helper_that_is_measured_often_enough_gets_no_probe():
    story = unpriced()
    for i in range(3):
        story.recorder.state("b", finished(f"req_b{i}"))
    story.wait(60_000_000)
    found = verdict(story.burst(10))
    assert (found.outcome, found.code, found.samples) == ("skipped", "owner_unpriced", 3)


def test_fewer_samples_are_enough_where_the_setting_says_so():
    story = unpriced()
    story.recorder.decree(SettingChanged(name="cluster.scheduling_min_samples", value=2))
    for i in range(2):
        story.recorder.state("b", finished(f"req_b{i}"))
    story.wait(60_000_000)
    assert verdict(story.burst(10)).outcome == "skipped"


def test_a_probe_that_waits_for_idleness_alone_says_how_long_and_comes_at_its_moment():
    story = unpriced(idle_us=1_000_000)
    story.recorder.state("b", finished("req_b"))
    found = verdict(story.burst(10))
    assert found.outcome == "skipped"
    assert 0 < found.probe_in_us < 5_000_000
    state = story.master.state
    assert next_due_us(state) == state.now_us + found.probe_in_us
    decisions = story.ring()
    assert [d.trigger for d in decisions if hasattr(d, "trigger")] == ["probe_due"]
    assert verdict(decisions).outcome == "probe"


def test_the_time_to_idle_is_a_setting_that_holds_at_once():
    story = unpriced(idle_us=1_000_000)
    story.recorder.state("b", finished("req_b"))
    story.burst(10)
    story.recorder.decree(SettingChanged(name="cluster.offload_probe_idle", value=1_000))
    story.recorder.state("a", held("req_more"))
    assert verdict(story.look()).outcome == "probe"


def test_own_work_counts_as_busy_and_borrowed_work_does_not():
    story = unpriced()
    story.burst(10)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state(
        "b", borrow(BorrowFinished, "req_2", ON, work=64_000_000, service_us=900_000, status=200, ok=True)
    )
    story.recorder.state("a", lend(LendAnswered, "req_2", ON, status=200, service_us=900_000))
    decisions = story.look()
    assert (verdict(decisions).outcome, verdict(decisions).samples) == ("probe", 1)
    story.recorder.state("b", started("req_own"))
    story.recorder.state("b", finished("req_own"))
    story.recorder.state("a", held("req_x"))
    assert verdict(story.look()).probe_in_us > 4_000_000


@pytest.mark.parametrize("cause", ["own", "restore", "borrowed"])
def test_a_load_for_itself_counts_as_busy_and_one_for_others_does_not(cause):
    story = unpriced()
    story.recorder.state("b", LoadStarted(model=M, cause=cause))
    story.recorder.state("b", Loaded(model=M, load_us=1_000, cause=cause))
    assert verdict(story.burst(10)).outcome == ("probe" if cause == "borrowed" else "skipped")


def test_a_helper_that_never_had_work_idles_since_its_registration():
    story = unpriced(idle_us=0)
    story.recorder.restart("b")
    story.recorder.state("b", registered(), after_us=60_000_000)
    found = verdict(story.burst(10))
    assert found.idle_us < 100_000
    assert found.probe_in_us == 5_000_000 - found.idle_us


# ---- with a switch ---------------------------------------------------------------------------------------------------


def cold(*, loads_us, idle_us) -> Story:
    story = Story(links=(COLD,))
    story.share("b", K, M, resident=K, loads_us=loads_us)
    story.wait(idle_us)
    return story


def test_a_helper_that_must_switch_has_to_idle_twelve_times_as_long():
    story = cold(loads_us={K: 4_000_000}, idle_us=30_000_000)
    found = verdict(story.burst(15))
    assert (found.code, found.outcome) == ("switch_unpriced", "skipped")
    assert 25_000_000 < found.probe_in_us < 30_000_000
    assert verdict(story.ring()).outcome == "probe"


def test_an_unmeasured_switch_is_taken_for_any_load_of_that_node():
    in_time, late = (cold(loads_us={K: load_us}, idle_us=100_000_000) for load_us in (4_000_000, 40_000_000))
    assert verdict(in_time.burst(15)).outcome == "probe"
    assert verdict(late.burst(15)).outcome == "skipped"


@pytest.mark.parametrize(("load_us", "outcome"), [(4_000_000, "probe"), (40_000_000, "skipped")])
def test_without_any_load_there_it_is_taken_for_the_owners_own(load_us, outcome):
    story = cold(loads_us=None, idle_us=0)
    story.recorder.state("a", Loaded(model=M, load_us=load_us, cause="own"))
    story.wait(100_000_000)
    assert verdict(story.burst(15)).outcome == outcome


@pytest.mark.parametrize(("count", "outcome"), [(50, "skipped"), (70, "probe")])
def test_where_nobody_ever_saw_a_load_the_drain_has_to_be_a_minute_away(count, outcome):
    found = verdict(cold(loads_us=None, idle_us=100_000_000).burst(count))
    assert (found.code, found.outcome) == ("switch_unpriced", outcome)


def test_an_unpriced_owner_may_probe_a_loaded_helper_and_no_other():
    warm = Story(fit_us=0)
    warm.wait(100_000_000)
    assert (verdict(warm.burst(5)).outcome, verdict(warm.look_again()).code) == ("probe", "service_unpriced")
    unloaded = Story(links=(COLD,), fit_us=0)
    unloaded.share("b", K, M, resident=K)
    unloaded.wait(100_000_000)
    assert verdict(unloaded.burst(5)).outcome == "skipped"


# ---- its lease -------------------------------------------------------------------------------------------------------


def test_a_probe_lease_becomes_a_plain_one_when_the_helper_is_chosen():
    story = unpriced()
    story.burst(10)
    story.recorder.state("a", finished("req_0"))
    changed = [d for d in story.look() if isinstance(d, LeaseChanged)]
    assert [(d.probe, d.slots, d.reason) for d in changed] == [(False, 2, "pays")]


def test_a_probe_lease_becomes_a_plain_one_of_the_same_slot_at_once():
    story = unpriced()
    story.recorder.state("b", finished("req_b", service_us=2_000_000))
    story.wait(60_000_000)
    assert leases(story.burst(10)) == [("LeaseGranted", "b", 1)]
    story.recorder.state("a", finished("req_0"))
    changed = [d for d in story.look() if isinstance(d, LeaseChanged)]
    assert [(d.probe, d.slots, d.reason) for d in changed] == [(False, 1, "pays")]


def test_a_probe_lease_lives_until_its_request_is_home():
    story = cold(loads_us={K: 20_000_000, M: 20_000_000}, idle_us=100_000_000)
    assert (verdict(story.burst(24)).outcome, verdict(story.look_again()).code) == ("probe", "cost_rejected")
    story.recorder.state("a", lend(Lent, "req_2", COLD, work=64_000_000, out=1, waited_us=1))
    for i in range(3, 20):
        story.recorder.state("a", finished(f"req_{i}"))
    decisions = story.look()
    assert (verdict(decisions).outcome, leases(decisions)) == ("skipped", [])
    story.recorder.state("a", lend(LendAnswered, "req_2", COLD, status=200, service_us=900_000))
    assert leases(story.look()) == [("LeaseCleared", "b", 0)]

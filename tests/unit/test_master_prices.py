"""Given what was measured and what runs, when the master prices, then by running jobs, measured pauses and settings as well."""

import pytest

from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BorrowStarted,
    Due,
    LeaseChanged,
    LeaseGranted,
    LendAnswered,
    Lent,
    LinkPriced,
    LinkRemoved,
    ModelInfo,
    OwnerPlanned,
    QueueSnapshot,
    Registered,
    SettingChanged,
    SettingStated,
)
from domain.master import pricing, slots
from domain.master.timers import next_due_us
from tests.support.history import borrow, finished, held, lend, link, registered, started
from tests.support.stories import ON, M, Story, leases, verdict

KEY = slots.key_of(ON)


def row(decisions) -> OwnerPlanned:
    return [d for d in decisions if isinstance(d, OwnerPlanned)][-1]


def hints(decisions) -> list[tuple[str, bool]]:
    return [(d.helper, d.faster) for d in decisions if isinstance(d, LinkPriced)]


def lent(story: Story, request: str) -> None:
    story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))


def begun(story: Story, request: str) -> None:
    story.recorder.state("b", borrow(BorrowAccepted, request, ON, position=0))
    story.recorder.state("b", borrow(BorrowStarted, request, ON))


def done(story: Story, request: str, *, after_us: int = 1_000_000) -> None:
    ended = borrow(BorrowFinished, request, ON, work=64_000_000, service_us=after_us, status=200, ok=True)
    story.recorder.state("b", ended, after_us=after_us)


# ---- running jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "job_us"), [(1, 4_000_000), (3, 2_000_000)])
def test_a_job_that_runs_over_its_price_is_one_more_sample_of_at_least_that_length(samples, job_us):
    story = Story()
    for i in range(samples - 1):
        story.recorder.state("a", finished(f"req_more{i}"))
    story.burst(10, in_engine=1)
    story.recorder.state("a", held("req_late", work=64_000_000), after_us=15_990_000)
    assert row(story.look()).owner_job_us == pytest.approx(
        job_us, rel=0.01
    )  # 16 s: a fourth, or an eighth, of it is left


def test_a_borrowed_job_that_runs_over_makes_a_helper_that_was_never_measured_as_dear_at_least():
    story = Story()
    story.burst(20)
    lent(story, "req_2")
    begun(story, "req_2")
    story.recorder.state("a", held("req_late"), after_us=12_000_000)
    assert verdict(story.look()).job_us == pytest.approx(12_000_000, rel=0.01)


def test_a_job_that_waits_inside_the_engine_is_not_late():
    story = Story()
    story.recorder.state("a", started("req_0"))
    story.recorder.state("a", started("req_1"))
    story.recorder.state("a", finished("req_0", service_us=30_000_000), after_us=30_000_000)
    story.recorder.state("a", held("req_2"), after_us=500_000)
    found = row(story.look())
    assert found.owner_job_us < 30_000_000
    assert found.drain_us - found.owner_job_us < found.owner_job_us  # only half a second of the second's time is gone


def test_a_job_of_unknown_size_says_nothing_by_running():
    story = Story()
    story.recorder.state("a", started("req_0", work=0))
    story.recorder.state("a", held("req_1"), after_us=30_000_000)
    assert row(story.look()).owner_job_us == pytest.approx(1_000_000, rel=0.01)


# ---- the turnaround --------------------------------------------------------------------------------------------------


def test_the_pause_between_two_lent_requests_is_measured_and_covered_with_slots():
    story = Story()
    for i in range(4):
        story.recorder.state("b", finished(f"req_b{i}", service_us=1_100_000))
    assert leases(story.burst(60, in_engine=0)) == [("LeaseGranted", "b", 1)]
    for i in range(2, 6):
        lent(story, f"req_{i}")
        story.wait(1_600_000 if i > 2 else 0)
        begun(story, f"req_{i}")
        done(story, f"req_{i}")
        story.recorder.state("a", lend(LendAnswered, f"req_{i}", ON, status=200, service_us=1_000_000))
    turns = story.master.state.traffic[KEY].turns_us if story.look() else []
    assert len(turns) == 3
    assert all(1_600_000 < turn < 1_700_000 for turn in turns)
    assert pricing.turnaround_us(story.master.state, KEY) == turns[1]
    assert story.master.state.leases[ON.link].event.slots == 2


@pytest.mark.parametrize("disturbed", ["owner_dry", "two_out", "own_work", "long"])
def test_a_pause_with_another_cause_teaches_nothing_or_no_more_than_five_seconds(disturbed):
    story = Story()
    story.burst(4 if disturbed == "owner_dry" else 60)
    for request in ("req_2", "req_3") if disturbed == "two_out" else ("req_2",):
        lent(story, request)
        begun(story, request)
    if disturbed == "owner_dry":
        story.recorder.state("a", started("req_3"))
        story.recorder.state("a", held("req_4"))
    done(story, "req_2")
    if disturbed == "owner_dry":
        story.recorder.state("a", started("req_4"))
        story.recorder.state("a", held("req_5"), after_us=3_000_000)
    if disturbed == "own_work":
        story.recorder.state("b", started("req_own"), after_us=1_000_000)
    lent(story, "req_5")
    story.wait(60_000_000 if disturbed == "long" else 100_000)
    begun(story, "req_5")
    story.look()
    turns = story.master.state.traffic[KEY].turns_us
    assert turns == ([5_000_000] if disturbed == "long" else [])


# ---- hints -----------------------------------------------------------------------------------------------------------


def measured(helper_us: int, *, runs: int = 3) -> Story:
    story = Story()
    for i in range(2):
        story.recorder.state("a", finished(f"req_a{i}"))
    for i in range(runs):
        story.recorder.state("b", finished(f"req_b{i}", service_us=helper_us))
    return story


def test_an_owner_is_told_once_that_a_measured_helper_is_faster():
    story = measured(500_000)
    assert hints(story.look()) == [("b", True)]
    story.recorder.state("b", finished("req_b9", service_us=500_000))
    assert hints(story.look()) == []


@pytest.mark.parametrize(("helper_us", "runs"), [(950_000, 9), (500_000, 2)])
def test_one_that_is_hardly_faster_or_hardly_measured_is_not_called_so(helper_us, runs):
    assert hints(measured(helper_us, runs=runs).look()) == []


def test_an_owner_is_told_when_the_helper_is_faster_no_more_and_not_before():
    story = measured(500_000)
    story.look()
    decisions = []
    for i in range(30):
        story.recorder.state("b", finished(f"req_s{i}", service_us=2_000_000))
        decisions += story.look()
    said = [(d.faster, d.job_us >= d.owner_job_us) for d in decisions if isinstance(d, LinkPriced)]
    assert said == [(False, True)]


def test_a_new_link_between_measured_models_is_priced_at_once():
    story = Story(links=())
    for i in range(3):
        story.recorder.state("a", finished(f"req_a{i}"))
        story.recorder.state("b", finished(f"req_b{i}", service_us=500_000))
    story.look()
    story.recorder.decree(ON)
    assert hints(story.look()) == [("b", True)]


def test_an_owner_that_begins_anew_is_told_again():
    story = measured(500_000)
    story.look()
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    assert hints(story.look()) == [("b", True)]


def test_what_was_said_of_a_removed_link_is_forgotten():
    story = measured(500_000)
    story.look()
    story.recorder.decree(LinkRemoved(link=ON.link, owner=ON.owner, owner_model=M))
    story.recorder.state("a", held("req_0"))
    story.look()
    story.recorder.decree(ON)
    assert hints(story.look()) == [("b", True)]


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_names_what_its_owner_has_to_know_of_the_helper():
    story = Story(links=(link("a", "b"),))
    story.recorder.restart("b")
    sees = ModelInfo(id=M, local_id="m", context=4096, capabilities=("vision",))
    story.recorder.state("b", Registered(url="http://h", models=(sees,), version="1", depth=2))
    story.recorder.restart("a")
    story.recorder.state("a", Registered(url="http://h", models=(sees,), version="1", depth=2))
    granted = next(d for d in story.burst(10) if isinstance(d, LeaseGranted))
    assert (granted.context, granted.vision, granted.work) == (4096, True, 64_000_000)
    assert granted.owner_job_us == pytest.approx(1_000_000, rel=0.01)
    assert granted.ready_us == pricing.TURNAROUND_US


def test_a_lease_that_pays_no_more_is_narrowed_to_what_is_on_its_way_and_cleared_once_the_helper_has_it():
    story = Story()
    story.burst(10)
    lent(story, "req_2")
    for i in range(3, 9):
        story.recorder.state("a", finished(f"req_{i}"))
    story.recorder.state("a", finished("req_0"))
    story.recorder.state("a", finished("req_1"))
    changed = [d for d in story.look() if isinstance(d, LeaseChanged)]
    assert [(d.slots, d.reason) for d in changed] == [(1, "cost_rejected")]
    begun(story, "req_2")
    story.recorder.state("a", QueueSnapshot(model=M, held=1, in_engine=0, lent=1))
    assert leases(story.look())[-1] == ("LeaseCleared", "b", 0)


def test_a_lease_that_pays_no_more_is_not_kept_for_what_the_helper_already_works_on():
    story = Story()
    story.burst(10)
    lent(story, "req_2")
    begun(story, "req_2")
    for i in (*range(3, 9), 0, 1):
        story.recorder.state("a", finished(f"req_{i}"))
    assert leases(story.look())[-1] == ("LeaseCleared", "b", 0)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SettingChanged, SettingStated])
def test_a_lease_lives_as_long_as_the_setting_says_from_the_next_plan_on(kind):
    story = Story()
    story.burst(20)
    story.recorder.decree(kind(name="cluster.offload_lease_ttl", value=9_000_000))
    changed = [d for d in story.look() if isinstance(d, LeaseChanged)]
    assert [d.ttl_us for d in changed] == [9_000_000]


def test_what_an_operator_set_goes_before_what_the_file_states():
    story = Story()
    story.recorder.decree(SettingChanged(name="cluster.offload_lease_ttl", value=9_000_000))
    story.recorder.decree(SettingStated(name="cluster.offload_lease_ttl", value=60_000_000))
    granted = next(d for d in story.burst(20) if isinstance(d, LeaseGranted))
    assert granted.ttl_us == 9_000_000


def test_an_owner_is_planned_again_as_often_as_the_setting_says():
    story = Story()
    story.recorder.state("b", held("req_own"))
    story.burst(3)
    story.recorder.decree(SettingChanged(name="cluster.scheduling_refresh_interval", value=2_000_000))
    story.look()
    state = story.master.state
    assert next_due_us(state) == state.now_us + 2_000_000
    assert row(story.ring()).trigger == "tick"


def test_the_order_of_an_alarm_and_of_the_setting_that_it_depends_on_does_not_show():
    ledgers = []
    for control_last in (False, True):
        story = Story()
        story.master.control_last = control_last
        story.recorder.state("b", held("req_own"))
        story.burst(3)
        story.recorder.state("a", QueueSnapshot(model=M, held=1, in_engine=2, lent=0), after_us=5_000_000)
        story.look()
        story.recorder.decree(SettingChanged(name="cluster.scheduling_refresh_interval", value=1_000_000))
        story.recorder.observe(1, Due(elapsed_us=1), after_us=2_000_000)
        assert row(story.look()).trigger == "tick"
        ledgers.append(story.master.commits)
    assert ledgers[0] == ledgers[1]

"""Given facts and links, when the master looks, then these leases with these reasons."""

import msgspec
import pytest

from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowFinished,
    Cancelled,
    Draining,
    HeartbeatMissed,
    HeartbeatSeen,
    LeaseGranted,
    LendAnswered,
    LendReturned,
    Lent,
    LinkRemoved,
    LoadFailed,
    ModelInfo,
    NodeHealthChanged,
    NodeRetired,
    NodeSnapshot,
    NotAccepting,
    OwnerPlanned,
    QueueSnapshot,
    Registered,
    RequestOrphaned,
    RequestPresumedLost,
    SettingChanged,
    SettingCleared,
    SettingStated,
    SettingUnstated,
)
from domain.ids import ModelId, NodeId, RequestId
from domain.master import slots
from tests.support.history import borrow, finished, held, lend, link, registered
from tests.support.stories import ON, M, Story, leases, verdict


def test_a_deep_backlog_gives_an_equal_helper_two_slots_and_says_what_it_saves():
    story = Story()
    decisions = story.burst(10)
    assert leases(decisions) == [("LeaseGranted", "b", 2)]
    row = decisions[0]
    assert isinstance(row, OwnerPlanned)
    assert (row.held, row.lendable, row.in_engine, row.trigger) == (8, 8, 2, "enqueued")
    assert row.drain_us == pytest.approx(10_000_000, rel=0.01)
    assert row.lent_drain_us == pytest.approx(5_000_000, rel=0.05)
    granted = decisions[1]
    assert isinstance(granted, LeaseGranted)
    assert granted.lease == "00010000-1-1"
    assert (granted.basis.node, granted.basis.incarnation, granted.basis.pseq) == ("a", "a-1", 12)
    assert granted.source == "owner_fallback"
    assert granted.gain_us > 10_000_000


def test_a_helper_slower_than_the_owner_gets_one_slot():
    story = Story()
    for i in range(4):
        story.recorder.state("b", finished(f"req_b{i}", service_us=2_000_000))
    assert leases(story.burst(10)) == [("LeaseGranted", "b", 1)]


def test_a_shallow_backlog_is_drained_alone_when_the_helper_is_slow():
    story = Story()
    for i in range(4):
        story.recorder.state("b", finished(f"req_b{i}", service_us=60_000_000))
    decisions = story.burst(4)
    assert leases(decisions) == []
    assert verdict(decisions).code == "cost_rejected"
    assert verdict(decisions).first_answer_us > 4_000_000


def test_a_backlog_without_any_measured_request_has_no_price():
    story = Story(fit_us=0)
    decisions = story.burst(10)
    assert leases(decisions) == []
    assert verdict(decisions).code == "service_unpriced"


def test_several_helpers_that_pay_get_a_lease_each():
    story = Story("a", "b", "c", links=(ON, link("a", "c")))
    assert sorted(leases(story.burst(10))) == [("LeaseGranted", "b", 2), ("LeaseGranted", "c", 2)]


def test_two_owners_share_a_helpers_depth_and_never_exceed_it():
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.recorder.state("c", finished("req_fitc"))
    assert leases(story.burst(10)) == [("LeaseGranted", "b", 2)]
    for i in range(8):
        story.recorder.state("c", held(f"req_c{i}", i + 1))
    decisions = story.look()
    assert leases(decisions) == []
    assert verdict(decisions).code == "helper_claimed"


def test_lending_within_the_lease_changes_nothing_until_a_third_of_its_life_has_passed():
    story = Story()
    story.burst(10)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("a", held("req_10", 8))
    assert leases(story.look()) == []
    story.recorder.state("a", QueueSnapshot(model=M, held=8, in_engine=2, lent=1), after_us=11_000_000)
    assert leases(story.look()) == [("LeaseChanged", "b", 2)]


def test_a_lease_is_cleared_when_nothing_is_held_any_more():
    story = Story()
    story.burst(3)
    story.recorder.state("a", Cancelled(request=RequestId("req_2"), model=M))
    decisions = story.look()
    assert leases(decisions) == [("LeaseCleared", "b", 0)]
    assert decisions[-1].reason == "nothing_lendable"  # type: ignore[union-attr]


def test_a_lease_outlives_the_backlog_while_what_was_lent_last_may_still_be_on_its_way():
    story = Story()
    story.burst(3)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    assert leases(story.look()) == []
    story.recorder.state("a", lend(LendAnswered, "req_2", ON, status=200, service_us=1_000_000))
    assert leases(story.look()) == [("LeaseCleared", "b", 0)]


def test_a_returned_request_is_never_lent_again_so_it_earns_no_lease():
    story = Story()
    story.burst(3)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("a", lend(LendReturned, "req_2", ON, reason="own_work"))
    story.recorder.state("a", held("req_2", lendable=False))
    decisions = story.look()
    assert leases(decisions) == [("LeaseCleared", "b", 0)]
    assert verdict(decisions).code == "nothing_lendable"


def test_what_is_out_occupies_its_slot_until_either_side_says_that_it_is_over():
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.recorder.state("c", finished("req_fitc"))
    story.burst(4)
    for request in ("req_2", "req_3"):
        story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
    assert leases(story.look()) == []  # nothing is left to lend, but the lease is what the helper knows the lends by
    for i in range(8):
        story.recorder.state("c", held(f"req_c{i}", i + 1))
    assert verdict(story.look()).code == "helper_claimed"
    for request in ("req_2", "req_3"):
        story.recorder.state(
            "b", borrow(BorrowFinished, request, ON, work=64_000_000, service_us=1_000_000, status=200, ok=True)
        )
    story.recorder.state("c", held("req_c9", 9))
    assert leases(story.look())[-1] == ("LeaseGranted", "b", 2)


def test_the_helpers_late_word_on_a_finished_request_frees_no_second_slot():
    story = Story()
    story.burst(10)
    use = f"a>b>{ON.link}"
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("a", lend(LendAnswered, "req_2", ON, status=200, service_us=5))
    story.recorder.state("b", borrow(BorrowAccepted, "req_2", ON, position=0))
    story.look()
    story.recorder.state("b", borrow(BorrowFinished, "req_2", ON, work=64_000_000, service_us=5, status=200, ok=True))
    story.look()
    assert use not in story.master.state.uses


@pytest.mark.parametrize(
    ("fact", "code"),
    [
        (NotAccepting(model=M, reason="own_work"), "helper_not_accepting"),
        (Draining(), "helper_not_accepting"),
        (held("req_own"), "helper_not_accepting"),
        (LoadFailed(model=M, cause="own", reason="exit 1"), "load_forbidden"),
    ],
)
def test_a_helper_that_cannot_take_work_is_skipped_with_the_reason(fact, code):
    story = Story()
    story.recorder.state("b", fact)
    decisions = story.burst(10)
    assert leases(decisions) == []
    assert verdict(decisions).code == code


def test_a_helper_that_accepts_again_is_planned_at_once():
    story = Story()
    story.recorder.state("b", NotAccepting(model=M, reason="own_work"))
    story.burst(10)
    story.recorder.state("b", Accepting(model=M))
    assert leases(story.look()) == [("LeaseGranted", "b", 2)]


def test_a_switch_without_a_measured_load_is_unpriced_and_with_one_is_weighed():
    flags = link("a", "b", load_if_unloaded=True)
    story = Story(links=(flags,))
    story.recorder.state("b", LoadFailed(model=M, cause="own", reason="idle"))
    decisions = story.burst(10)
    assert verdict(decisions).code == "switch_unpriced"


def test_a_helper_with_too_small_a_context_is_skipped():
    story = Story()
    story.recorder.restart("b")
    story.recorder.state("b", registered(context=32))
    assert verdict(story.burst(10)).code == "context_too_small"


def test_a_helper_that_never_registered_is_unknown():
    assert verdict(Story("a").burst(10)).code == "model_unknown"


def test_a_silent_helper_loses_its_lease_and_its_health_is_a_decision():
    story = Story()
    story.burst(10)
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("b"), silent_us=3_000_000))
    decisions = story.look()
    assert NodeHealthChanged(node=NodeId("b"), state="unhealthy", reason="silent for 3000000 us") in decisions
    assert leases(decisions) == [("LeaseCleared", "b", 0)]
    assert verdict(decisions).code == "node_silent"
    story.recorder.observe(1, HeartbeatSeen(node=NodeId("b")))
    decisions = story.look()
    assert [d.state for d in decisions if isinstance(d, NodeHealthChanged)] == ["healthy"]
    assert leases(decisions) == [("LeaseGranted", "b", 2)]


def test_an_owner_that_stays_silent_has_its_requests_presumed_lost():
    story = Story()
    story.burst(3)
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("a"), silent_us=10_000_000))
    lost = [d.request for d in story.look() if isinstance(d, RequestPresumedLost)]
    assert lost == ["req_0", "req_1", "req_2"]


def test_an_observation_of_another_term_is_ignored():
    story = Story()
    story.burst(10)
    story.recorder.observe(7, HeartbeatMissed(node=NodeId("b"), silent_us=3_000_000))
    assert story.look() == []


def test_what_an_ended_process_had_open_is_orphaned_once():
    story = Story()
    story.burst(4)
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    decisions = story.look()
    assert [d.request for d in decisions if isinstance(d, RequestOrphaned)] == ["req_0", "req_1", "req_2", "req_3"]
    assert leases(decisions) == [("LeaseCleared", "b", 0)]
    story.recorder.state("a", held("req_9"))
    assert not [d for d in story.look() if isinstance(d, RequestOrphaned)]


def test_a_retired_node_that_never_comes_back_has_its_requests_orphaned():
    story = Story()
    story.burst(3)
    story.recorder.decree(NodeRetired(node=NodeId("a")))
    assert len([d for d in story.look() if isinstance(d, RequestOrphaned)]) == 3


def test_facts_of_an_older_incarnation_are_refused_from_then_on():
    story = Story()
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    story.look()
    story.recorder.incarnation["a"], story.recorder.pseq["a"] = "a-1", 50
    story.recorder.state("a", held("req_old"))
    story.recorder.pseq["a"] = 0
    story.recorder.state("a", registered())
    story.look()
    assert story.master.state.nodes[NodeId("a")].incarnation == "a-2"
    assert "a/m" not in story.master.state.queues


def test_a_freed_helper_goes_at_once_to_the_owner_that_was_refused():
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.recorder.state("c", finished("req_fitc"))
    story.burst(4)
    for i in range(8):
        story.recorder.state("c", held(f"req_c{i}", i + 1))
    assert verdict(story.look()).code == "helper_claimed"
    for request in ("req_2", "req_3"):
        story.recorder.state("a", Cancelled(request=RequestId(request), model=M))
    assert leases(story.look()) == [("LeaseCleared", "b", 0), ("LeaseGranted", "b", 2)]


def test_after_a_gap_nothing_is_folded_until_the_missing_fact_or_a_snapshot_comes():
    story = Story()
    story.burst(10)
    story.recorder.pseq["a"] += 1
    story.recorder.state("a", held("req_x"))
    story.look()
    assert story.master.state.nodes[NodeId("a")].incomplete
    assert "req_x" not in story.master.state.queues["a/m"].held
    story.recorder.state("a", NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="gap"))
    decisions = story.look()
    assert story.master.state.queues["a/m"].held == {}
    assert leases(decisions) == [("LeaseCleared", "b", 0)]


def test_a_fact_stored_twice_or_thrice_is_folded_once():
    story = Story()
    story.recorder.state("a", finished("req_f2"))
    for _ in range(2):
        again = story.recorder.facts[-1]
        story.recorder.raw(again.subject, again.body)
    story.look()
    assert len(story.master.state.fits["a/m"].logs) == 2


def test_a_node_that_speaks_from_its_spool_is_not_planned_until_its_snapshot():
    story = Story()
    story.recorder.state("a", held("req_late"), late=True)
    assert verdict(story.look()).code == "history_incomplete"


def test_failures_teach_nothing():
    story = Story()
    story.recorder.state("b", borrow(BorrowFinished, "req_1", ON, work=64_000_000, service_us=5, status=503, ok=False))
    story.look()
    assert "b/m" not in story.master.state.fits


@pytest.mark.parametrize("status", [201, 400, 404, 499])
def test_an_own_answer_other_than_200_teaches_nothing(status):
    story = Story()
    before = list(story.master.state.fits["a/m"].services_us)
    story.recorder.state("a", msgspec.structs.replace(finished("req_1", service_us=5), status=status))
    story.look()
    assert story.master.state.fits["a/m"].services_us == before


def test_a_helper_that_begins_anew_has_nothing_of_what_was_out():
    story = Story()
    story.burst(10)
    for request in ("req_2", "req_3"):
        story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
        story.recorder.state("b", borrow(BorrowAccepted, request, ON, position=0))
    story.look()
    assert slots.count_open(story.master.state, slots.key_of(ON)) == 2
    story.recorder.restart("b")
    story.recorder.state("b", registered())
    found = verdict(story.look())
    assert (found.out, slots.count_open(story.master.state, slots.key_of(ON))) == (0, 0)


def test_a_removed_link_ends_its_lease_but_not_what_is_out():
    story = Story()
    story.burst(10)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.decree(LinkRemoved(link=ON.link, owner=NodeId("a"), owner_model=M))
    decisions = story.look()
    assert leases(decisions) == [("LeaseCleared", "b", 0)]
    assert decisions[-1].reason == "link_removed"  # type: ignore[union-attr]
    assert "req_2" in story.master.state.uses[f"a>b>{ON.link}"]


def test_a_changed_setting_plans_every_owner_with_work_again():
    story = Story()
    story.burst(10)
    story.recorder.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=3))
    assert [d.trigger for d in story.look() if isinstance(d, OwnerPlanned)] == ["link"]


def test_the_next_lease_is_as_wide_as_the_depth_that_was_set_whatever_the_helper_registered():
    story = Story()
    story.recorder.decree(SettingStated(name="cluster.scheduling_backend_depth", value=1))
    assert leases(story.burst(10)) == [("LeaseGranted", "b", 1)]
    story.recorder.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=2))
    assert leases(story.look()) == [("LeaseChanged", "b", 2)]
    story.recorder.decree(SettingCleared(name="cluster.scheduling_backend_depth"))
    assert leases(story.look()) == [("LeaseChanged", "b", 1)]
    story.recorder.decree(SettingUnstated(name="cluster.scheduling_backend_depth"))
    assert leases(story.look()) == [("LeaseChanged", "b", 2)]  # as registered


def test_a_node_cannot_speak_for_a_link_of_others():
    story = Story("a", "b", "x")
    story.burst(10)
    story.recorder.state("x", lend(Lent, "req_2", ON, work=1, out=1, waited_us=1))
    story.recorder.state("x", borrow(BorrowAccepted, "req_3", ON, position=0))
    story.recorder.state("a", held("req_11"))
    assert verdict(story.look()).out == 0


def test_verdicts_beyond_sixteen_are_counted_by_code():
    helpers = [f"h{i:02}" for i in range(20)]
    story = Story("a", *helpers, links=tuple(link("a", helper) for helper in helpers))
    row = story.burst(4)[0]
    assert isinstance(row, OwnerPlanned)
    assert len(row.verdicts) == 16
    assert sum(count for _, count in row.left_out) == 4


def test_models_of_one_node_are_planned_apart():
    both = Registered(
        url="http://a",
        models=(ModelInfo(id=M, local_id="m"), ModelInfo(id=ModelId("k"), local_id="k")),
        version="1",
        depth=2,
    )
    story = Story()
    story.recorder.restart("a")
    story.recorder.state("a", both)
    story.recorder.state("a", held("req_k", model="k"))
    assert not [d for d in story.look() if isinstance(d, OwnerPlanned) and d.model == "k"]


def test_a_helpers_price_is_its_own_from_the_set_number_of_samples_on():
    story = Story()
    story.recorder.decree(SettingChanged(name="cluster.scheduling_min_samples", value=2))
    for i in range(2):
        story.recorder.state("b", finished(f"req_b{i}"))
    assert verdict(story.burst(10)).source == "helper"

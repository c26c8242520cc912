"""Given what goes on for long or goes wrong, when the master looks, then it neither stops, nor spins, nor forgets."""

import pytest

from domain.events import (
    BorrowAccepted,
    Cancelled,
    Due,
    HeartbeatMissed,
    HeartbeatSeen,
    LeaseGranted,
    LendAnswered,
    Lent,
    LinkRemoved,
    ModelInfo,
    NodeEnrolled,
    NodeRetired,
    NodeSnapshot,
    OpenRequest,
    OwnerPlanned,
    QueueSnapshot,
    QueueState,
    Registered,
    RequestOrphaned,
    RequestPresumedLost,
)
from domain.events.commit import COMMIT_BYTES_MAX, encode_commit
from domain.ids import ModelId, NodeId, RequestId
from domain.master.decide import Head, decide
from domain.master.health import next_due_us
from domain.master.state import decode_state, encode_state
from domain.master.step import Range, after, commit, fold_into, replay
from services.master.alarm import Alarm
from tests.support.history import (
    borrow,
    finished,
    held,
    lend,
    link,
    registered,
    started,
)
from tests.support.stories import ON, M, Story, leases, verdict

A, B = NodeId("a"), NodeId("b")


# ---- timers ----------------------------------------------------------------------------------------------------------


def test_an_owner_that_has_drained_by_itself_has_no_timer():
    story = Story(links=(link("a", "b", "other"), ON))
    story.recorder.state("b", held("req_own"))
    story.burst(3)
    assert next_due_us(story.master.state) is not None
    story.recorder.state("a", started("req_2"))
    story.recorder.state("b", started("req_own"))
    story.look()
    assert next_due_us(story.master.state) is None


def test_an_owner_whose_links_are_gone_has_no_timer_though_it_holds_work():
    story = Story()
    story.burst(10)
    story.recorder.decree(LinkRemoved(link=ON.link, owner=A, owner_model=M))
    story.look()
    assert next_due_us(story.master.state) is None


def test_a_held_owner_is_planned_again_each_minute_and_a_due_moves_the_timer_on():
    story = Story()
    story.recorder.state("b", held("req_own"))
    story.burst(3)
    state = story.master.state
    for _ in range(3):
        at = next_due_us(state)
        assert at is not None
        story.recorder.observe(1, Due(elapsed_us=1), after_us=at - state.now_us - 1)
        assert story.look() == []
        story.recorder.observe(1, Due(elapsed_us=1), after_us=1)
        assert [d.trigger for d in story.look() if isinstance(d, OwnerPlanned)] == ["tick"]
        assert next_due_us(state) == at + 60_000_000


def test_the_alarm_rings_once_and_only_when_clock_and_domain_time_together_reach_the_timer():
    alarm = Alarm()
    assert alarm.rings(1_000, 61_000, 0) is None
    assert alarm.rings(31_000, 61_000, 30_000) is None  # half of it went by in facts, and is not counted twice
    assert alarm.rings(31_000, 61_000, 59_999) is None
    assert alarm.rings(31_000, 61_000, 60_000) == 30_000
    assert alarm.rings(31_000, 61_000, 60_500) is None
    assert alarm.rings(31_000, 61_000, 6_060_000) == 6_030_000  # it seems to be lost
    assert alarm.rings(61_000, None, 9_000_000) is None


def test_the_alarm_knows_how_long_it_is_until_the_timer():
    alarm = Alarm()
    alarm.rings(1_000, 61_000, 500_000)
    assert alarm.left_us(61_000, 500_000) == 60_000
    assert alarm.left_us(61_000, 540_000) == 20_000
    assert alarm.left_us(None, 540_000) == alarm.left_us(None, 0) > 1_000_000
    alarm.rings(1_000, 61_000, 560_000)
    assert alarm.left_us(61_000, 560_001) > 1_000_000  # it has rung


def test_an_alarm_moves_domain_time_by_what_stood_still_however_often_it_rings_and_whatever_came_in_between():
    story = Story()
    state = story.master.state
    since_us = state.now_us
    rung = Due(elapsed_us=180_000_000, since_us=since_us)
    story.recorder.state("a", held("req_1"), after_us=180_000_000)  # its stamp counts for a minute only
    story.recorder.observe(1, rung, after_us=1000)
    story.recorder.observe(1, rung, after_us=1000)
    story.look()
    assert state.now_us == since_us + 180_001_000


def test_an_alarm_moves_domain_time_by_ten_minutes_at_most_and_an_alarm_of_another_term_not_at_all():
    story = Story()
    state = story.master.state
    since_us = state.now_us
    story.recorder.observe(2, Due(elapsed_us=90_000_000, since_us=since_us), after_us=0)
    story.look()
    assert state.now_us == since_us
    story.recorder.observe(1, Due(elapsed_us=86_400_000_000, since_us=since_us), after_us=0)
    story.look()
    assert state.now_us == since_us + 600_000_000
    story.recorder.observe(1, Due(elapsed_us=0, since_us=10**17), after_us=0)  # ahead of all that was folded
    story.look()
    assert state.now_us == since_us + 600_000_000


def test_the_alarm_rings_on_the_way_to_a_timer_that_is_further_away_than_one_alarm_moves_time():
    alarm, hour_us = Alarm(), 3_600_000_000
    assert alarm.rings(0, hour_us, 0) is None
    assert alarm.left_us(hour_us, 0) == 600_000_000
    assert alarm.rings(0, hour_us, 599_999_999) is None
    assert alarm.rings(0, hour_us, 600_000_000) == 600_000_000
    assert alarm.rings(600_000_000, None, 600_000_001) is None


def test_domain_time_goes_on_after_the_servers_clock_was_set_back():
    story = Story()
    before_us = story.master.state.now_us
    story.recorder.state("a", QueueSnapshot(model=M, held=0, in_engine=0, lent=0), after_us=-3_600_000_000)
    story.look()
    assert story.master.state.now_us == before_us
    story.recorder.state("a", QueueSnapshot(model=M, held=0, in_engine=0, lent=0), after_us=5_000_000)
    story.look()
    assert story.master.state.now_us == before_us + 5_000_000


# ---- leases ----------------------------------------------------------------------------------------------------------


def two_owners() -> Story:
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.recorder.state("c", finished("req_fitc"))
    story.burst(10)
    return story


def test_a_lease_that_is_over_does_not_keep_another_owner_out():
    story = two_owners()
    story.recorder.state("c", held("req_c0"), after_us=32_000_000)
    assert verdict(story.look()).code == "helper_claimed"
    story.recorder.state("c", held("req_c1", 2), after_us=1_500_000)
    assert ("LeaseGranted", "b", 1) in leases(story.look())


def test_a_lease_kept_for_what_is_out_is_cleared_once_it_is_over():
    story = Story()
    story.burst(3)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    assert leases(story.look()) == []
    story.recorder.observe(1, Due(elapsed_us=1), after_us=34_000_000)
    assert leases(story.look()) == [("LeaseCleared", "b", 0)]
    assert next_due_us(story.master.state) == story.master.state.traffic[f"a>b>{ON.link}"].changed_us + 180_000_000
    story.recorder.state("a", lend(LendAnswered, "req_2", ON, status=200, service_us=1_000_000))
    story.look()
    assert next_due_us(story.master.state) is None


def test_what_is_out_over_a_removed_link_still_occupies_the_helper():
    story = two_owners()
    for request in ("req_2", "req_3"):
        story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.decree(LinkRemoved(link=ON.link, owner=A, owner_model=M))
    story.look()
    story.recorder.state("c", held("req_c0"))
    assert verdict(story.look()).code == "helper_claimed"
    for request in ("req_2", "req_3"):
        story.recorder.state("a", lend(LendAnswered, request, ON, status=200, service_us=1))
    story.recorder.state("c", held("req_c1", 2))
    assert ("LeaseGranted", "b", 1) in leases(story.look())
    assert story.master.state.control.gone == {}


def test_a_request_cancelled_while_it_is_lent_leaves_no_slot_behind():
    story = Story()
    story.burst(3)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("a", Cancelled(request=RequestId("req_2"), model=M))
    story.look()
    assert (story.master.state.uses, story.master.state.nodes[A].uses) == ({}, 0)


def test_what_an_owner_lent_that_the_helper_never_spoke_of_keeps_no_other_out_for_longer_than_a_minute():
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.recorder.state("c", finished("req_fit_c"))
    for request in ("req_1", "req_2"):
        story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
    for i in range(10):
        story.recorder.state("c", held(f"req_c{i}"))
    assert verdict(story.look(), owner="c").code == "helper_claimed"
    story.wait(60_000_000)
    story.recorder.state("c", held("req_c10"))
    assert verdict(story.look(), owner="c").outcome == "granted"


def test_what_a_retired_owner_had_lent_leaves_no_slot_behind():
    story = two_owners()
    for request in ("req_2", "req_3"):
        story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
    story.look()
    story.recorder.decree(NodeRetired(node=A))
    story.look()
    assert (story.master.state.uses, story.master.state.nodes[A].uses) == ({}, 0)


def test_an_owner_with_many_leases_gets_them_over_several_commits_each_of_which_fits_its_message():
    long = "ん" * 256
    names = [f"h{i:029}" for i in range(100)]
    story = Story("a", links=(), fit_us=0)
    infos = (ModelInfo(id=ModelId(long), local_id="m", context=8192),)
    for name in ["a", *names]:
        story.recorder.restart(name)
        story.recorder.state(name, Registered(url="http://" + "u" * 500, models=infos, version="1", depth=2))
    for name in names:
        story.recorder.decree(link("a", name, long))
    story.recorder.state("a", finished("req_fit", model=long))
    for i in range(2_000):
        story.recorder.state("a", held(f"req_{i:060}", i + 1, model=long))
    decisions = story.look()
    assert len({d.helper for d in decisions if isinstance(d, LeaseGranted)}) == 100
    assert [d.more for d in decisions if isinstance(d, OwnerPlanned)] == [True] * 4 + [False]
    assert max(len(encode_commit(made)) for made in story.master.commits) <= COMMIT_BYTES_MAX


# ---- lost requests ---------------------------------------------------------------------------------------------------


def many(story: Story, count: int, model: str = "m") -> None:
    for i in range(count):
        story.recorder.state("a", held(f"req_{i:060}", i + 1, model=model))
    story.look()


@pytest.mark.parametrize("model", ["m", "ん" * 256])
def test_all_of_a_silent_nodes_requests_are_presumed_lost_once_in_commits_that_fit(model: str):
    story = Story(fit_us=0, links=(link("a", "b", model),))
    story.recorder.restart("a")
    story.recorder.state("a", registered(model))
    many(story, 1_000, model)
    story.recorder.observe(1, HeartbeatMissed(node=A, silent_us=12_000_000))
    before = len(story.master.commits)
    lost = [d.request for d in story.look() if isinstance(d, RequestPresumedLost)]
    assert lost == [f"req_{i:060}" for i in range(1_000)]
    assert len(story.master.commits) - before > 1
    assert max(len(encode_commit(made)) for made in story.master.commits) <= COMMIT_BYTES_MAX
    assert story.master.state.presuming == {}


def test_a_node_that_is_back_has_no_more_requests_presumed_lost():
    story = Story(fit_us=0)
    many(story, 1_000)
    story.recorder.observe(1, HeartbeatMissed(node=A, silent_us=12_000_000))
    master = story.master
    fold_into(master.state, master.span, [], master.reader.facts(story.recorder.facts[story.seen :]))
    story.seen = len(story.recorder.facts)
    first = decide(master.state, Head(master.position.generation, master.position.version + 1))
    made = commit(master.state, master.position, master.span, first, with_state=False)
    master.position, master.span = after(made), Range()
    assert master.state.presuming
    story.recorder.observe(1, HeartbeatSeen(node=A))
    assert not [d for d in story.look() if isinstance(d, RequestPresumedLost)]


def test_a_thousand_orphans_are_said_once_each_and_survive_a_change_of_masters_in_between():
    story = Story(fit_us=0)
    many(story, 1_000)
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    said = [d.request for d in story.look() if isinstance(d, RequestOrphaned)]
    assert sorted(said) == [f"req_{i:060}" for i in range(1_000)]
    assert len(said) == len(set(said))
    assert story.master.state.orphans == {}


def test_a_claim_says_what_the_last_master_left_unsaid_and_replays():
    story = Story(fit_us=0)
    many(story, 1_000)
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    master = story.master
    fold_into(master.state, master.span, [], master.reader.facts(story.recorder.facts[story.seen :]))
    head = Head(master.position.generation, master.position.version + 1)
    made = commit(master.state, master.position, master.span, decide(master.state, head), with_state=False)
    position = after(made)
    copy = decode_state(encode_state(master.state))
    claimed = decide(master.state, Head(position.generation, position.version + 1), 0)
    claim = commit(master.state, position, Range(), claimed, with_state=True)
    assert claim.decisions
    assert replay(copy, position, claim, Range()) == claim


def test_two_nodes_requests_of_one_id_are_orphaned_apart():
    story = Story()
    story.recorder.state("a", held("req_same"))
    story.recorder.state("b", held("req_same"))
    for name in ("a", "b"):
        story.recorder.restart(name)
        story.recorder.state(name, registered())
    assert [(d.node, d.request) for d in story.look() if isinstance(d, RequestOrphaned)] == [
        ("a", "req_same"),
        ("b", "req_same"),
    ]


def test_a_retired_node_is_believed_nothing_more_until_it_is_enrolled_and_registers():
    story = Story()
    story.burst(3)
    story.recorder.decree(NodeRetired(node=A))
    assert len([d for d in story.look() if isinstance(d, RequestOrphaned)]) == 3
    story.recorder.state("a", lend(Lent, "req_2", ON, work=1, out=1, waited_us=1))
    story.recorder.state("a", held("req_2"))
    assert story.look() == []
    story.recorder.decree(NodeEnrolled(node=A, public_key="", url=""))
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    assert len([d for d in story.burst(3) if isinstance(d, OwnerPlanned)]) == 1


# ---- snapshots -------------------------------------------------------------------------------------------------------


def part(at: int, parts: int, *requests: str) -> NodeSnapshot:
    open_ = tuple(
        OpenRequest(request=RequestId(each), state="held", work=1_000_000, lendable=True) for each in requests
    )
    return NodeSnapshot(part=at, parts=parts, queues=(QueueState(model=M, requests=open_),), desks=(), reason="gap")


def test_after_a_gap_nothing_is_planned_before_the_snapshots_last_part():
    story = Story()
    story.burst(10)
    story.recorder.pseq["a"] += 3
    story.recorder.state("a", part(1, 2, "req_2"))
    decisions = story.look()
    assert not [d for d in decisions if isinstance(d, LeaseGranted)]
    assert story.master.state.nodes[A].late
    story.recorder.state("a", part(2, 2, "req_3"))
    story.look()
    assert sorted(story.master.state.queues["a/m"].held) == ["req_2", "req_3"]
    assert not story.master.state.nodes[A].late


def test_a_snapshot_tells_how_large_what_is_held_is_and_what_holds_an_image():
    story = Story()
    open_ = (
        OpenRequest(request=RequestId("req_2"), state="held", work=1, lendable=True, est_tokens=70, vision=True),
        OpenRequest(request=RequestId("req_3"), state="held", work=1, lendable=True),
    )
    queues = (QueueState(model=M, requests=open_),)
    story.recorder.state("a", NodeSnapshot(part=1, parts=1, queues=queues, desks=(), reason="overflow"))
    story.look()
    queue = story.master.state.queues["a/m"]
    assert [(job.tokens, job.vision) for _, job in sorted(queue.held.items())] == [(70, True), (0, False)]
    assert (queue.held_tokens, queue.sized, queue.unsized, queue.seeing) == (70, 1, 1, 1)


def test_a_snapshot_with_a_part_missing_replaces_nothing():
    story = Story()
    story.burst(10)
    story.recorder.state("a", part(1, 3, "req_2"))
    story.recorder.state("a", part(3, 3, "req_3"))
    story.look()
    assert len(story.master.state.queues["a/m"].held) == 8
    assert story.master.state.nodes[A].late


def test_a_request_that_stands_twice_in_a_snapshot_counts_once():
    story = Story()
    story.recorder.state("a", part(1, 1, "req_2", "req_2"))
    story.look()
    assert story.master.state.queues["a/m"].held_work == 1_000_000


def test_a_helpers_snapshot_does_not_free_a_slot_whose_request_is_still_on_its_way():
    story = Story()
    story.burst(10)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("b", NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="gap"))
    story.recorder.state("b", borrow(BorrowAccepted, "req_2", ON, position=0))
    story.recorder.state("a", held("req_10", 9))
    assert verdict(story.look()).out == 1

"""Given what goes on for long or goes wrong, when the master looks, then it neither stops, nor spins, nor forgets."""

import msgspec
import pytest

from adapters.keys import derive_mac_key, mac
from adapters.log.reader import BAD_EVENT, BAD_MAC, BAD_PLACE, OUT_OF_BOUNDS, Reader
from domain.errors import ReplayDiffersError
from domain.events import (
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    Cancelled,
    CutOff,
    Draining,
    Due,
    Expired,
    HeartbeatMissed,
    HeartbeatSeen,
    Input,
    LeaseGranted,
    LendAnswered,
    LendBusy,
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
    codec,
)
from domain.events.commit import COMMIT_BYTES_MAX, encode_commit, seal
from domain.ids import Incarnation, LeaseId, LinkId, ModelId, NodeId, RequestId
from domain.master.decide import Head, decide
from domain.master.fold import fold_fact
from domain.master.health import next_due_us
from domain.master.inputs import FactInput, Rejected
from domain.master.state import decode_state, encode_state
from domain.master.step import Range, after, commit, fold_into, replay
from domain.ports import StoredMessage
from domain.subjects import fact_subject
from services.master.alarm import Alarm
from tests.support.history import (
    CLUSTER,
    SECRET,
    borrow,
    envelope,
    finished,
    held,
    lend,
    link,
    registered,
    started,
)
from tests.unit.test_master_decides import ON, M, Story, leases, verdict

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
    infos = (ModelInfo(id=ModelId(long), local_id="m"),)
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


# ---- hostile bytes ---------------------------------------------------------------------------------------------------


def judged(body: bytes, subject: str = f"lw.{CLUSTER}.node.a.status.draining") -> FactInput | Rejected:
    return Reader(CLUSTER, SECRET).fact(StoredMessage(1, 1_000, subject, b"", body))


def signed(encoded: bytes) -> bytes:
    return codec.with_tag(encoded, "mac", mac(bytes.fromhex(derive_mac_key(SECRET, "a")), encoded[:-1]))


def test_a_mac_of_any_bytes_is_refused_and_nothing_raised():
    for tag in (b"\xff" * 64, "é".encode() * 32, b"", b"0" * 63, b'"' * 64):
        answer = judged(b'{"x":1,"mac":"' + tag + b'"}')
        assert isinstance(answer, Rejected)
        assert answer.code == BAD_MAC


@pytest.mark.parametrize(
    ("pseq", "incarnation"),
    [("9" * 16, "i"), ("-1", "i"), ("1_0", "i"), ("", "i"), ("٣", "i"), ("1", "x" * 65), ("1", "")],
)
def test_a_place_that_no_producer_has_is_refused(pseq: str, incarnation: str):
    encoded = (
        codec.encode(codec.decode_envelope(envelope("a", "i", 1, _draining())))
        .replace(b'"pseq":"1"', f'"pseq":"{pseq}"'.encode())
        .replace(b'"incarnation":"i"', f'"incarnation":"{incarnation}"'.encode())
    )
    answer = judged(signed(encoded))
    assert isinstance(answer, Rejected)
    assert answer.code == BAD_PLACE


def _draining() -> Input:
    return Draining()


@pytest.mark.parametrize(
    "fact",
    [
        held("x" * 65),
        held("req_1", model="m" * 257),
        held("req_1", work=-1),
        held("req_1", work=10**19),
        finished("req_1", service_us=2**70),
        finished("req_1", helper="b>c"),
        lend(Lent, "req_1", link("a", "b>c"), work=1, out=1, waited_us=1),
        borrow(BorrowBusy, "req_1", link("B", "a"), borrowed=1, depth=1),
        lend(LendBusy, "req_1", ON, reason="r" * 1025),
        registered(depth=5000),
        registered(url="http://x\x00"),
        Registered(
            url="", models=tuple(ModelInfo(id=ModelId(f"{i}"), local_id="") for i in range(257)), version="", depth=1
        ),
        NodeSnapshot(part=0, parts=1, queues=(), desks=(), reason=""),
        NodeSnapshot(part=1, parts=10**6, queues=(), desks=(), reason=""),
        Expired(request=RequestId("r"), model=M, wait_us=-5),
        CutOff(
            request=RequestId("r"),
            model=M,
            helper=B,
            link=LinkId("l" * 65),
            lease=LeaseId("l"),
            reason="",
            may_have_run=True,
        ),
    ],
)
def test_a_fact_beyond_its_bounds_is_refused_by_name(fact: Input):
    answer = judged(envelope("a", "i", 1, fact), fact_subject(CLUSTER, A, fact))
    assert isinstance(answer, Rejected)
    assert (answer.code, answer.speaker, answer.pseq) == (OUT_OF_BOUNDS, "a", 1)


def test_after_an_unreadable_fact_the_node_is_still_understood():
    story = Story()
    story.recorder.state("a", held("x" * 65))
    story.recorder.pseq["a"] += 1
    newer = codec.encode(codec.decode_envelope(envelope("a", "a-1", story.recorder.pseq["a"], _draining())))
    subject = f"lw.{CLUSTER}.node.a.status.future"
    story.recorder.raw(subject, signed(newer.replace(b"status.draining", b"status.future")))
    story.recorder.state("a", held("req_1"))
    story.look()
    assert not story.master.state.nodes[A].incomplete
    assert "req_1" in story.master.state.queues["a/m"].held
    codes = [code for made in story.master.commits for _, code in made.rejected]
    assert codes[-2:] == [OUT_OF_BOUNDS, BAD_EVENT]


def test_a_state_whose_numbers_are_as_large_as_the_bounds_allow_is_still_encoded():
    story = Story(fit_us=0)
    story.recorder.state("a", finished("req_f", service_us=10**15, work=1))
    for i in range(300):
        story.recorder.state("a", held(f"req_{i}", work=10**18))
    decisions = story.look()
    state = story.master.state
    assert decode_state(encode_state(state)).hi == state.hi
    assert all(encode_commit(made) for made in story.master.commits)
    row = next(d for d in decisions if isinstance(d, OwnerPlanned))
    assert all(abs(number) < 2**63 for v in row.verdicts for number in (v.gain_us, v.first_answer_us, v.job_us))
    assert row.drain_us < 2**63


def test_a_gateways_events_stand_in_no_commit_as_refused():
    story = Story()
    story.recorder.raw(f"lw.{CLUSTER}.gateway.main.routed", b"{}")
    story.burst(10)
    assert story.master.commits[-1].rejected == ()


def test_a_helper_that_finished_what_it_never_accepted_leaves_nothing_open():
    story = Story()
    story.burst(10)
    for _ in range(3):
        story.recorder.state("b", borrow(BorrowFinished, "req_2", ON, work=1, service_us=1, status=200, ok=True))
    story.recorder.state("b", borrow(BorrowAccepted, "req_2", ON, position=0))
    story.recorder.state("b", borrow(BorrowFinished, "req_2", ON, work=1, service_us=1, status=200, ok=True))
    story.look()
    assert story.master.state.uses == {}


def test_a_helper_that_no_reader_would_let_pass_still_breaks_nothing():
    story = Story()
    story.burst(3)
    state, node = story.master.state, story.master.state.nodes[A]
    odd = lend(Lent, "req_2", link("a", "b>c>d"), work=1, out=1, waited_us=1)
    fold_fact(state, FactInput(99, state.stamp_us, A, node.incarnation, node.pseq + 1, False, 0, odd))
    assert sum(len(uses) for uses in state.uses.values()) == 1
    snapshot = NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="gap")
    fold_fact(state, FactInput(100, state.stamp_us, A, node.incarnation, node.pseq + 1, False, 0, snapshot))
    fold_fact(state, FactInput(101, state.stamp_us, A, Incarnation("a-9"), 1, False, 0, registered()))
    assert state.uses == {}


def test_a_commit_that_was_decided_otherwise_is_found_though_its_digest_is_right():
    story = Story()
    for i in range(5):
        story.recorder.state("a", held(f"req_{i}", i + 1))
    master = story.master
    fold_into(master.state, master.span, [], master.reader.facts(story.recorder.facts[story.seen :]))
    before, position = decode_state(encode_state(master.state)), master.position
    decided = decide(master.state, Head(position.generation, position.version + 1))
    made = commit(master.state, position, master.span, decided, with_state=False)
    assert replay(decode_state(encode_state(before)), position, made, master.span, sealed=True) == made
    forged = [
        msgspec.structs.replace(each, slots=each.slots + 1) if isinstance(each, LeaseGranted) else each
        for each in made.decisions
    ]
    resealed = seal(msgspec.structs.replace(made, decisions=tuple(forged), digest=""), master.span.messages())
    with pytest.raises(ReplayDiffersError, match="decision 1: decided"):
        replay(before, position, resealed, master.span, sealed=True)

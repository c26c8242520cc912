"""Given bytes that no honest node would send, when the master reads them, then they are refused by name and break nothing."""

import msgspec
import pytest

from adapters.keys import derive_mac_key, mac
from adapters.log import reader as log_reader
from adapters.log.reader import BAD_EVENT, BAD_MAC, BAD_PLACE, OUT_OF_BOUNDS, Reader
from domain.errors import ReplayDiffersError
from domain.events import (
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    CutOff,
    Draining,
    Expired,
    Input,
    LeaseGranted,
    LendBusy,
    Lent,
    ModelInfo,
    NodeSnapshot,
    OwnerPlanned,
    Registered,
    codec,
)
from domain.events import commit as commit_module
from domain.events.commit import encode_commit, seal
from domain.ids import Incarnation, LeaseId, LinkId, ModelId, NodeId, RequestId
from domain.master.decide import Head, decide
from domain.master.fold import fold_fact
from domain.master.inputs import FactInput, Rejected
from domain.master.state import decode_state, encode_state
from domain.master.step import commit, fold_into, replay
from domain.ports import StoredMessage
from domain.subjects import fact_subject
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
)
from tests.support.stories import ON, M, Story

A, B = NodeId("a"), NodeId("b")


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


def nested(depth: int, *, where: bytes = b'{"specversion"', text: bytes = b"") -> bytes:
    """A signed fact with a field that no rule reads, so deep that its innermost list is `depth` deep in the message."""
    plain = codec.encode(codec.decode_envelope(envelope("a", "i", 1, _draining())))
    inside = 1 if where.startswith(b"{") else 2
    field = b'{"odd":' + text + b"[" * (depth - inside) + b"]" * (depth - inside) + b","
    return signed(plain.replace(where, where.replace(b"{", field), 1))


def at_stack_depth(depth: int, body: bytes) -> FactInput | Rejected:
    return judged(body) if not depth else at_stack_depth(depth - 1, body)


@pytest.mark.parametrize("where", [b'{"specversion"', b'"data":{"event"'])
def test_how_deep_a_message_may_nest_does_not_depend_on_who_reads_it(where: bytes):
    # given facts that nest as deep as the interpreter's stack lets one reader go, and another not
    for depth in (65, 200, *range(600, 1000, 25)):
        # when a master reads them, and a verifier that is called from further down
        answers = [at_stack_depth(below, nested(depth, where=where)) for below in (0, 150, 400)]
        # then both refuse them
        assert answers == [Rejected(1, 1, BAD_EVENT)] * 3, depth
    assert isinstance(judged(nested(64, where=where)), FactInput)


def test_brackets_inside_a_text_nest_nothing():
    brackets = b'"' + rb"\\\"[{" * 500 + b'\\\\",'
    assert isinstance(judged(nested(64, text=brackets + b'"odder":')), FactInput)
    assert judged(nested(65, text=brackets + b'"odder":')) == Rejected(1, 1, BAD_EVENT)


def test_forged_subjects_of_many_names_leave_few_keys_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_reader, "_SPEAKERS_MAX", 10)
    reader = Reader(CLUSTER, SECRET)
    for i in range(100):
        forged = StoredMessage(1, 1_000, f"lw.{CLUSTER}.node.x{i}.status.draining", b"", nested(3))
        assert reader.fact(forged) == Rejected(1, 1, BAD_MAC)
    assert len(reader._keys) <= 10
    assert isinstance(
        reader.fact(StoredMessage(1, 1_000, f"lw.{CLUSTER}.node.a.status.draining", b"", nested(3))), FactInput
    )


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


def test_a_node_that_registers_other_models_again_and_again_fills_no_more_than_one_node_may():
    story = Story()
    for i in range(600):
        story.recorder.state("b", registered(f"x{i}"))
        story.recorder.state("b", held("req_1", model=f"x{i}"))
    story.look()
    assert len(story.master.state.queues) <= 513
    for _ in range(
        2
    ):  # what was open is orphaned with the process, and its queue forgotten with the next word on models
        story.recorder.restart("b")
        story.recorder.state("b", registered())
    story.look()
    assert set(story.master.state.queues) <= {"a/m", "b/m"}


def test_the_breaker_of_a_model_that_is_served_no_more_is_forgotten():
    story = Story()
    for request in ("req_1", "req_2"):
        ended = borrow(BorrowFinished, request, ON, work=1, service_us=1, status=500, ok=False)
        story.recorder.state("b", ended, after_us=10)
    story.look()
    story.ring()
    assert [each.state for each in story.master.state.breakers.values()] == ["half_open"]
    story.recorder.state("b", registered("k"))
    story.look()
    assert story.master.state.breakers == {}


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


def test_subjects_too_long_to_be_ours_are_judged_and_digested_alike_and_not_remembered():
    long = f"lw.{CLUSTER}.node.a.status.draining" + "x" * 4000
    fact = envelope("a", "a-1", 1, Draining())
    story = Story()
    story.burst(10)
    made = story.master.commits[0]
    kept = log_reader._promise.cache_info().currsize, commit_module._named.cache_info().currsize
    given = judged(fact, long)
    assert isinstance(given, Rejected)
    assert given.code == "wrong_event"
    digests = {seal(made, [StoredMessage(1, 1_000, subject, b"", fact)]).digest for subject in (long, long + "x")}
    assert len(digests) == 2
    assert (log_reader._promise.cache_info().currsize, commit_module._named.cache_info().currsize) == kept

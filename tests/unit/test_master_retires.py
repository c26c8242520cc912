"""Given nodes that come and go for as long as a cluster lives, when one is retired, then next to nothing of it stays."""

from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BreakerChanged,
    Cancelled,
    CutOff,
    Lent,
    LinkPriced,
    LinkRemoved,
    Loaded,
    NodeEnrolled,
    NodeRetired,
)
from domain.ids import NodeId, RequestId
from domain.master.state import State, encode_state
from domain.master.step import Position, Range, after, fold_into, follow, replay
from tests.support.history import borrow, finished, held, lend, link, registered
from tests.support.stories import ON, M, Story, verdict

A, B = NodeId("a"), NodeId("b")


def comes_and_goes(story: Story, name: str) -> None:
    """Let a node be enrolled, linked, measured, lent to, fail, and be retired with a request that it never gave back."""
    node, on = NodeId(name), link("a", name)
    story.recorder.decree(NodeEnrolled(node=node, public_key="U" * 56, url="http://h"))
    story.recorder.restart(name)
    story.recorder.state(name, registered())
    story.recorder.decree(on)
    for i in range(50):
        story.recorder.state(name, finished(f"req_{name}_{i}", service_us=900_000 + i))
    story.recorder.state(name, Loaded(model=M, load_us=5_000_000, cause="own"))
    story.look()
    for i in range(3):
        request = f"req_{name}_lent{i}"
        story.recorder.state("a", held(request))
        story.recorder.state("a", lend(Lent, request, on, work=64_000_000, out=1, waited_us=1))
        story.recorder.state(name, borrow(BorrowAccepted, request, on, position=0))
        if i < 2:
            story.recorder.state("a", lend(CutOff, request, on, reason="helper_error", may_have_run=True))
            ended = borrow(BorrowFinished, request, on, work=64_000_000, service_us=1, status=500, ok=False)
            story.recorder.state(name, ended)
            story.recorder.state("a", Cancelled(request=RequestId(request), model=M))
    story.look()
    assert f"{name}/m" in story.master.state.breakers
    story.recorder.decree(LinkRemoved(link=on.link, owner=A, owner_model=M))
    story.recorder.decree(NodeRetired(node=node))
    story.recorder.state("a", Cancelled(request=RequestId(f"req_{name}_lent2"), model=M))
    story.recorder.state("a", held("req_more"))
    story.look()


def test_a_node_that_was_retired_leaves_next_to_nothing_behind():
    story = Story()
    story.burst(10)
    sizes = []
    for number in range(20):
        comes_and_goes(story, f"n{number}")
        sizes.append(len(encode_state(story.master.state)))
    state = story.master.state
    assert {key.partition("/")[0] for key in [*state.fits, *state.queues]} <= {"a", "b"}
    assert (state.uses, state.breakers, state.control.gone, state.control.retiring) == ({}, {}, {}, {})
    assert (sizes[-1] - sizes[9]) // 10 < 1_000


def test_a_retired_helper_whose_links_stay_has_neither_breaker_nor_hint_and_both_are_said():
    story = Story()
    story.burst(20)
    for i in range(5):
        story.recorder.state("a", finished(f"req_own{i}", service_us=10_000_000))
        story.recorder.state("b", finished(f"req_b{i}", service_us=1_000_000))
    story.look()
    for request in ("req_2", "req_3"):
        story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
        story.recorder.state("a", lend(CutOff, request, ON, reason="helper_failed", may_have_run=True))
    story.look()
    state = story.master.state
    assert (list(state.breakers), list(state.hints)) == (["b/m"], [ON.link])
    story.recorder.decree(NodeRetired(node=B))
    decisions = story.look()
    assert [(d.state, d.failures) for d in decisions if isinstance(d, BreakerChanged)] == [("closed", 0)]
    assert [d.faster for d in decisions if isinstance(d, LinkPriced)] == [False]
    assert (state.breakers, state.hints) == ({}, {})


def test_a_retired_owner_is_told_nothing_more():
    story = Story()
    story.burst(20)
    for i in range(5):
        story.recorder.state("a", finished(f"req_own{i}", service_us=10_000_000))
        story.recorder.state("b", finished(f"req_b{i}", service_us=1_000_000))
    story.look()
    assert list(story.master.state.hints) == [ON.link]
    story.recorder.decree(NodeRetired(node=A))
    assert not [d for d in story.look() if isinstance(d, LinkPriced)]
    assert story.master.state.hints == {}


def test_what_is_forgotten_of_a_retired_node_is_forgotten_alike_by_who_follows_and_who_decides_again():
    story = Story()
    story.burst(10)
    comes_and_goes(story, "n0")
    comes_and_goes(story, "n0")
    reader, master = story.master.reader, story.master
    followed, again, position = State(), State(), Position(master.position.generation)
    for made in master.commits:
        control = [(reader.control(each), each) for each in story.recorder.control[made.clo : made.chi]]
        facts = reader.facts(story.recorder.facts[made.lo : made.hi])
        followed.term = again.term = made.term
        fold_into(followed, Range(), control, facts)
        follow(followed, made)
        span = Range()
        fold_into(again, span, control, facts)
        replay(again, position, made, span)
        position = after(made)
    assert encode_state(followed) == encode_state(again) == encode_state(master.state)


def test_a_retired_node_that_is_enrolled_again_is_one_that_nobody_has_measured():
    story = Story()
    story.burst(10)
    for i in range(5):
        story.recorder.state("b", finished(f"req_b{i}", service_us=10_000_000))
    story.recorder.state("a", held("req_more"))
    assert verdict(story.look()).samples == 5
    story.recorder.decree(NodeRetired(node=B))
    assert verdict(story.look()).code == "node_retired"
    story.recorder.decree(NodeEnrolled(node=B, public_key="", url=""))
    story.recorder.state("b", registered())  # of the process that was retired
    story.look()
    assert not story.master.state.nodes[B].models
    story.recorder.restart("b")
    story.recorder.state("b", registered())
    seen = verdict(story.look())
    assert (seen.outcome, seen.samples, seen.source) == ("granted", 0, "owner_fallback")

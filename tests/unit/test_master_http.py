"""What the master's state tells people of breakers and rooms."""

from domain.events import BreakerChanged, CutOff, Lent, LoadStarted
from domain.ids import NodeId
from services.master.http import breakers, rooms
from tests.support.history import held, lend
from tests.support.stories import ON, K, M, Story


def fail(story: Story, request: str) -> None:
    story.recorder.state("a", lend(Lent, request, ON, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("a", lend(CutOff, request, ON, reason="helper_failed", may_have_run=True))
    story.recorder.state("a", held(request, lendable=False))


def test_an_open_breaker_tells_since_when_until_when_and_after_how_many_failures():
    story = Story()
    assert breakers(story.master.state) == []
    story.burst(8)
    fail(story, "req_2")
    fail(story, "req_3")
    assert [d.state for d in story.look() if isinstance(d, BreakerChanged)] == ["opened"]
    (told,) = breakers(story.master.state)
    since_us, until_us = told.pop("since_us"), told.pop("until_us")
    assert told == {"node": "b", "model": "m", "state": "opened", "failures": 2}
    assert 4_900_000 < until_us - since_us <= 5_000_000  # counted from the failure
    story.ring()
    (told,) = breakers(story.master.state)
    assert (told["state"], told["until_us"]) == ("half_open", None)


def test_a_shared_runtime_tells_what_is_in_what_is_being_loaded_and_what_was_driven_out():
    story = Story("a", "b")
    story.share("b", K, M, resident=K, loads_us={K: 1_000_000})
    story.look()
    (told,) = rooms(story.master.state.nodes[NodeId("b")]).values()
    assert (told["models"], told["resident"], told["loading"], told["displaced"]) == ([K, M], K, None, None)
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    story.look()
    (told,) = rooms(story.master.state.nodes[NodeId("b")]).values()
    assert (told["loading"], told["loading_cause"]) == (M, "borrowed")
    assert told["loading_since_us"] == story.master.state.now_us
    assert list(rooms(story.master.state.nodes[NodeId("b")])) == ["gpu"]
    assert rooms(story.master.state.nodes[NodeId("a")]) == {}

"""Why is nothing lent now: one sentence that names what stands in the way, for every way there is."""

from collections.abc import Callable

import pytest

from domain.events import (
    HeartbeatMissed,
    LendReturned,
    Lent,
    LinkRemoved,
    ModelInfo,
    NotAccepting,
    Registered,
    SettingChanged,
)
from domain.ids import ModelId, NodeId
from domain.master.reasons import REASONS
from projections.why.model import Alarm, ModelStory, alarmed, model_story
from tests.support.history import held, lend, link, registered
from tests.support.stories import ON, Story

A, M = NodeId("a"), ModelId("m")


def told(story: Story, node: NodeId = A, model: ModelId = M) -> ModelStory:
    return model_story(story.master.state, node, model, version=story.master.position.version)


def test_a_model_in_no_link_is_told_how_to_make_one():
    story = Story()
    made = told(story, NodeId("b"))
    assert made.code == "not_linked"
    assert "leaseway links add b/m" in made.headline


def test_a_link_that_was_removed_is_no_link_any_more():
    story = Story()
    story.burst(5)
    story.recorder.decree(LinkRemoved(link=ON.link, owner=ON.owner, owner_model=ON.owner_model))
    story.look()
    assert told(story).code == "not_linked"


def test_what_nobody_serves_is_said_with_what_is_served():
    story = Story()
    assert told(story, NodeId("z")).code == "unknown_node"
    assert "known: a, b" in told(story, NodeId("z")).headline
    made = told(story, A, ModelId("other"))
    assert made.code == "unknown_model"
    assert "serves m" in made.headline


def test_without_held_requests_nothing_can_be_lent():
    story = Story()
    made = told(story)
    assert (made.code, made.held) == ("nothing_held", 0)
    assert made.helpers[0].code == ""
    story.burst(2)
    assert "2 requests in its engine" in told(story).headline


def test_a_lease_that_is_there_is_told_and_then_what_is_out_under_it():
    story = Story()
    story.burst(8)
    assert told(story).code == "leased"
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=9))
    story.look()
    made = told(story)
    assert made.code == "lending"
    assert "1 request at b" in made.headline
    assert made.helpers[0].out == 1


def test_requests_that_came_back_cannot_be_lent_again():
    story = Story()
    story.burst(3)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=9))
    story.recorder.state("a", lend(LendReturned, "req_2", ON, reason="own_work"))
    story.recorder.state("a", held("req_2", lendable=False))
    story.look()
    made = told(story)
    assert made.code == "nothing_lendable"
    assert (made.held, made.lendable) == (1, 0)
    assert "1 request held, none of which may be lent" in made.headline


def without_price(story: Story) -> None:
    del story


def no_room(story: Story) -> None:
    story.recorder.state("b", NotAccepting(model=M, reason="own_work"))


def silent(story: Story) -> None:
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("b"), silent_us=4_000_000))


def not_there(story: Story) -> None:
    story.recorder.restart("b")
    info = ModelInfo(id=ModelId("other"), local_id="o", context=8192)
    story.recorder.state("b", Registered(url="http://h", models=(info,), version="1", depth=2))


def tiny(story: Story) -> None:
    story.recorder.restart("b")
    story.recorder.state("b", registered(context=16))


@pytest.mark.parametrize(
    ("happens", "code", "detail"),
    [
        (no_room, "helper_not_accepting", "own_work: A request of the helper's own waits"),
        (silent, "node_silent", "silent for 4 s"),
        (not_there, "model_unknown", ""),
        (tiny, "context_too_small", ""),
    ],
)
def test_the_only_helper_that_gets_nothing_is_named_with_code_sentence_and_detail(
    happens: Callable[[Story], None], code: str, detail: str
):
    story = Story()
    happens(story)
    story.burst(8)
    made = told(story)
    assert made.code == code
    assert f"b gets nothing, {code}: {REASONS[code].rstrip('.')}" in made.headline
    assert made.helpers[0].sentence == REASONS[code]
    assert detail in made.helpers[0].detail


def test_of_several_helpers_the_one_that_came_nearest_speaks_and_the_others_are_listed():
    story = Story("a", "b", "c", links=(link("a", "z"), link("a", "b"), link("a", "c")))
    no_room(story)
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("c"), silent_us=4_000_000))
    story.burst(8)
    made = told(story)
    assert [each.helper for each in made.helpers] == ["b", "c", "z"]
    assert made.code == "helper_not_accepting"
    assert "2 other helpers further off" in made.headline


def test_settings_that_keep_requests_home_and_a_missing_price_are_noted():
    story = Story(fit_us=0)
    story.recorder.decree(SettingChanged(name="cluster.offload_streams", value=0))
    story.burst(4)
    made = told(story)
    assert made.settings["offload_streams"] == "off"
    assert any("streams are never lent" in note for note in made.notes)
    assert any("no price" in note for note in made.notes)


def test_what_the_state_cannot_know_comes_first():
    story = Story()
    story.burst(8)
    for code, words in (("safe_mode", "safe mode"), ("bus_away", "bus does not answer"), ("no_master", "no master")):
        made = alarmed(told(story), Alarm(code, "said why"))
        assert made.code == code
        assert words in made.headline
        assert "said why" in made.headline

"""What a node said is partly lost (its spool was full, or a commit was too small for all): nothing stays wrong for ever."""

import pytest

from domain.events import (
    LeaseChecked,
    LeaseStalled,
    LinkPriced,
    LoadStarted,
    NodeSnapshot,
    OpenRequest,
    QueueState,
)
from domain.ids import NodeId, RequestId
from domain.master.decide import NODE_BYTES_MAX
from tests.support.history import finished, link
from tests.support.stories import ON, M, Story, verdict

OWNER_SAYS = QueueState(
    model=M,
    requests=(
        OpenRequest(
            request=RequestId("req_9"), state="lent", work=64_000_000, link=ON.link, helper=NodeId("b"), age_us=1
        ),
    ),
)


def restate(story: Story, node: str, *queues: QueueState, lost: int = 3) -> None:
    """Let a node tell the whole of itself after it lost some facts."""
    story.recorder.pseq[node] += lost
    story.recorder.state(node, NodeSnapshot(part=1, parts=1, queues=queues, desks=(), reason="overflow"))
    story.look()


def test_what_was_lent_without_a_word_that_came_through_is_asked_about_as_anything_that_is_out():
    story = Story()
    restate(story, "a", OWNER_SAYS)
    story.burst(4)
    assert verdict(story.burst(4)).out == 1
    said = [word for _ in range(20) for word in story.ring() if isinstance(word, LeaseChecked | LeaseStalled)]
    assert isinstance(said[0], LeaseChecked)
    assert said[0].link == ON.link


def test_what_was_lent_is_counted_once_however_often_a_snapshot_tells_it():
    story = Story()
    restate(story, "a", OWNER_SAYS)
    restate(story, "a", OWNER_SAYS, lost=0)
    assert verdict(story.burst(4)).out == 1
    restate(story, "a", QueueState(model=M, requests=()))
    assert verdict(story.burst(4)).out == 0


def test_a_node_that_says_that_it_lends_over_a_link_of_others_fills_nothing_that_is_looked_at():
    story = Story("a", "b", "c")
    restate(story, "c", OWNER_SAYS)
    assert verdict(story.burst(4)).out == 0


@pytest.mark.parametrize("lost", [0, 3])
def test_a_load_whose_end_may_be_lost_counts_as_done_and_one_that_was_not_lost_as_going_on(lost: int):
    story = Story()
    story.recorder.state("b", LoadStarted(model=M, cause="own"))
    story.look()
    restate(story, "b", lost=lost)
    assert story.master.state.nodes[NodeId("b")].models[M].ready == bool(lost)


def test_owners_of_more_new_links_than_one_commit_tells_of_are_all_told_that_the_helper_is_faster():
    helpers = [f"h{at:03d}" for at in range(2 + NODE_BYTES_MAX // 128)]
    story = Story("a", *helpers, links=())
    for at in range(3):
        story.recorder.state("a", finished(f"req_a{at}", service_us=9_000_000))
        for helper in helpers:
            story.recorder.state(helper, finished(f"req_{helper}{at}", service_us=1_000_000))
    story.look()
    for _ in range(2):  # made, and made anew: the process that hears it knows nothing of the first time
        for helper in helpers:
            story.recorder.decree(link("a", helper))
        before = len(story.master.commits)
        told = [word.helper for word in story.look() if isinstance(word, LinkPriced) and word.faster]
        assert sorted(told) == helpers
        assert len(story.master.commits) - before > 1

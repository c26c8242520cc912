"""Every code, outcome and trigger that the reference explains comes out of some history, and nothing else does."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from domain.events import (
    Cancelled,
    CutOff,
    Draining,
    HeartbeatMissed,
    LeaseCleared,
    LeaseGranted,
    LendAnswered,
    Lent,
    LinkRemoved,
    Loaded,
    ModelInfo,
    NodeRetired,
    OwnerPlanned,
    Registered,
    SettingChanged,
    Unloaded,
)
from domain.ids import ModelId, NodeId, RequestId
from domain.master.reasons import OUTCOMES, REASONS, TRIGGERS
from tests.support.history import finished, held, lend, link, registered, started
from tests.support.stories import ON, K, M, Story, leases, verdict

COLD = link("a", "b", load_if_unloaded=True)


def story_of(helper: ModelInfo | None = None, owner: ModelInfo | None = None) -> Story:
    """Return a cluster whose helper or owner is another one than usual."""
    story = Story()
    for name, info in (("b", helper), ("a", owner)):
        if info is not None:
            story.recorder.restart(name)
            story.recorder.state(name, Registered(url="http://h", models=(info,), version="1", depth=2))
    return story


def model(*, lane: str = "text", slots: int = 1, context: int = 8192, sees: bool = False) -> ModelInfo:
    capabilities = ("vision",) if sees else ()
    return ModelInfo(id=M, local_id="m", lane=lane, slots=slots, context=context, capabilities=capabilities)


def burst_of(story: Story, count: int = 10, **fields: object) -> Story:
    for i in range(count):
        story.recorder.state("a", msgspec.structs.replace(held(f"req_h{i}", i + 1), **fields))
    return story


def removed() -> Story:
    story = Story()
    story.burst(10)
    story.recorder.decree(LinkRemoved(link=ON.link, owner=ON.owner, owner_model=M))
    return story


def retired() -> Story:
    story = Story()
    story.recorder.decree(NodeRetired(node=NodeId("b")))
    return burst_of(story)


def silent() -> Story:
    story = Story()
    story.recorder.observe(1, HeartbeatMissed(node=NodeId("b"), silent_us=3_000_000))
    return burst_of(story)


def incomplete() -> Story:
    story = Story()
    story.recorder.state("b", held("req_late"), late=True)
    return burst_of(story)


def draining() -> Story:
    story = Story()
    story.recorder.state("b", Draining())
    return burst_of(story)


def quarantined() -> Story:
    story = burst_of(Story())
    for i in range(2):
        story.recorder.state("a", lend(Lent, f"req_h{i}", ON, work=64_000_000, out=1, waited_us=1))
        story.recorder.state("a", lend(CutOff, f"req_h{i}", ON, reason="helper_failed", may_have_run=True))
    return story


def claimed() -> Story:
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.recorder.state("c", finished("req_fitc"))
    story.burst(10)
    for i in range(5):
        story.recorder.state("c", held(f"req_c{i}"))
    return story


def unloaded() -> Story:
    story = Story()
    story.recorder.state("b", Unloaded(model=M, cause="own"))
    return burst_of(story)


def switching(count: int, loads_us: dict[ModelId, int], *, own_work: bool = False) -> Story:
    """Return a helper that would have to drive out one model for the other."""
    story = Story(links=(COLD,))
    story.share("b", K, M, resident=K, loads_us=loads_us)
    story.wait(100_000_000)
    for i in range(4 if own_work else 0):
        story.recorder.state("b", started(f"req_own{i}", model="k"), after_us=8_000_000)
        story.recorder.state("b", finished(f"req_own{i}", model="k"), after_us=1_000_000)
    return burst_of(story, count)


def helper_measured_alone() -> Story:
    story = Story(fit_us=0)
    story.recorder.state("b", finished("req_b"))
    return burst_of(story)


def two_helpers() -> Story:
    story = Story("a", "b", "c", links=(ON, link("a", "c")))
    for i in range(4):
        story.recorder.state("c", finished(f"req_c{i}", service_us=10_000))
        story.recorder.state("b", finished(f"req_b{i}", service_us=3_000_000))
    return burst_of(story)


def slow() -> Story:
    story = Story()
    for i in range(4):
        story.recorder.state("b", finished(f"req_b{i}", service_us=60_000_000))
    return burst_of(story, 5)


TWENTY_S = 20_000_000
CODES: dict[str, Callable[[], Story]] = {
    "link_removed": removed,
    "node_retired": retired,
    "model_unknown": lambda: burst_of(Story("a")),
    "lanes_differ": lambda: burst_of(story_of(model(lane="image"))),
    "lane_not_lent": lambda: burst_of(story_of(model(lane="embedding"), model(lane="embedding"))),
    "serves_several": lambda: burst_of(story_of(model(slots=4))),
    "no_context": lambda: burst_of(story_of(model(context=0))),
    "vision_differs": lambda: burst_of(story_of(model(sees=True))),
    "no_vision": lambda: burst_of(Story(), vision=True),
    "context_too_small": lambda: burst_of(Story(), est_tokens=9000),
    "size_unknown": lambda: burst_of(Story(), est_tokens=0),
    "node_silent": silent,
    "history_incomplete": incomplete,
    "helper_not_accepting": draining,
    "quarantined": quarantined,
    "helper_claimed": claimed,
    "load_forbidden": unloaded,
    "nothing_lendable": lambda: burst_of(Story(), lendable=False),
    "service_unpriced": lambda: burst_of(Story(fit_us=0)),
    "owner_unpriced": helper_measured_alone,
    "switch_unpriced": lambda: switching(20, {K: TWENTY_S}),
    "restore_unpriced": lambda: switching(20, {M: TWENTY_S}),
    "helper_recently_busy": lambda: switching(58, {K: TWENTY_S, M: TWENTY_S}, own_work=True),
    "cost_rejected": slow,
    "outranked": two_helpers,
}


def test_every_code_that_is_explained_has_a_history_here():
    assert list(CODES) == list(REASONS)


@pytest.mark.parametrize("code", REASONS)
def test_the_code_comes_out_of_a_history(code: str):
    story = CODES[code]()
    story.look()
    decisions = [d for made in story.master.commits for d in made.decisions]
    said = {v.code for d in decisions if isinstance(d, OwnerPlanned) for v in d.verdicts}
    said |= {d.reason for d in decisions if isinstance(d, LeaseCleared)}
    assert code in said
    assert said <= {"", *REASONS}


# ---- outcomes and triggers -------------------------------------------------------------------------------------------


def probed() -> Story:
    story = Story(fit_us=0)
    story.wait(100_000_000)
    return burst_of(story)


@pytest.mark.parametrize(
    ("outcome", "make"), [("granted", lambda: burst_of(Story())), ("probe", probed), ("skipped", slow)]
)
def test_the_outcome_comes_out_of_a_history(outcome: str, make: Callable[[], Story]):
    story = make()
    rows = [row for row in story.look() if isinstance(row, OwnerPlanned)]
    assert outcome in {v.outcome for row in rows for v in row.verdicts}
    assert outcome in OUTCOMES


def _then(*facts: object) -> Callable[[], Story]:
    def make() -> Story:
        story = Story()
        story.burst(4)
        for fact in facts:
            story.recorder.state("a", fact)  # type: ignore[arg-type]
        return story

    return make


def freed() -> Story:
    story = claimed()
    story.look()
    for i in range(2, 10):
        story.recorder.state("a", Cancelled(request=RequestId(f"req_{i}"), model=M))
    return story


def due(story: Story) -> Story:
    story.look()
    story.ring()
    return story


def waits_for_a_probe() -> Story:
    story = Story(fit_us=0)
    story.burst(4)
    return due(story)


def a_setting() -> Story:
    story = burst_of(Story())
    story.look()
    story.recorder.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=3))
    return story


def a_load() -> Story:
    story = unloaded()
    story.look()
    story.recorder.state("b", Loaded(model=M, load_us=1, cause="own"))
    return story


LENT = [lend(Lent, f"req_{i}", ON, work=64_000_000, out=1, waited_us=1) for i in (2, 3)]
TRIGGERED: dict[str, Callable[[], Story]] = {
    "enqueued": lambda: burst_of(Story()),
    "completed": _then(finished("req_0")),
    "borrowed_completed": _then(LENT[0], lend(LendAnswered, "req_2", ON, status=200, service_us=1)),
    "drained": _then(*LENT),
    "slots_freed": freed,
    "probe_due": waits_for_a_probe,
    "tick": lambda: due(burst_of(Story("a"))),
    "link": a_setting,
    "health": a_load,
}


def test_every_trigger_that_is_explained_has_a_history_here():
    assert list(TRIGGERED) == list(TRIGGERS)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_the_trigger_comes_out_of_a_history(trigger: str):
    story = TRIGGERED[trigger]()
    story.look()
    rows = [d for made in story.master.commits for d in made.decisions if isinstance(d, OwnerPlanned)]
    assert trigger in {row.trigger for row in rows}
    assert {row.trigger for row in rows} <= set(TRIGGERS)


def test_each_code_has_a_sentence():
    for table in (REASONS, OUTCOMES, TRIGGERS):
        assert all(sentence.endswith(".") for sentence in table.values())


def test_the_page_of_reasons_is_current():
    script = Path(__file__).parents[2] / "docs" / "reference" / "reasons.py"
    check = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert check.returncode == 0, f"run: python {script.relative_to(Path(__file__).parents[2])}"


def test_what_has_no_known_size_neither_goes_to_a_helper_with_a_window_nor_counts_in_the_mean():
    story = burst_of(Story(), 4, est_tokens=0)
    assert verdict(story.look()).code == "size_unknown"
    story.recorder.state("a", held("req_big"))
    story.recorder.state("a", held("req_odd", lendable=False))
    story.look()
    queue = story.master.state.queues["a/m"]
    assert (queue.lendable, queue.unsized, queue.sized, queue.held_tokens) == (5, 4, 2, 128)
    given = next(d for d in story.look_again() if isinstance(d, LeaseGranted))
    assert (given.slots, given.context) == (1, 8192)  # one of five
    story.recorder.state("a", finished("req_big"))
    decisions = story.look()
    assert (verdict(decisions).code, leases(decisions)) == ("size_unknown", [("LeaseCleared", "b", 0)])


def test_a_held_request_that_is_stated_again_counts_once_by_its_new_figures_and_is_planned_for():
    story = burst_of(Story(), 4, est_tokens=0)
    assert verdict(story.look()).code == "size_unknown"
    queue = story.master.state.queues["a/m"]
    before = (queue.arrival_us, list(queue.gaps_us), queue.lendable_us, dict(story.master.state.planned_us).keys())
    story.wait(5_000_000)
    for i, fields in enumerate(({}, {}, {"vision": True, "work": 1_000_000}), 1):
        story.recorder.state("a", msgspec.structs.replace(held(f"req_h{i}", 4), **fields))
    given = next(d for d in story.look() if isinstance(d, LeaseGranted))
    assert given.slots == 2  # the helper sees nothing, and one has no size yet
    row = next(d for d in story.look_again() if isinstance(d, OwnerPlanned))
    assert row.trigger == "enqueued"
    assert (queue.lendable, queue.unsized, queue.sized, queue.held_tokens) == (4, 1, 3, 192)
    assert (queue.seeing, queue.unsized_seeing, queue.held_work, len(queue.held)) == (1, 0, 193_000_000, 4)
    state = story.master.state
    assert (queue.arrival_us, queue.gaps_us, queue.lendable_us, state.planned_us.keys()) == before


def test_the_only_held_request_has_been_lendable_all_the_time_also_when_it_is_stated_again():
    story = burst_of(Story(), 1, est_tokens=0)
    story.look()
    queue = story.master.state.queues["a/m"]
    since_us = queue.lendable_us
    story.recorder.state("a", held("req_h0"), after_us=3_000_000)
    story.look()
    assert (queue.lendable_us, queue.unsized) == (since_us, 0)
    story.recorder.state("a", held("req_h0", lendable=False))
    story.look()
    assert (queue.lendable_us, queue.lendable) == (0, 0)


def test_the_same_figures_again_are_no_news():
    story = burst_of(Story(), 3, est_tokens=0)
    story.look()
    burst_of(story, 3, est_tokens=0)
    assert story.look() == []


def test_the_mean_of_a_queue_that_outgrows_the_window_is_that_of_what_is_measured():
    story = burst_of(Story(), 3, est_tokens=0)
    story.recorder.state("a", msgspec.structs.replace(held("req_long"), est_tokens=9000))
    assert verdict(story.look()).code == "context_too_small"


def test_pictures_have_no_window_whatever_is_stated():
    picture = model(lane="image", context=4096)
    story = burst_of(story_of(picture, picture), lane="image", est_tokens=0)
    given = next(d for d in story.look() if isinstance(d, LeaseGranted))
    assert given.context == 0


def test_a_blind_helper_with_a_window_gets_what_is_measured_and_holds_no_image():
    story = burst_of(Story(), 2, vision=True, est_tokens=0)
    sizes: tuple[dict[str, int], ...] = ({"vision": True}, {"est_tokens": 0}, {})
    for i, fields in enumerate(sizes, 2):
        story.recorder.state("a", msgspec.structs.replace(held(f"req_h{i}"), **fields))
    decisions = story.look()
    assert next(d for d in decisions if isinstance(d, LeaseGranted)).slots == 1
    queue = story.master.state.queues["a/m"]
    assert (queue.seeing, queue.unsized, queue.unsized_seeing) == (3, 3, 2)


def test_a_code_is_shown_before_those_that_rank_after_it():
    story = Story("a", "b", links=(COLD,), fit_us=0)
    story.recorder.restart("b")
    story.recorder.state("b", registered(context=32, ready=False))
    story.recorder.state("b", Draining())
    burst_of(story)
    (row,) = [row for row in story.look() if isinstance(row, OwnerPlanned)]
    assert [v.code for v in row.verdicts] == ["context_too_small"]

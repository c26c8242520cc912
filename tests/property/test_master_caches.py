"""What is kept beside the state is what follows from the state: a plan from it and one from a restored snapshot are the same."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.control.settings import SETTINGS
from domain.master import control, fits, hints
from domain.master.fits import WINDOW, Fit
from domain.master.lease_events import Head, of_owner
from domain.master.links import Match, Way, way_of, ways_from, ways_to
from domain.master.planner import plan
from domain.master.state import State, decode_state, encode_state
from tests.support.history import Master, random_history


def restored(state: State) -> State:
    """The same state, with nothing beside it yet."""
    return decode_state(encode_state(state))


def decided(state: State) -> list[object]:
    """All that a look at the state may ask of what is kept beside it."""
    said: list[object] = list(hints.words(state))
    for key in sorted({*state.control.by_owner, *state.leased}):
        said.append(plan(state, key, "tick").row)
        if key in state.touched:
            said += of_owner(state, key, Head(state.nodes[key.partition("/")[0]].incarnation, 1), 0)  # type: ignore[arg-type,index]
    said += [(name, control.setting(state.control, name)) for name in SETTINGS]
    said += [control.lane_rules(state.control, lane) for lane in ("text", "image")] + [control.depth(state.control, 3)]
    return said


def keys(way: Way) -> tuple[object, ...]:
    return way.added, way.over, way.owner, way.helper


def check_ways(state: State, anew: State) -> None:
    for added in (*state.control.links.values(), *state.control.gone.values()):
        way = way_of(state.control, added)
        assert way.added is added
        assert keys(way) == keys(way_of(anew.control, added))
        match = way.last_match
        if match is not None:
            fresh = msgspec.structs.replace(way, last_match=None).match(match.owner, match.helper)
            assert isinstance(fresh, Match)
            assert fresh == match
    for key in sorted({*state.control.by_owner, *state.control.by_helper, *state.queues}):
        assert [keys(way) for way in ways_from(state.control, key)] == [
            keys(way) for way in ways_from(anew.control, key)
        ]
        assert [keys(way) for way in ways_to(state, key)] == [keys(way) for way in ways_to(anew, key)]


@pytest.mark.parametrize(("seed", "nodes", "models"), [(31, 4, 1), (32, 5, 2), (33, 6, 3)])
def test_plans_and_words_are_the_same_from_what_was_kept_and_from_a_snapshot_at_any_place(
    seed: int, nodes: int, models: int
):
    recorder, master, dice = random_history(seed, 1500, nodes=nodes, models=models), Master(), random.Random(seed)
    at, decrees, looks = 0, list(recorder.control), 0
    while at < len(recorder.facts):
        chunk = recorder.facts[at : at + dice.randint(1, 40)]
        at += len(chunk)
        due = [message for message in decrees if message.stamp_ns <= chunk[-1].stamp_ns]
        decrees = decrees[len(due) :]
        master.take(chunk, due)
        if dice.random() < 0.5:
            anew = restored(master.state)
            assert decided(master.state) == decided(anew)
            check_ways(master.state, anew)
            looks += 1
    assert looks > 20


samples = st.tuples(
    st.one_of(st.sampled_from([1, 64_000_000]), st.integers(1, 10**15)),
    st.one_of(st.sampled_from([10**6, 9 * 10**6]), st.integers(1, 10**12)),
    st.booleans(),
)


@given(st.lists(samples, min_size=1, max_size=2 * WINDOW + 10))
def test_a_summary_carried_on_from_sample_to_sample_is_that_of_the_samples(learned: list[tuple[int, int, bool]]):
    fit = Fit()
    for at_us, (work, service_us, asked) in enumerate(learned):
        fit.learn(work, service_us, at_us)
        if asked:
            anew = msgspec.msgpack.decode(msgspec.msgpack.encode(fit), type=Fit)
            assert fit.summary() == anew.summary()
    assert fit.measured(len(learned), 10**9) == msgspec.structs.replace(fit).measured(len(learned), 10**9)


@given(st.lists(st.integers(-100, 100) | st.integers(-(10**11), 10**11), min_size=5, max_size=WINDOW + 1))
def test_the_middle_distance_is_the_median_of_all_distances(logs: list[int]):
    ordered = sorted(logs)
    middle = fits._median(ordered)
    assert fits._middle_distance(ordered, middle) == fits._median(sorted(abs(log - middle) for log in ordered))


def test_models_without_a_link_and_lanes_of_any_name_leave_nothing_behind():
    # given a cluster whose nodes call lanes and models as they like
    master = Master()
    master.take_all(random_history(7, 300), lambda: 20)
    before = len(master.state.control.__dict__)
    # when much is asked about names that nobody linked
    for i in range(1000):
        control.lane_rules(master.state.control, f"lane {i}")
        assert not ways_to(master.state, f"n0/strange {i}")
        assert not ways_from(master.state.control, f"n0/strange {i}")
    # then nothing is kept for them
    assert len(master.state.control.__dict__) <= before + 5
    assert all(len(index) < 100 for index in master.state.control.__dict__.values() if isinstance(index, dict))

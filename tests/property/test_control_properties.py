"""Whatever operators ask for, in whatever order: a command done is done, and the view agrees with the aggregates."""

import functools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.control import links, nodes, overrides
from domain.control.settings import SETTINGS
from domain.control.view import ControlView
from domain.errors import CallerError
from domain.events.codec import decode_control, raw
from domain.ids import ModelId, NodeId

NODES = st.sampled_from([NodeId("a"), NodeId("b")])
MODELS = st.sampled_from([ModelId("m"), ModelId("ん/1")])
FLAGS = {name: st.booleans() for name in ("load_if_unloaded", "restore_after_borrow", "different_weights")}
ENDS = {"owner": NODES, "owner_model": MODELS, "helper": NODES, "helper_model": MODELS}
NAMES = st.sampled_from(sorted(SETTINGS))
COMMANDS = st.one_of(
    st.builds(links.AddLink, **ENDS, **FLAGS),
    st.builds(links.RemoveLink, **ENDS),
    st.builds(
        nodes.EnrolNode,
        node=NODES,
        public_key=st.sampled_from(["U" + "A" * 55, "U" + "B" * 55]),
        url=st.sampled_from(["", "http://n:1", "bad"]),
    ),
    st.builds(nodes.RetireNode, node=NODES),
    st.builds(overrides.ChangeSettings, values=st.dictionaries(NAMES, st.integers(-1, 70_000_000), max_size=3)),
    st.builds(overrides.StateFile, values=st.dictionaries(NAMES, st.integers(-1, 70_000_000), max_size=3)),
    st.builds(overrides.ClearSettings, names=st.lists(NAMES, max_size=3).map(tuple)),
)


class Cluster:
    """All aggregates, and the view that follows them."""

    def __init__(self):
        self.states = {}
        self.view = ControlView()

    def ask(self, command):
        key: str
        family: Any
        match command:
            case links.AddLink() | links.RemoveLink():
                key, family = command.link, links
            case nodes.EnrolNode() | nodes.RetireNode():
                key, family = command.node, nodes
            case _:
                key, family = "settings", overrides
        state = self.states.get(key, family.INITIAL)
        events = family.decide(command, state)
        self.states[key] = functools.reduce(family.evolve, events, state)
        for event in events:
            self.view.apply(decode_control(raw(event)))
        return events


@given(st.lists(COMMANDS, max_size=20))
@settings(max_examples=150, deadline=None)
def test_a_command_repeated_at_once_is_nothing_or_is_refused(commands):
    cluster = Cluster()
    for command in commands:
        try:
            cluster.ask(command)
            repeated = cluster.ask(command)
        except CallerError:
            continue
        assert repeated == []


@given(st.lists(COMMANDS, max_size=30))
@settings(max_examples=150, deadline=None)
def test_the_view_is_what_the_aggregates_say_and_a_refusal_changes_nothing(commands):
    cluster = Cluster()
    for command in commands:
        before = cluster.view.as_events()
        try:
            cluster.ask(command)
        except CallerError:
            assert cluster.view.as_events() == before
    stored = dict(cluster.states)
    settings_stored = stored.pop("settings", overrides.INITIAL)
    assert cluster.view.overrides() == dict(sorted(settings_stored.overrides.items()))
    assert cluster.view.stated() == dict(sorted(settings_stored.stated.items()))
    standing = [state for state in stored.values() if state is not None]
    assert set(cluster.view.links()) == {state for state in standing if not isinstance(state, nodes.NodeState)}
    enrolled = {state.enrolled for state in standing if isinstance(state, nodes.NodeState)} - {None}
    assert set(cluster.view.nodes()) == enrolled

"""The state that a what-if begins with: the recorded one, and the changes decreed in it."""

from collections.abc import Iterator

from domain.events import LinkAdded, Registered
from domain.ids import LinkId, ModelId, NodeId
from domain.master.control import fold_control
from domain.master.fold import fold_fact
from domain.master.inputs import ControlInput, FactInput
from domain.master.state import State, decode_state
from services.simulator.product.names import BEGIN_US
from services.simulator.whatif.changes import Changes
from services.simulator.whatif.recorded import Recorded


def begun(recorded: Recorded, changes: Changes) -> State:
    """Return the master's state after the last commit before the range, with the changes decreed there."""
    state = decode_state(recorded.state)
    for event in changes.at_the_beginning(state.control):
        fold_control(state, ControlInput(state.chi, event))
    return state


def start_of(recorded: Recorded, changes: Changes) -> State:
    """Return the master's state where a run on begins, its clock on the run's own timeline.

    What was stored after that commit and before the beginning is folded. Nodes that registered only later, or with other models,
    are there from the beginning.
    """
    state = begun(recorded, changes)
    _fold(state, recorded, changes, until_us=recorded.begin_us)
    for given in _newcomers(recorded, state):
        fold_fact(state, given)
    state.stamp_us = BEGIN_US - max(0, recorded.begin_us - state.stamp_us)
    return state


def end_of(recorded: Recorded) -> State:
    """Return the master's state when the last commit of the range was stored: all that was ever measured."""
    state = decode_state(recorded.state)
    _fold(state, recorded, Changes(), until_us=None)
    return state


def links_of(recorded: Recorded, changes: Changes) -> dict[LinkId, LinkAdded]:
    """Return every link that there was in the range, or would be."""
    links = dict(decode_state(recorded.state).control.links)
    for step in recorded.steps:
        links |= {given.event.link: given.event for _, given in step.control if isinstance(given.event, LinkAdded)}
    return links | {link.link: link for link in changes.added}


def served(recorded: Recorded) -> dict[NodeId, set[ModelId]]:
    """Return the models that each node serves in a run on."""
    return {name: set(node.models) for name, node in start_of(recorded, Changes()).nodes.items()}


def _fold(state: State, recorded: Recorded, changes: Changes, *, until_us: int | None) -> None:
    """Fold inputs without deciding."""
    for step in recorded.steps:
        for at_us, given in step.control:
            if until_us is None or at_us < until_us:
                fold_control(state, ControlInput(given.seq, changes.heard(given.event)))
        for fact in step.facts:
            if until_us is not None and fact.stamp_us >= until_us:
                return
            fold_fact(state, fact)


def _newcomers(recorded: Recorded, state: State) -> Iterator[FactInput]:
    for step in recorded.steps:
        for given in step.facts:
            if isinstance(given, FactInput) and isinstance(given.fact, Registered):
                known = state.nodes.get(given.speaker)
                models = {model.id for model in given.fact.models}
                if known is None or not models <= known.models.keys():
                    yield given

"""Has a helper stopped without a word? Where nothing has changed for long in what is out, it is asked, and must answer soon."""

from collections.abc import Iterator
from typing import Final

from domain.events import LeaseChecked, LeaseStalled, LinkAdded
from domain.ids import NodeId
from domain.master import slots
from domain.master.control import setting
from domain.master.state import OFFLINE, State, Traffic

ANSWER_US: Final = 10_000_000
"""Time to say that it still works; a helper that does keeps its requests."""


def words(state: State, at_us: int) -> Iterator[LeaseChecked | LeaseStalled]:
    """Yield what is due by `at_us`; whoever takes one evolves it before asking for the next."""
    for key in sorted(state.uses):
        traffic = state.traffic.get(key)
        due_us = _due_us(state, key, traffic) if traffic is not None else None
        if traffic is None or due_us is None or due_us > at_us:
            continue
        added = _link(state, key)
        if added is None:
            continue
        asked = (bool(traffic.checked_us) and not traffic.stalled) or _is_away(state, key)
        kind: type[LeaseChecked | LeaseStalled] = LeaseStalled if asked else LeaseChecked
        yield kind(
            link=added.link,
            owner=added.owner,
            owner_model=added.owner_model,
            helper=added.helper,
            helper_model=added.helper_model,
            quiet_us=state.now_us - traffic.changed_us,
        )


def next_due_us(state: State) -> Iterator[int]:
    """Yield the domain times at which something is due."""
    for key in state.uses:
        traffic = state.traffic.get(key)
        due_us = _due_us(state, key, traffic) if traffic is not None else None
        if due_us is not None and _link(state, key) is not None:
            yield due_us


def _due_us(state: State, key: str, traffic: Traffic) -> int | None:
    """Return when the next word about a link is due; None if nothing is out for its owner, or nobody would hear it.

    A helper that falls silent is not asked while it may be back in a moment; one that is offline is not asked at all, and has
    stalled when it would have been. After a stall the owner keeps only what is being answered, and that may stop later: it
    all begins anew.
    """
    if not any(use.lent > use.lent_closed for use in state.uses[key].values()):
        return None
    owner, helper, _ = slots.sides(key)
    patience_us = setting(state.control, "offload_lent_stall_timeout")
    away = _is_away(state, key)
    if _is_silent(state, helper) and not away:
        return None
    if traffic.stalled:
        return None if _is_silent(state, owner) else traffic.checked_us + patience_us
    if traffic.checked_us and not away:
        return traffic.checked_us + ANSWER_US
    return traffic.changed_us + patience_us


def _is_silent(state: State, name: NodeId) -> bool:
    node = state.nodes.get(name)
    return node is not None and bool(node.silent_us)


def _is_away(state: State, key: str) -> bool:
    helper = state.nodes.get(slots.sides(key)[1])
    return helper is not None and helper.health == OFFLINE


def _link(state: State, key: str) -> LinkAdded | None:
    link = slots.sides(key)[2]
    added = state.control.links.get(link) or state.control.gone.get(link)
    return added if added is not None and slots.key_of(added) == key else None


def heard(state: State, helper: NodeId) -> None:
    """A helper beats again: what it was asked meanwhile it may not know of, so that it is asked anew."""
    for key, traffic in state.traffic.items():
        if slots.sides(key)[1] == helper:
            traffic.checked_us = 0


def evolve(state: State, decision: LeaseChecked | LeaseStalled) -> None:
    """Remember what was said."""
    traffic = state.traffic.get(slots.use_key(decision.link, decision.owner, decision.helper))
    if traffic is None:
        return
    traffic.stalled = isinstance(decision, LeaseStalled)
    traffic.checked_us = max(1, state.now_us)

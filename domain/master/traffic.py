"""What goes over each link, from both ends: when something last changed, what failed, and how long a slot stays empty.

It is kept by the two nodes that spoke (domain.master.slots.use_key), so what a node states about a link of others is looked at
by nobody.
"""

from typing import Final

from domain.ids import ModelId, NodeId, RequestId
from domain.master import rooms, slots
from domain.master.queue import Queue
from domain.master.state import TRAFFIC_PER_NODE_MAX, Borrowed, State, Traffic, owner_key

TURNS_KEPT: Final = 8
FAILURES_KEPT: Final = 16
STALE_US: Final = 5_000_000
"""A failure that comes so much later than another, of a request that was out then, is part of the same outage."""
TURN_US_MAX: Final = 5_000_000
"""A longer pause was none of the control path's doing."""
STRANGERS_KEPT: Final = 1_000
"""So much traffic over links that nobody knows is remembered beside that of the known ones."""


def of(state: State, key: str, by: NodeId) -> Traffic | None:
    """Return a link's traffic, remembered from now on; None where `by` has opened too much."""
    traffic = state.traffic.get(key)
    if traffic is None:
        maker = state.nodes[by]
        if maker.traffic >= TRAFFIC_PER_NODE_MAX:
            return None
        maker.traffic += 1
        traffic = state.traffic[key] = Traffic(maker=by)
    return traffic


def forget(state: State, key: str) -> None:
    """Forget a link's traffic, and what was said about it."""
    traffic = state.traffic.pop(key, None)
    if traffic is not None:
        state.nodes[traffic.maker].traffic -= 1


def sweep(state: State) -> None:
    """Forget the traffic over links that nobody knows, once there is much of it."""
    control = state.control
    if len(state.traffic) <= len(control.links) + len(control.gone) + STRANGERS_KEPT:
        return
    known = {slots.key_of(added) for index in (control.links, control.gone) for added in index.values()}
    for key in sorted(state.traffic.keys() - known):
        forget(state, key)


def changed(state: State, key: str) -> None:
    """Note that something changed in what is out: whoever asked whether the helper works has an answer."""
    traffic = state.traffic.get(key)
    if traffic is not None:
        traffic.changed_us, traffic.checked_us, traffic.stalled = state.now_us, 0, False


# ---- how lends end ---------------------------------------------------------------------------------------------------


def failed(state: State, key: str, lent_us: int) -> None:
    """Note that a lend failed for its owner, which was out since `lent_us`.

    What was out when an earlier one failed, and fails long after it, tells of that outage and not of now: a helper that falls
    silent shows in each request that it has, when the time of each runs out.
    """
    traffic = state.traffic.get(key)
    if traffic is not None:
        stale = lent_us <= traffic.failed_us < state.now_us - STALE_US
        if traffic.failures and stale:
            del traffic.failed_at_us[-1:]
        else:
            traffic.failures += 1
        traffic.failed_us = state.now_us
        traffic.failed_at_us = [*traffic.failed_at_us[1 - FAILURES_KEPT :], state.now_us]
        state.failing[key] = ""


def answered(state: State, key: str) -> None:
    """Note that a lend was answered: what failed before it is past."""
    traffic = state.traffic.get(key)
    if traffic is not None:
        traffic.failures, traffic.failed_at_us, traffic.answered_us = 0, [], state.now_us
        state.failing[key] = ""


def borrow_ended(state: State, name: NodeId, model: ModelId, lent_us: int, *, well: bool) -> None:
    """Note what a helper says itself of how a borrowed request ended, which was out since `lent_us`.

    An engine that dies takes all with it that is inside: that is one failure.
    """
    node = state.nodes[name]
    if model not in node.models:
        return
    known = node.borrowed.get(model)
    if well and known is None:
        return
    if known is None:
        known = node.borrowed[model] = Borrowed()
    if well:
        known.failures = 0
    else:
        known.failures += not known.failures or lent_us > known.failed_us
    known.failed_us = known.failed_us if well else state.now_us
    state.failing[owner_key(name, model)] = ""


# ---- the turnaround --------------------------------------------------------------------------------------------------


def ended_at_helper(state: State, key: str, link_owner: NodeId, helper: NodeId, model: ModelId) -> None:
    """Note that the helper has ended one: if it was the only one and more is lendable, the slot waits for the next now."""
    traffic = state.traffic.get(key)
    room = rooms.entered(state.nodes[helper], model)
    if room is not None:
        room.freed_us = state.now_us
    if traffic is not None:
        queue = state.queues.get(owner_key(link_owner, traffic.owner_model))
        alone = not slots.count_open(state, key)
        traffic.freed_us = state.now_us if alone and queue is not None and queue.lendable else 0
        traffic.turning = RequestId("")


def sent(state: State, key: str, request: RequestId, queue: Queue) -> None:
    """Note that the owner sends the request; `queue` is as it was before."""
    traffic = state.traffic.get(key)
    if traffic is None or not traffic.freed_us or traffic.turning:
        return
    if queue.lendable_us and queue.lendable_us <= traffic.freed_us:
        traffic.turning = request
    else:
        traffic.freed_us = 0


def began_at_helper(state: State, key: str, request: RequestId, helper: NodeId, model: ModelId) -> None:
    """Note that the helper's engine begins the request: if nothing else was there meanwhile, the pause is a turnaround."""
    traffic = state.traffic.get(key)
    room = rooms.entered(state.nodes[helper], model)
    if traffic is not None and traffic.freed_us:
        undisturbed = room is not None and room.freed_us == traffic.freed_us and room.began_us <= traffic.freed_us
        own = state.queues.get(owner_key(helper, model))
        if traffic.turning == request and undisturbed and not rooms.own_work((own,)):
            pause_us = min(max(1, state.now_us - traffic.freed_us), TURN_US_MAX)
            traffic.turns_us = [*traffic.turns_us[1 - TURNS_KEPT :], pause_us]
        traffic.freed_us, traffic.turning = 0, RequestId("")
    if room is not None:
        room.began_us = state.now_us

"""Slots of a lease, counted by request id from both sides.

Owner and helper state their facts independently, so their order in the stream says nothing: the helper's `accepted` may be
stored after the owner's `answered`. Each side's openings and closings are therefore counted apart, and a slot is open while
the most openings that a side stated exceed the most closings that a side stated; but for a minute at most if the helper never
speaks of it.

The key of a link's uses holds the two nodes that spoke, so a node that states facts about a link of others only ever fills
a key that nobody looks up, and only as many as one node may.
"""

from typing import Final

from domain.events import LinkAdded
from domain.ids import LinkId, NodeId, RequestId
from domain.master.state import USES_PER_NODE_MAX, WORK_MAX, SlotUse, State

ON_ITS_WAY_US: Final = 60_000_000
"""A helper takes or refuses what is sent to it in seconds: what it has not spoken of for so long never reached it.

Its owner may have ended in between, and never say so.
"""


def use_key(link: LinkId, owner: NodeId, helper: NodeId) -> str:
    """Return the key of what is out over `link` from `owner` to `helper`."""
    return f"{owner}>{helper}>{link}"


def sides(key: str) -> tuple[NodeId, NodeId, LinkId]:
    """Return (owner, helper, link) of a key of uses."""
    owner, _, rest = key.partition(">")
    helper, _, link = rest.partition(">")
    return NodeId(owner), NodeId(helper), LinkId(link)


def key_of(added: LinkAdded) -> str:
    """Return the key of what is out over a link."""
    return use_key(added.link, added.owner, added.helper)


def is_open(use: SlotUse, now_us: int) -> bool:
    """Tell whether the request occupies a slot of its link now: it is there, or may still be on its way."""
    closed = max(use.lent_closed, use.accepted_closed)
    if use.lent <= closed and use.accepted <= closed:
        return False
    return use.accepted > 0 or now_us < use.opened_us + ON_ITS_WAY_US


def count_open(state: State, key: str) -> int:
    """Return how many requests are out over a link."""
    uses = state.uses.get(key)
    if not uses:
        return 0
    now_us = state.now_us
    return sum([is_open(use, now_us) for use in uses.values()])


def is_on_its_way(state: State, key: str) -> bool:
    """Tell whether something is lent over a link that the helper has not accepted yet."""
    uses = state.uses.get(key)
    return any(is_open(use, state.now_us) and not use.accepted for use in uses.values()) if uses else False


def lent(state: State, key: str, request: RequestId, work: int, by: NodeId) -> bool:
    """Note that the owner `by` sends the request: it opens a slot. False where it has opened too many."""
    use = _use(state, key, request, work, by)
    if use is not None:
        use.lent += 1
    return use is not None


def accepted(state: State, key: str, request: RequestId, by: NodeId) -> bool:
    """Note that the helper `by` took the request: it opens a slot, or the one that the owner opened already.

    False where `by` has opened too many.
    """
    use = _use(state, key, request, 0, by)
    if use is not None:
        use.accepted += 1
    return use is not None


def _use(state: State, key: str, request: RequestId, work: int, by: NodeId) -> SlotUse | None:
    """Return the request's use of the link, opened if there was none; None where `by` has opened too many."""
    uses = state.uses.get(key, {})
    use = uses.get(request)
    if use is None:
        maker = state.nodes[by]
        if maker.uses >= USES_PER_NODE_MAX:
            return None
        maker.uses += 1
        use = uses[request] = SlotUse(work=0, maker=by, opened_us=state.now_us)
        state.uses[key] = uses
    use.work = use.work or min(work, WORK_MAX)
    return use


def opened_us(state: State, key: str, request: RequestId) -> int:
    """Return when a request that is out over a link was first spoken of, in domain time; now for one that is not known."""
    use = state.uses.get(key, {}).get(request)
    return use.opened_us if use is not None else state.now_us


def is_lent(state: State, key: str, request: RequestId) -> bool:
    """Tell whether the owner has said that it sends the request, and nothing since of how that ended."""
    use = state.uses.get(key, {}).get(request)
    return use is not None and use.lent > use.lent_closed


def started(state: State, key: str, request: RequestId) -> None:
    """Note that the helper's engine began the request."""
    use = state.uses.get(key, {}).get(request)
    if use is not None:
        use.started_us = state.now_us


def closed_by_owner(state: State, key: str, request: RequestId) -> None:
    """Note the owner's terminal fact about the request on this link."""
    use = state.uses.get(key, {}).get(request)
    if use is not None:
        use.lent_closed = min(use.lent, use.lent_closed + 1)
        _forget_if_done(state, key, request, use)


def left_by_owner(state: State, key: str, request: RequestId) -> None:
    """Note that the owner has nothing more to do with the request, whatever it said of this link."""
    use = state.uses.get(key, {}).get(request)
    if use is not None:
        use.lent_closed = use.lent
        _forget_if_done(state, key, request, use)


def closed_by_helper(state: State, key: str, request: RequestId) -> None:
    """Note the helper's terminal fact about the request on this link; it may never have accepted it."""
    use = state.uses.get(key, {}).get(request)
    if use is not None:
        use.accepted_closed += 1
        _forget_if_done(state, key, request, use)


def left_by_helper(state: State, key: str, request: RequestId) -> None:
    """Note that the helper has the request no more, if it ever accepted it: what is still on its way stays counted."""
    use = state.uses.get(key, {}).get(request)
    if use is not None and use.accepted > use.accepted_closed:
        use.accepted_closed = use.accepted
        _forget_if_done(state, key, request, use)


def began_anew(state: State, node: NodeId) -> None:
    """Close what a node's ended process held: as a helper all of it; as an owner its own side of the count."""
    for key in sorted(key for key in state.uses if node in sides(key)[:2]):
        helper = sides(key)[1]
        for request, use in sorted(state.uses[key].items()):
            if node == helper:
                use.accepted_closed = max(use.lent, use.accepted, use.accepted_closed)
                use.accepted = use.accepted_closed
            else:
                use.lent = use.lent_closed = 0
            _forget_if_done(state, key, request, use)


def _forget_if_done(state: State, key: str, request: RequestId, use: SlotUse) -> None:
    if use.lent <= use.lent_closed and use.accepted <= use.accepted_closed:
        state.nodes[use.maker].uses -= 1
        uses = state.uses[key]
        del uses[request]
        if not uses:
            del state.uses[key]

"""What owners and helpers state about lending, into state: slots, and what went over each link."""

from domain.events import (
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    CutOff,
    LendAnswered,
    LendBusy,
    LendReturned,
    RelayRefused,
    StillRunning,
)
from domain.ids import NodeId
from domain.master import slots, traffic
from domain.master.state import State, owner_key, touch

_NO_FAULT = "client_gone"
"""A cut-off for which the helper can do nothing."""
_UNREACHED = frozenset({"helper_unreachable", "forward_failed"})
_ERROR_FROM = 400
_FAULTY_REQUEST = frozenset({400, 413, 415, 422})
"""Answers that say what is wrong with the request: any engine would have given them, so they tell nothing of this one.

Other errors below 500 (401, 403, 404, 405, 408, 429) are the helper's: the owner sent the request because its own engine serves
such ones, so a helper that refuses them is set up differently, or has enough of its own.
"""
_NOT_LOADED = "load_failed"
"""A return that does speak against its helper: the next request would make it try the load again.

Counted by the helper's own word alone. One load fails for all that wait for it, of whichever owners, and only the helper's facts
show that it was one.
"""

OwnersEnd = LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused


def is_failure(fact: OwnersEnd) -> bool:
    """Tell whether a lend ended in a way that speaks against its helper.

    One that is handed back does not, nor one that was answered as any engine would have.
    """
    match fact:
        case CutOff(reason=reason):
            return reason != _NO_FAULT
        case RelayRefused(reason=reason):
            return reason in _UNREACHED
        case LendAnswered(status=status):
            return status >= _ERROR_FROM and status not in _FAULTY_REQUEST
        case _:
            return False


def lend_closed(state: State, node: NodeId, fact: OwnersEnd) -> None:
    """Take how a lend ended for its owner."""
    key = slots.use_key(fact.link, node, fact.helper)
    if key in state.uses:
        if is_failure(fact):
            traffic.failed(state, key, slots.opened_us(state, key, fact.request))
        elif isinstance(fact, LendAnswered) and fact.status not in _FAULTY_REQUEST:
            traffic.answered(state, key)
        traffic.changed(state, key)
    slots.closed_by_owner(state, key, fact.request)
    touch(state, owner_key(node, fact.model), "borrowed_completed")


def accepted(state: State, node: NodeId, fact: BorrowAccepted) -> None:
    """Take that a helper's desk took a request."""
    key = slots.use_key(fact.link, fact.owner, node)
    if slots.accepted(state, key, fact.request, node):
        traffic.of(state, key, node)
    traffic.changed(state, key)


def started(state: State, node: NodeId, fact: BorrowStarted) -> None:
    """Take that a helper's engine began a borrowed request."""
    key = slots.use_key(fact.link, fact.owner, node)
    slots.started(state, key, fact.request)
    traffic.began_at_helper(state, key, fact.request, node, fact.model)
    traffic.changed(state, key)


def still_running(state: State, node: NodeId, fact: StillRunning) -> None:
    """Take that a helper works on what it was asked about."""
    traffic.changed(state, slots.use_key(fact.link, fact.owner, node))


def borrow_closed(state: State, node: NodeId, fact: BorrowReturned | BorrowBusy) -> None:
    """Take that a helper does not do a request."""
    key = slots.use_key(fact.link, fact.owner, node)
    lent_us = slots.opened_us(state, key, fact.request)
    slots.closed_by_helper(state, key, fact.request)
    if isinstance(fact, BorrowReturned) and fact.reason == _NOT_LOADED:
        traffic.borrow_ended(state, node, fact.model, lent_us, well=False)
    traffic.changed(state, key)
    _last_home(state, node, fact)


def borrow_finished(state: State, node: NodeId, fact: BorrowFinished) -> None:
    """Take how a borrowed request ended in the helper's engine."""
    key = slots.use_key(fact.link, fact.owner, node)
    lent_us = slots.opened_us(state, key, fact.request)
    slots.closed_by_helper(state, key, fact.request)
    traffic.ended_at_helper(state, key, fact.owner, node, fact.model)
    if not fact.owner_gone and fact.status not in _FAULTY_REQUEST:
        traffic.borrow_ended(state, node, fact.model, lent_us, well=fact.ok)
    traffic.changed(state, key)
    _last_home(state, node, fact)


def _last_home(state: State, node: NodeId, fact: BorrowReturned | BorrowBusy | BorrowFinished) -> None:
    """Touch an owner without backlog whose lease was kept only for what was out: that may have been the last."""
    lease = state.leases.get(fact.link)
    if lease is None or (lease.event.owner, lease.event.helper) != (fact.owner, node):
        return
    key = owner_key(lease.event.owner, lease.event.owner_model)
    queue = state.queues.get(key)
    if queue is None or not queue.held:
        touch(state, key, "borrowed_completed")

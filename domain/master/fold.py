"""Facts and control events into state: `fold_fact`, `fold_control`. They never refuse, for what they read has happened.

The two commute (control events touch only `State.control`, facts never do), so it does not matter in which order the
messages of two streams reached a master.
"""

from collections.abc import Callable
from typing import Any

from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Cancelled,
    CutOff,
    Draining,
    Due,
    Expired,
    FactsSummarised,
    Failed,
    Finished,
    HeartbeatMissed,
    HeartbeatSeen,
    Held,
    Input,
    LeaseUpdated,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    Loaded,
    LoadFailed,
    NodeSnapshot,
    NotAccepting,
    QueueSnapshot,
    Registered,
    Rejected,
    RelayRefused,
    Restored,
    Started,
    Stopped,
    Unloaded,
)
from domain.ids import ModelId, NodeId, RequestId
from domain.master import health, registration, slots
from domain.master.fits import Fit
from domain.master.inputs import FactInput, FactOrRejected
from domain.master.state import STAMP_STEP_US_MAX, EngineJob, HeldJob, Node, Queue, State, owner_key, touch

GAPS_KEPT = 16


def fold_fact(state: State, given: FactOrRejected) -> None:
    """Fold one message of LW_EVENTS; a rejected one only moves time and the position."""
    _advance(state, given.seq, given.stamp_us)
    if not isinstance(given, FactInput):
        return
    if not given.speaker:
        if given.term == state.term:
            _OBSERVED[type(given.fact)](state, given.fact)
        return
    node = state.nodes.get(given.speaker)
    if node is None:
        node = state.nodes[given.speaker] = Node()
    if not _in_turn(state, given, node):
        return
    handler = _HANDLERS.get(type(given.fact))
    if handler is not None:
        handler(state, given.speaker, given.fact)


def _advance(state: State, seq: int, stamp_us: int) -> None:
    if state.stamp_us:
        state.now_us += min(max(stamp_us - state.stamp_us, 0), STAMP_STEP_US_MAX)
    state.stamp_us = max(state.stamp_us, stamp_us) if stamp_us - state.stamp_us < STAMP_STEP_US_MAX else stamp_us
    state.hi = seq


def _in_turn(state: State, given: FactInput, node: Node) -> bool:
    """Apply the producer rule: only the next fact of the living incarnation is folded."""
    if given.incarnation != node.incarnation:
        if given.pseq != 1 or type(given.fact) is not Registered or given.incarnation in node.closed:
            return False
        registration.open_incarnation(state, given.speaker, node, given.incarnation)
    elif given.pseq <= node.pseq:
        return False
    elif given.pseq > node.pseq + 1 and not (type(given.fact) is NodeSnapshot and given.fact.part == 1):
        node.incomplete = True
        return False
    node.pseq = given.pseq
    node.incomplete = False
    if given.late:
        node.late = True
    return True


# ---- an owner's queue ------------------------------------------------------------------------------------------------


def _queue(state: State, key: str) -> Queue:
    queue = state.queues.get(key)
    if queue is None:
        queue = state.queues[key] = Queue()
    return queue


def _arrived(state: State, queue: Queue) -> None:
    if queue.arrival_us:
        queue.gaps_us.append(state.now_us - queue.arrival_us)
        del queue.gaps_us[:-GAPS_KEPT]
    queue.arrival_us = state.now_us


def _held(state: State, node: NodeId, fact: Held) -> None:
    key = owner_key(node, fact.model)
    queue = _queue(state, key)
    if fact.request in queue.held:
        return
    if fact.request in queue.lent:  # it comes back from a helper: held again, not arrived again
        del queue.lent[fact.request]
    elif fact.request in queue.engine:
        del queue.engine[fact.request]
    else:
        _arrived(state, queue)
    _hold(queue, fact.request, HeldJob(fact.work, fact.lendable, fact.est_tokens))
    touch(state, key, "enqueued")


def _hold(queue: Queue, request: RequestId, job: HeldJob) -> None:
    queue.held[request] = job
    queue.held_work += job.work
    queue.held_tokens += job.tokens
    queue.lendable += job.lendable


def unhold(queue: Queue, request: RequestId) -> HeldJob | None:
    """Take a request out of what is held; None if it was not there."""
    job = queue.held.pop(request, None)
    if job is not None:
        queue.held_work -= job.work
        queue.held_tokens -= job.tokens
        queue.lendable -= job.lendable
    return job


def _started(state: State, node: NodeId, fact: Started) -> None:
    key = owner_key(node, fact.model)
    queue = _queue(state, key)
    if unhold(queue, fact.request) is None and fact.request not in queue.engine:
        _arrived(state, queue)
    queue.engine[fact.request] = EngineJob(fact.work, state.now_us)
    touch(state, key, "enqueued")


_Terminal = Finished | Failed | Cancelled | Rejected | Expired


def _ended(state: State, node: NodeId, fact: _Terminal) -> None:
    key = owner_key(node, fact.model)
    queue = state.queues.get(key)
    if queue is not None:
        unhold(queue, fact.request)
        queue.lent.pop(fact.request, None)
        if queue.engine.pop(fact.request, None) is not None:
            queue.freed_us = state.now_us
        touch(state, key, "borrowed_completed" if fact.helper else "completed")


def _finished(state: State, node: NodeId, fact: Finished) -> None:
    if not fact.helper and fact.service_us and fact.status == 200:
        _fit(state, node, fact.model).learn(fact.work, fact.service_us)
    _ended(state, node, fact)


def _fit(state: State, node: NodeId, model: ModelId) -> Fit:
    return state.fits.setdefault(owner_key(node, model), Fit())


def _alive(state: State, node: NodeId, fact: QueueSnapshot | LeaseUpdated) -> None:
    touch(state, owner_key(node, fact.model), "tick")


# ---- lending ---------------------------------------------------------------------------------------------------------


def _lent(state: State, node: NodeId, fact: Lent) -> None:
    queue = _queue(state, owner_key(node, fact.model))
    unhold(queue, fact.request)
    queue.lent[fact.request] = fact.link
    if not queue.held:  # nothing is left to lend: what the lease holds is wanted elsewhere
        touch(state, owner_key(node, fact.model), "drained")
    slots.lent(state, slots.use_key(fact.link, node, fact.helper), fact.request, fact.work)


def _lend_closed(
    state: State, node: NodeId, fact: LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused
) -> None:
    slots.closed_by_owner(state, slots.use_key(fact.link, node, fact.helper), fact.request)
    touch(state, owner_key(node, fact.model), "borrowed_completed")


def _accepted(state: State, node: NodeId, fact: BorrowAccepted) -> None:
    slots.accepted(state, slots.use_key(fact.link, fact.owner, node), fact.request)


def _borrow_started(state: State, node: NodeId, fact: BorrowStarted) -> None:
    slots.started(state, slots.use_key(fact.link, fact.owner, node), fact.request)


def _borrow_closed(state: State, node: NodeId, fact: BorrowReturned | BorrowBusy) -> None:
    slots.closed_by_helper(state, slots.use_key(fact.link, fact.owner, node), fact.request)
    _last_home(state, node, fact)


def _borrow_finished(state: State, node: NodeId, fact: BorrowFinished) -> None:
    slots.closed_by_helper(state, slots.use_key(fact.link, fact.owner, node), fact.request)
    _last_home(state, node, fact)
    if fact.ok:  # failures and cut-offs never teach
        _fit(state, node, fact.model).learn(fact.work, fact.service_us)


def _last_home(state: State, node: NodeId, fact: BorrowReturned | BorrowBusy | BorrowFinished) -> None:
    """Touch an owner without backlog whose lease was kept only for what was out: that may have been the last."""
    lease = state.leases.get(fact.link)
    if lease is None or (lease.event.owner, lease.event.helper) != (fact.owner, node):
        return
    key = owner_key(lease.event.owner, lease.event.owner_model)
    queue = state.queues.get(key)
    if queue is None or not queue.held:
        touch(state, key, "borrowed_completed")


# ---- models and the node itself --------------------------------------------------------------------------------------


def _loaded(state: State, node: NodeId, fact: Loaded | Restored) -> None:
    _fit(state, node, fact.model).learn_load(fact.load_us)
    registration.set_ready(state, node, fact.model, ready=True)


def _unloaded(state: State, node: NodeId, fact: Unloaded | LoadFailed) -> None:
    registration.set_ready(state, node, fact.model, ready=False)


def _accepting(state: State, node: NodeId, fact: Accepting) -> None:
    state.nodes[node].not_accepting.pop(fact.model, None)
    registration.touch_lenders(state, owner_key(node, fact.model), "health")


def _not_accepting(state: State, node: NodeId, fact: NotAccepting) -> None:
    state.nodes[node].not_accepting[fact.model] = fact.reason
    registration.touch_lenders(state, owner_key(node, fact.model), "health")


def _draining(state: State, node: NodeId, fact: Draining | Stopped) -> None:
    del fact
    state.nodes[node].draining = True
    registration.touch_node(state, node, "health")


def _summarised(state: State, node: NodeId, fact: FactsSummarised) -> None:
    del fact  # its counts are for people; the snapshot that follows restores the state
    state.nodes[node].late = True


_HANDLERS: dict[type[Input], Callable[[State, NodeId, Any], None]] = {
    Held: _held,
    Started: _started,
    Finished: _finished,
    Failed: _ended,
    Cancelled: _ended,
    Rejected: _ended,
    Expired: _ended,
    QueueSnapshot: _alive,
    Lent: _lent,
    LendAnswered: _lend_closed,
    LendReturned: _lend_closed,
    LendBusy: _lend_closed,
    CutOff: _lend_closed,
    RelayRefused: _lend_closed,
    LeaseUpdated: _alive,
    BorrowAccepted: _accepted,
    BorrowStarted: _borrow_started,
    BorrowFinished: _borrow_finished,
    BorrowReturned: _borrow_closed,
    BorrowBusy: _borrow_closed,
    Loaded: _loaded,
    Restored: _loaded,
    Unloaded: _unloaded,
    LoadFailed: _unloaded,
    Registered: registration.registered,
    NodeSnapshot: registration.snapshot,
    Accepting: _accepting,
    NotAccepting: _not_accepting,
    Draining: _draining,
    Stopped: _draining,
    FactsSummarised: _summarised,
}
"""One handler a fact; facts without one (Kept, LeaseRefused, NativeWaited, ...) are for people and projections."""

_OBSERVED: dict[type[Input], Callable[[State, Any], None]] = {
    HeartbeatMissed: health.missed,
    HeartbeatSeen: health.seen,
    Due: health.due,
}

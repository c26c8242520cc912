"""Facts and control events into state: `fold_fact`, `fold_control`. They never raise, for what they read has happened.

A node that was taken over may state anything: what it says is kept under its own name only, about models that it
registered, and no more of it than one node may fill (the `_MAX` of domain.master.state).

The two commute (control events touch only `State.control`, facts never do), so it does not matter in which order the
messages of two streams reached a master.
"""

from bisect import insort
from collections.abc import Callable
from typing import Any, TypeVar

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
    LoadStarted,
    NodeSnapshot,
    NotAccepting,
    QueueSnapshot,
    Registered,
    Rejected,
    RelayRefused,
    RestoreCancelled,
    Restored,
    Started,
    StillRunning,
    Stopped,
    Unloaded,
)
from domain.ids import ModelId, NodeId, RequestId
from domain.master import health, lending, registration, rooms, slots, timers, traffic
from domain.master.fits import Fit
from domain.master.inputs import FactInput, FactOrRejected
from domain.master.inputs import Rejected as Refused
from domain.master.queue import EngineJob, HeldJob, Queue
from domain.master.state import (
    ENGINE_MAX,
    OPEN_FREE,
    OPEN_PER_NODE_MAX,
    OPEN_PER_QUEUE_MAX,
    QUEUES_PER_NODE_MAX,
    STAMP_STEP_US_MAX,
    WORK_MAX,
    Node,
    State,
    owner_key,
    touch,
    touch_lenders,
)

GAPS_KEPT = 16


def fold_fact(state: State, given: FactOrRejected) -> None:
    """Fold one message of LW_EVENTS; a rejected one only moves time and the position."""
    stamp_us = given.stamp_us
    if state.stamp_us:
        step_us = stamp_us - state.stamp_us
        if 0 < step_us <= STAMP_STEP_US_MAX:
            state.now_us += step_us
        elif step_us > 0:
            state.now_us += STAMP_STEP_US_MAX
    state.stamp_us = stamp_us  # also where it went back: time must go on from there, not wait until it is caught up
    state.hi = given.seq
    if not isinstance(given, FactInput):
        if given.speaker:
            _skip(state, given)
        return
    speaker, fact = given.speaker, given.fact
    if not speaker:
        observed = _OBSERVED[type(fact)]
        if observed is not None and given.term == state.term:
            observed(state, fact)
        return
    node = state.nodes.get(speaker)
    if node is None:
        node = state.nodes[speaker] = Node()
    if not _in_turn(state, given, node):
        return
    handler = _HANDLERS[type(fact)]
    if handler is not None:
        handler(state, speaker, fact)


def _skip(state: State, refused: Refused) -> None:
    """Take note that a node said something unreadable, so that what it says next is no gap."""
    node = state.nodes.get(refused.speaker)
    if node is not None and refused.incarnation == node.incarnation and refused.pseq == node.pseq + 1:
        node.pseq = refused.pseq


def _in_turn(state: State, given: FactInput, node: Node) -> bool:
    """Apply the producer rule: only the next fact of the living incarnation is folded."""
    incarnation, pseq = given.incarnation, given.pseq
    if pseq == node.pseq + 1 and incarnation == node.incarnation and incarnation:  # as nearly every fact is
        node.pseq, node.incomplete = pseq, False
        if given.late:
            node.late = True
        return True
    return _in_turn_after_all(state, given, node)


def _in_turn_after_all(state: State, given: FactInput, node: Node) -> bool:
    if given.incarnation != node.incarnation or not node.incarnation:
        # a node that is not known at all may be in the middle of its life: a new generation of the ledger has begun
        begins = given.pseq == 1 or not node.incarnation
        if not begins or not isinstance(given.fact, Registered) or given.incarnation in node.closed:
            return False
        registration.open_incarnation(state, given.speaker, node, given.incarnation)
        node.pseq = given.pseq - 1
    elif given.pseq <= node.pseq:
        return False
    elif given.pseq > node.pseq + 1 and not (isinstance(given.fact, NodeSnapshot) and given.fact.part == 1):
        node.incomplete = True
        return False
    if given.pseq > node.pseq + 1:
        node.late = True  # a gap: what is known is out of date until the snapshot's last part
    node.pseq = given.pseq
    node.incomplete = False
    if given.late:
        node.late = True
    return True


# ---- an owner's queue ------------------------------------------------------------------------------------------------


def _queue(state: State, name: NodeId, model: ModelId) -> Queue | None:
    """Return the queue of a model that the node registered; None where it may remember nothing more."""
    queue = state.queues.get(owner_key(name, model))
    if queue is None:
        node = state.nodes[name]
        if model not in node.models or len(node.queues) >= QUEUES_PER_NODE_MAX:
            return None
        insort(node.queues, model)
        queue = state.queues[owner_key(name, model)] = Queue()
    return queue


def _is_full(state: State, name: NodeId, queue: Queue) -> bool:
    size = _open_in(queue)
    if size < OPEN_FREE:
        return False
    models = state.nodes[name].queues
    return size >= OPEN_PER_QUEUE_MAX or (
        sum(_open_in(state.queues[owner_key(name, model)]) for model in models) >= OPEN_PER_NODE_MAX
    )


def _open_in(queue: Queue) -> int:
    return len(queue.held) + len(queue.engine) + len(queue.lent)


def _arrived(state: State, queue: Queue) -> None:
    if queue.arrival_us:
        queue.gaps_us.append(state.now_us - queue.arrival_us)
        del queue.gaps_us[:-GAPS_KEPT]
    queue.arrival_us = state.now_us


def _held(state: State, node: NodeId, fact: Held) -> None:
    key = owner_key(node, fact.model)
    queue = _queue(state, node, fact.model)
    if queue is None:
        return
    job = HeldJob(min(fact.work, WORK_MAX), fact.lendable, fact.est_tokens, fact.vision)
    if fact.request in queue.held:  # its size is known now, or it is told to a master that may know it: no arrival
        if queue.restate(fact.request, job, state.now_us):
            touch(state, key, "enqueued")
        return
    if fact.request in queue.lent:  # it comes back from a helper: held again, not arrived again
        del queue.lent[fact.request]
    elif fact.request in queue.engine:
        del queue.engine[fact.request]
    else:
        _arrived(state, queue)
    if not _is_full(state, node, queue):
        queue.hold(fact.request, job, state.now_us)
    touch(state, key, "enqueued")


def unhold(state: State, key: str, queue: Queue, request: RequestId) -> HeldJob | None:
    """Take a request out of what is held; None if it was not there. An owner that holds nothing has no timer."""
    job = queue.release(request)
    if job is not None and not queue.held:
        state.planned_us.pop(key, None)
        state.probe_due.pop(key, None)
    return job


def _started(state: State, node: NodeId, fact: Started) -> None:
    key = owner_key(node, fact.model)
    queue = _queue(state, node, fact.model)
    if queue is None:
        return
    if (
        unhold(state, key, queue, fact.request) is None
        and queue.lent.pop(fact.request, None) is None
        and fact.request not in queue.engine
    ):
        _arrived(state, queue)
    if len(queue.engine) < ENGINE_MAX:
        queue.engine[fact.request] = EngineJob(min(fact.work, WORK_MAX), state.now_us)
    touch(state, key, "enqueued")


_Terminal = Finished | Failed | Cancelled | Rejected | Expired


def _ended(state: State, node: NodeId, fact: _Terminal) -> None:
    _end(state, owner_key(node, fact.model), fact)


def _end(state: State, key: str, fact: _Terminal) -> None:
    queue = state.queues.get(key)
    if queue is not None:
        request = fact.request
        unhold(state, key, queue, request)
        over = queue.lent.pop(request, None)
        if over:
            slots.left_by_owner(state, over, request)
            traffic.changed(state, over)
        if queue.engine.pop(request, None) is not None:
            queue.freed_us = state.now_us
        touch(state, key, "borrowed_completed" if fact.helper else "completed")


def _finished(state: State, node: NodeId, fact: Finished) -> None:
    key = owner_key(node, fact.model)
    if not fact.helper and fact.status == 200:
        _learn(state, key, node, fact)
    _end(state, key, fact)


def _fit(state: State, key: str, node: NodeId, model: ModelId) -> Fit | None:
    """Return what is measured of a model that the node registered; `key` is the model's."""
    if model not in state.nodes[node].models:
        return None
    fit = state.fits.get(key)
    if fit is None:
        fit = state.fits[key] = Fit()
    return fit


def _learn(state: State, key: str, node: NodeId, fact: Finished | BorrowFinished) -> None:
    if fact.work > 0 and fact.service_us > 0:
        fit = _fit(state, key, node, fact.model)
        if fit is not None:
            fit.learn(min(fact.work, WORK_MAX), fact.service_us, state.now_us)
            state.refit[key] = ""


def _alive(state: State, node: NodeId, fact: QueueSnapshot | LeaseUpdated) -> None:
    touch(state, owner_key(node, fact.model), "tick")


# ---- lending ---------------------------------------------------------------------------------------------------------


def _lent(state: State, node: NodeId, fact: Lent) -> None:
    queue = _queue(state, node, fact.model)
    if queue is None:
        return
    key, over = owner_key(node, fact.model), slots.use_key(fact.link, node, fact.helper)
    traffic.sent(state, over, fact.request, queue)
    unhold(state, key, queue, fact.request)
    queue.engine.pop(fact.request, None)
    if fact.request in queue.lent or not _is_full(state, node, queue):
        queue.lent[fact.request] = over
    if not queue.held:  # nothing is left to lend: what the lease holds is wanted elsewhere
        touch(state, key, "drained")
    if slots.lent(state, over, fact.request, fact.work, node):
        went = traffic.of(state, over, node)
        if went is not None:
            went.owner_model = fact.model
    traffic.changed(state, over)


# ---- models and the node itself --------------------------------------------------------------------------------------


def _loaded(state: State, node: NodeId, fact: Loaded) -> None:
    fit = _fit(state, owner_key(node, fact.model), node, fact.model)
    if fit is not None:
        fit.learn_load(fact.load_us, state.now_us)
    rooms.loaded(state, node, fact)


def _borrow_finished(state: State, node: NodeId, fact: BorrowFinished) -> None:
    lending.borrow_finished(state, node, fact)
    if fact.ok:  # failures and cut-offs never teach
        _learn(state, owner_key(node, fact.model), node, fact)


def _accepting(state: State, node: NodeId, fact: Accepting) -> None:
    state.nodes[node].not_accepting.pop(fact.model, None)
    touch_lenders(state, owner_key(node, fact.model), "health")


def _not_accepting(state: State, node: NodeId, fact: NotAccepting) -> None:
    if fact.model not in state.nodes[node].models:
        return
    state.nodes[node].not_accepting[fact.model] = fact.reason
    touch_lenders(state, owner_key(node, fact.model), "health")


def _draining(state: State, node: NodeId, fact: Draining | Stopped) -> None:
    del fact
    state.nodes[node].draining = True
    registration.touch_node(state, node, "health")


def _summarised(state: State, node: NodeId, fact: FactsSummarised) -> None:
    del fact  # its counts are for people; the snapshot that follows restores the state
    state.nodes[node].late = True


_Handler = TypeVar("_Handler")


class _ByKind(dict[type[Input], _Handler | None]):
    """What each kind of event is folded by; None for one that no rule reads."""

    def __missing__(self, kind: type[Input]) -> _Handler | None:
        """Find the handler of a reader's own subclass of an event (adapters.log.bounds), once."""
        found = self[kind] = next((self[base] for base in kind.__mro__[1:] if base in self), None)
        return found


_HANDLERS: _ByKind[Callable[[State, NodeId, Any], None]] = _ByKind(
    {
        Held: _held,
        Started: _started,
        Finished: _finished,
        Failed: _ended,
        Cancelled: _ended,
        Rejected: _ended,
        Expired: _ended,
        QueueSnapshot: _alive,
        Lent: _lent,
        LendAnswered: lending.lend_closed,
        LendReturned: lending.lend_closed,
        LendBusy: lending.lend_closed,
        CutOff: lending.lend_closed,
        RelayRefused: lending.lend_closed,
        LeaseUpdated: _alive,
        BorrowAccepted: lending.accepted,
        BorrowStarted: lending.started,
        BorrowFinished: _borrow_finished,
        BorrowReturned: lending.borrow_closed,
        BorrowBusy: lending.borrow_closed,
        StillRunning: lending.still_running,
        LoadStarted: rooms.load_started,
        Loaded: _loaded,
        Restored: rooms.loaded,  # no sample: the load that it tells of has said `loaded` itself
        RestoreCancelled: rooms.restore_cancelled,
        Unloaded: rooms.unloaded,
        LoadFailed: rooms.unloaded,
        Registered: registration.registered,
        NodeSnapshot: registration.snapshot,
        Accepting: _accepting,
        NotAccepting: _not_accepting,
        Draining: _draining,
        Stopped: _draining,
        FactsSummarised: _summarised,
    }
)
"""One handler a fact; facts without one (Kept, LeaseRefused, NativeWaited, ...) are for people and projections."""

_OBSERVED: _ByKind[Callable[[State, Any], None]] = _ByKind(
    {
        HeartbeatMissed: health.missed,
        HeartbeatSeen: health.seen,
        Due: timers.due,
    }
)

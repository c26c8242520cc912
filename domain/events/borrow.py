"""Facts of a helper's desk."""

from domain.events.base import EventBody
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId


class _Borrowing(EventBody, frozen=True, kw_only=True):
    request: RequestId
    model: ModelId
    """The helper's model."""
    owner: NodeId
    link: LinkId
    lease: LeaseId


class BorrowAccepted(_Borrowing, frozen=True, kw_only=True, tag="borrow.accepted"):
    """The desk took the request (before the body was asked for); opens a slot."""

    position: int
    """Requests before it at the desk; 0 starts next."""


class BorrowStarted(_Borrowing, frozen=True, kw_only=True, tag="borrow.started"):
    """The request claimed the runtime: the point of no return."""

    load_us: int = 0


class BorrowFinished(_Borrowing, frozen=True, kw_only=True, tag="borrow.finished"):
    """The request left the engine, well or badly. Closes the slot."""

    work: int
    service_us: int
    """Time in service alone; teaches the helper's fit only if `ok`."""
    load_us: int = 0
    status: int
    ok: bool
    owner_gone: bool = False
    """Its owner had left before it ended: that it is not ok says nothing of the engine."""


class BorrowReturned(_Borrowing, frozen=True, kw_only=True, tag="borrow.returned"):
    """The request is handed back unstarted. Closes the slot."""

    reason: str
    """own_work, draining, engine_down, restoring, load_needed, load_failed, no_live_lease, owner_gone."""
    after_arrival: bool
    """False: the helper was busy already when the request came; True: its own work came later."""


class BorrowBusy(_Borrowing, frozen=True, kw_only=True, tag="borrow.busy"):
    """The desk already holds as much as the engine's depth. Closes the slot."""

    borrowed: int
    depth: int


class StillRunning(_Borrowing, frozen=True, kw_only=True, tag="borrow.still_running"):
    """The answer to a stall check."""

    running_us: int


class NativeWaited(EventBody, frozen=True, kw_only=True, tag="borrow.native_waited"):
    """A request of the node's own waited behind borrowed jobs inside the engine."""

    request: RequestId
    model: ModelId
    borrowed_in_engine: int
    wait_us: int


BorrowFact = BorrowAccepted | BorrowStarted | BorrowFinished | BorrowReturned | BorrowBusy | StillRunning | NativeWaited
"""Every fact of a helper's desk."""

"""One model on one node: its owner's queue and its helper's desk, which share one engine.

The node service and the simulator drive it. Each input is a method that takes `now_us` (monotonic) and returns facts and
actions in the order in which they are to be stated and done. Inputs about a request that is not (or no longer) in the
state they speak of are late echoes: they change nothing and return an empty list.

    runtime = ModelRuntime(RuntimeConfig(node=..., model=..., slots=1, depth=2))
    outputs = runtime.set_links({link_a}, {link_b}, now_us)
    outputs = runtime.submit(NewRequest(request=..., work=...), now_us)     # [Started, Dispatch] or [Held] or [Held, Lent, Lend]
    outputs = runtime.engine_finished(request, EngineResult(status=200), now_us)
    ... and at next_timer_us(): outputs = runtime.tick(now_us)
"""

from collections.abc import Collection

import msgspec

from domain.actions import Action, Dispatch, Lend, OrderKey, Output, Refuse, RefuseBorrow
from domain.events import Accepting, DeskState, NotAccepting, QueueState
from domain.events.decision import LeaseEvent
from domain.helper.desk import HelperDesk
from domain.ids import LeaseId, LinkId, RequestId
from domain.inputs import BorrowOffer, EngineResult, LendFailure, LendResult, NewRequest, RuntimeConfig
from domain.owner.queue import OwnerQueue, may_run_again
from domain.owner.request import OwnRequest
from domain.pipe import Pipe

_RETRY_ENGINE_US = 1_000_000
"""After the engine provably did not take a request, the next one is tried this much later, or when it is said to be up."""

__all__ = [
    "Action",
    "BorrowOffer",
    "Counts",
    "Dispatch",
    "EngineResult",
    "Lend",
    "LendFailure",
    "LendResult",
    "ModelRuntime",
    "NewRequest",
    "Output",
    "Refuse",
    "RuntimeConfig",
]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests are where: for /health and people."""

    held: int
    in_engine: int
    """Own and borrowed."""
    lent: int
    borrowed: int
    """At the desk, waiting or running."""


class ModelRuntime:
    """Decides what happens to every request of one model on one node. Pure: same inputs, same outputs."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self._depth = config.depth
        self._owner = OwnerQueue(config)
        self._desk = HelperDesk(config)
        self._pipe = Pipe(config.slots)
        self._engine_up = True
        self._retry_engine_us: int | None = None
        self._helps = False
        self._draining = False
        self._announced = ""

    # -- the client's side ------------------------------------------------------------------------------------------

    def submit(self, new: NewRequest, now_us: int) -> list[Output]:
        """Take a client's request: `Dispatch`, `Lend`, held (no action yet) or `Refuse` (503 queue_full, model_unavailable)."""
        out: list[Output] = []
        self._owner.expire(now_us, out)
        self._resume(now_us)
        if self._draining:
            self._owner.refuse(new, "draining", now_us, out)
            return out
        goes_straight = self._has_room() and not self._owner.held
        if not goes_straight and self._owner.held >= self.config.held_max:
            self._owner.refuse(new, "queue_full", now_us, out)
            return out
        request = self._owner.arrive(new, now_us, behind=self._pipe.borrowed)
        if goes_straight:
            self._start(request, now_us, out)
        else:
            self._owner.hold(request, now_us, out)
        self._desk.hand_back_unstarted("own_work", out)
        return self._settle(now_us, out)

    def client_gone(self, request: RequestId, now_us: int) -> list[Output]:
        """The client closed its connection: a held request leaves, a running one is cancelled where it runs.

        In the engine: `CancelEngine`; the terminal fact comes with `engine_finished`. Lent: `CancelLend`, and it is over.
        """
        out: list[Output] = []
        if request in self._owner:
            self._owner.client_gone(request, now_us, out)
        return self._settle(now_us, out)

    # -- the own engine ---------------------------------------------------------------------------------------------

    def engine_finished(self, request: RequestId, result: EngineResult, now_us: int) -> list[Output]:
        """The engine is done with the request, own or borrowed: answered, failed or cancelled. Exactly once for each `Dispatch`.

        A failed own request gives `Refuse` 502 engine_failed (an error event if bytes were sent). An answer with an error
        status is passed on unchanged by the node: no action.
        """
        out: list[Output] = []
        if request not in self._pipe:
            return out
        left = self._pipe.leave(request, now_us, served=result.complete and result.status > 0)
        if result.not_started:
            self._retry_engine_us = now_us + _RETRY_ENGINE_US
        if request in self._owner:
            self._owner.engine_finished(request, result, left, now_us, out)
        else:
            self._desk.finished(request, result, left, out)
        self._served(left.now_serving, now_us, out)
        return self._settle(now_us, out)

    def set_engine_up(self, up: bool, now_us: int) -> list[Output]:  # noqa: FBT001  # the state itself
        """The engine came up, or it is dead (exited, refused): not merely slow, for work in flight is proof of life.

        Down: all requests inside fail, 502 engine_failed (`Refuse`; borrowed ones end as not ok, answer the owner 502);
        `engine_finished` of them is ignored from then on. Held ones wait.
        """
        out: list[Output] = []
        self._engine_up, self._retry_engine_us = up, None
        if not up:
            for request, left in self._pipe.clear(now_us):
                if request in self._owner:
                    self._owner.engine_died(request, left, now_us, out)
                else:
                    self._desk.engine_died(request, left, out)
            self._desk.hand_back_unstarted("engine_down", out)
        return self._settle(now_us, out)

    # -- lending ----------------------------------------------------------------------------------------------------

    def set_links(self, owner_links: Collection[LinkId], helper_links: Collection[LinkId], now_us: int) -> list[Output]:
        """Say in which links the model is the owner's and in which the helper's. In any: it is enrolled."""
        out: list[Output] = []
        self._helps = bool(helper_links)
        enrolled = bool(owner_links) or self._helps
        self._owner.set_links(owner_links, enrolled=enrolled, now_us=now_us, out=out)
        return self._settle(now_us, out)

    def take_lease(self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int) -> list[Output]:
        """Take a lease event that names this model as owner; its signature has been checked.

        `basis_sent_us`: when this process sent the fact that the event cites, on the same clock as `now_us`; None if unknown.
        """
        out: list[Output] = []
        self._owner.take_lease(event, order, basis_sent_us, now_us, out)
        return self._settle(now_us, out)

    def lend_accepted(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """The helper said 100 Continue. From here on a stream is unrepeatable."""
        own = self._lent(request, lease)
        if own is not None:
            own.taken = True
        return self._settle(now_us, [])

    def lend_answered(self, request: RequestId, lease: LeaseId, result: LendResult, now_us: int) -> list[Output]:
        """The helper's answer was passed on whole. For a 5xx ask `may_run_again` first, and if so call `lend_failed`."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self._owner.lend_answered(own, result, now_us, out)
        return self._settle(now_us, out)

    def lend_returned(self, request: RequestId, lease: LeaseId, reason: str, now_us: int) -> list[Output]:
        """409 offload_returned: it has not started there."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self._owner.lend_returned(own, reason, now_us, out)
        return self._settle(now_us, out)

    def lend_busy(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """503 offload_busy: the desk is full; it has not started there."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self._owner.lend_busy(own, now_us, out)
        return self._settle(now_us, out)

    def lend_refused(self, request: RequestId, lease: LeaseId, reason: str, now_us: int) -> list[Output]:
        """It could not be passed on and provably did not start: no_live_lease (403), helper_unreachable, forward_failed."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self._owner.lend_refused(own, reason, now_us, out)
        return self._settle(now_us, out)

    def lend_failed(self, request: RequestId, lease: LeaseId, failure: LendFailure, now_us: int) -> list[Output]:
        """The helper failed after it may have begun; it is fenced. Runs again here if it may, else `Refuse` 502."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self._owner.lend_failed(own, failure, now_us, out)
        return self._settle(now_us, out)

    def may_run_again(self, request: RequestId) -> bool:
        """Return whether a lent request may run at its owner if its helper fails now, nothing having been sent to the client."""
        own = self._owner.lent(request)
        return own is not None and may_run_again(own)

    # -- borrowing --------------------------------------------------------------------------------------------------

    def borrow(self, offer: BorrowOffer, now_us: int) -> list[Output]:
        """The headers of a lend came: `AcceptBorrow` or `RefuseBorrow`."""
        out: list[Output] = []
        self._resume(now_us)
        if offer.request in self._owner:  # whoever lends us our own request is mistaken or worse
            out.append(RefuseBorrow(request=offer.request, status=409, code="offload_duplicate"))
            return out
        in_engine, closed = len(self._pipe), self._closed()
        self._desk.offer(offer, now_us, out, depth=self._depth, in_engine=in_engine, closed=closed)
        return self._settle(now_us, out)

    def borrow_body(self, request: RequestId, now_us: int) -> list[Output]:
        """The body is whole and its hash right: it may start. `Dispatch`, or it waits, and may yet get `RefuseBorrow` 409."""
        self._desk.body(request)
        return self._settle(now_us, [])

    def borrower_gone(self, request: RequestId, now_us: int) -> list[Output]:
        """The owner closed the connection, or its body was broken: an unstarted one leaves, a running one is cancelled."""
        out: list[Output] = []
        self._desk.owner_gone(request, out)
        return self._settle(now_us, out)

    # -- time and the rest ------------------------------------------------------------------------------------------

    def set_depth(self, depth: int, now_us: int) -> list[Output]:
        """Change `scheduling_backend_depth`. What is inside the engine stays there."""
        self._depth = depth
        return self._settle(now_us, [])

    def tick(self, now_us: int) -> list[Output]:
        """Do what is due at `now_us`: lease ends, wait bounds, the sign of life."""
        out = self._settle(now_us, [])
        self._owner.give_sign_of_life(now_us, out)
        return out

    def next_timer_us(self) -> int | None:
        """Return when `tick` is due next; None if nothing waits for time."""
        moments = (self._owner.next_timer_us(), self._retry_engine_us)
        return min((moment for moment in moments if moment is not None), default=None)

    def drain(self, now_us: int) -> list[Output]:
        """Take nothing new from now on; what is held or running ends, unstarted borrowed work is handed back."""
        out: list[Output] = []
        self._draining = True
        self._desk.hand_back_unstarted("draining", out)
        return self._settle(now_us, out)

    @property
    def idle(self) -> bool:
        """Whether no request is here, own or borrowed: the end of a drain."""
        return not len(self._owner) and not len(self._desk)

    def counts(self) -> Counts:
        """Return how many requests are where."""
        owner, desk = self._owner, self._desk
        return Counts(held=owner.held, in_engine=len(self._pipe), lent=owner.out, borrowed=len(desk))

    def snapshot(self, now_us: int) -> tuple[QueueState, DeskState]:
        """Return all open requests, as the facts stated so far tell them."""
        queue = QueueState(model=self.config.model, requests=self._owner.snapshot(now_us))
        return queue, DeskState(model=self.config.model, requests=self._desk.snapshot(now_us))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _settle(self, now_us: int, out: list[Output]) -> list[Output]:
        """Do what the state now allows: end what is over, fill the engine, lend, say whether borrowed work is welcome."""
        self._owner.expire(now_us, out)
        self._resume(now_us)
        self._fill(now_us, out)
        self._owner.lend(now_us, out)
        closed = self._closed()
        if self._helps and closed != self._announced:
            model = self.config.model
            out.append(NotAccepting(model=model, reason=closed) if closed else Accepting(model=model))
            self._announced = closed
        return out

    def _fill(self, now_us: int, out: list[Output]) -> None:
        """Top the engine up: own work from the held requests first, then borrowed work."""
        while self._has_room():
            own = self._owner.first_held()
            if own is not None:
                self._start(own, now_us, out)
                continue
            borrowed = self._desk.next_ready()
            if borrowed is None:
                return
            self._desk.start(borrowed, now_us, out)
            self._pipe.enter(borrowed, now_us, borrowed=True)

    def _start(self, own: OwnRequest, now_us: int, out: list[Output]) -> None:
        request = own.new.request
        serves = self._pipe.enter(request, now_us, borrowed=False)
        self._owner.start(own, len(self._pipe), now_us, out)
        if serves:
            self._owner.served(request, now_us, out)

    def _served(self, requests: Collection[RequestId], now_us: int, out: list[Output]) -> None:
        for request in requests:
            if request in self._owner:
                self._owner.served(request, now_us, out)

    def _has_room(self) -> bool:
        limit = self._depth if self._owner.enrolled else self.config.slots
        return self._engine_up and self._retry_engine_us is None and len(self._pipe) < limit

    def _resume(self, now_us: int) -> None:
        if self._retry_engine_us is not None and self._retry_engine_us <= now_us:
            self._retry_engine_us = None

    def _closed(self) -> str:
        """Return why borrowed work is not taken now; empty if it is."""
        if self._draining:
            return "draining"
        if not self._engine_up or self._retry_engine_us is not None:
            return "engine_down"
        return "own_work" if self._owner.held or self._pipe.own_pending else ""

    def _lent(self, request: RequestId, lease: LeaseId) -> OwnRequest | None:
        own = self._owner.lent(request)
        return own if own is not None and own.lease == lease else None

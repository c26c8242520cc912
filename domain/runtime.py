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

from collections.abc import Collection, Mapping

import msgspec

from domain.actions import Action, Dispatch, Lend, OrderKey, Output, Refuse, RefuseBorrow
from domain.events import DeskState, QueueState
from domain.events.decision import LeaseChecked, LeaseEvent, LinkWord
from domain.ids import LeaseId, LinkId, RequestId
from domain.inputs import BorrowOffer, EngineResult, LendFailure, LendResult, NewRequest, NewSize, RuntimeConfig
from domain.machines import Machines
from domain.owner.queue import may_run_again
from domain.owner.request import OwnRequest

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
    "NewSize",
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


class ModelRuntime(Machines):
    """Decides what happens to every request of one model on one node. Pure: same inputs, same outputs."""

    # -- the client's side ------------------------------------------------------------------------------------------

    def submit(self, new: NewRequest, now_us: int) -> list[Output]:
        """Take a client's request: `Dispatch`, `Lend`, held (no action yet) or `Refuse` (503 queue_full, model_unavailable)."""
        out: list[Output] = []
        self.owner.expire(now_us, out)
        self.resume(now_us)
        if self.draining:
            self.owner.refuse(new, "draining", now_us, out)
            return out
        goes_straight = self.may_start(now_us) and not self.owner.held
        if not goes_straight and self.owner.held >= self.config.held_max:
            self.owner.refuse(new, "queue_full", now_us, out)
            return out
        room = self.room
        inside = self.pipe.borrowed if room is None else room.borrowed_inside()
        request = self.owner.arrive(
            new, now_us, behind=inside, behind_load=room is not None and room.loads_for_borrowed
        )
        if goes_straight and not self.owner.keeps(request, self.pipe, now_us):
            self.start(request, now_us, out)
        else:
            self.owner.hold(request, now_us, out)
        if room is None:
            self.desk.hand_back_unstarted("own_work", out)
        else:
            room.own_came(self.model, now_us, out)
        return self.settle(now_us, out)

    def resize(self, sizes: Mapping[RequestId, NewSize], now_us: int) -> list[Output]:
        """Say what is known by now of requests that came before it was, of the first thousand of them in order of arrival.

        What is held is stated again with it, and may go where a window is stated now. Others and unknown ones state nothing.
        """
        out: list[Output] = []
        self.owner.resize(sizes, now_us, out)
        return self.settle(now_us, out)

    def client_gone(self, request: RequestId, now_us: int) -> list[Output]:
        """The client closed its connection: a held request leaves, a running one is cancelled where it runs.

        In the engine: `CancelEngine`; the terminal fact comes with `engine_finished`. Lent: `CancelLend`, and it is over.
        """
        out: list[Output] = []
        if request in self.owner:
            self.owner.client_gone(request, now_us, out)
        return self.settle(now_us, out)

    # -- the own engine ---------------------------------------------------------------------------------------------

    def engine_finished(self, request: RequestId, result: EngineResult, now_us: int) -> list[Output]:
        """The engine is done with the request, own or borrowed: answered, failed or cancelled. Exactly once for each `Dispatch`.

        A failed own request gives `Refuse` 502 engine_failed (an error event if bytes were sent). An answer with an error
        status is passed on unchanged by the node: no action.
        """
        out: list[Output] = []
        if request not in self.pipe:
            return out
        left = self.pipe.leave(request, now_us, served=result.complete and result.status > 0)
        if result.not_started:
            self.pause(now_us)
        if request in self.owner:
            self.owner.engine_finished(request, result, left, now_us, out)
        else:
            self.borrow_left(now_us)
            self.desk.finished(request, result, left, out)
        self.served(left.now_serving, now_us, out)
        return self.settle(now_us, out)

    def set_engine_up(self, up: bool, now_us: int) -> list[Output]:  # noqa: FBT001  # the state itself
        """The engine came up, or it is dead (exited, refused): not merely slow, for work in flight is proof of life.

        Down: all requests inside fail, 502 engine_failed (`Refuse`; borrowed ones end as not ok, answer the owner 502);
        `engine_finished` of them is ignored from then on. Held ones wait. Of models that share a runtime only the loaded one
        has an engine: when it dies, nothing is loaded; when one comes up by itself while nothing is, it is the loaded one.
        """
        out: list[Output] = []
        if self.room is not None:
            if up:
                self.room.engine_is_up(self, now_us, out)
            else:
                self.room.engine_died(self, now_us, out)
        else:
            self.set_up(up=up)
            if not up:
                self.empty_dead_engine(now_us, out)
        return self.settle(now_us, out)

    # -- lending ----------------------------------------------------------------------------------------------------

    def set_links(self, owner_links: Collection[LinkId], helper_links: Collection[LinkId], now_us: int) -> list[Output]:
        """Say in which links the model is the owner's and in which the helper's. In any: it is enrolled.

        So are the others that share its runtime: borrowed work may drive them out, and the master weighs that by what they have.
        """
        out: list[Output] = []
        self.helps = bool(helper_links)
        self.linked = bool(owner_links) or self.helps
        self.owner.set_links(owner_links, now_us, out)
        self.desk.set_links(helper_links, now_us)
        if self.room is not None:
            self.room.enrol(now_us, out)
        else:
            self.owner.set_enrolled(enrolled=self.linked, now_us=now_us, out=out)
        return self.settle(now_us, out)

    def take_lease(self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int) -> list[Output]:
        """Take a lease event that names this model as owner; its signature has been checked.

        `basis_sent_us`: when this process sent the fact that the event cites, on the same clock as `now_us`; None if unknown.
        """
        out: list[Output] = []
        self.owner.take_lease(event, order, basis_sent_us, now_us, out)
        return self.settle(now_us, out)

    def take_word(self, word: LinkWord, order: OrderKey, now_us: int) -> list[Output]:
        """Take another word of the master on a link of this model; its signature has been checked.

        LinkPriced: a request may wait a moment for the decision in flight. LeaseStalled: `CancelLend` for all that was lent over
        the link before the decision and is not being answered; it runs again here if it may. LeaseChecked, at the helper: states
        what of it is here; at the owner: somebody watches over what is out.
        """
        out: list[Output] = []
        if isinstance(word, LeaseChecked):
            self.desk.still_running(word.link, now_us, out)
        self.owner.take_word(word, order, now_us, out)
        return self.settle(now_us, out)

    def lend_accepted(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """The helper said 100 Continue. From here on a stream is unrepeatable."""
        own = self._lent(request, lease)
        if own is not None:
            own.taken = True
        return self.settle(now_us, [])

    def lend_answering(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """The helper's answer has begun: however long it takes, it is not cut off for being late.

        Say it again as more of it comes, each second or less: one that goes on is no victim of a stall.
        """
        own = self._lent(request, lease)
        if own is not None:
            own.taken = own.answering = True
            own.heard_us = now_us
        return self.settle(now_us, [])

    def lend_answered(self, request: RequestId, lease: LeaseId, result: LendResult, now_us: int) -> list[Output]:
        """The helper's answer was passed on whole. For a 5xx ask `may_run_again` first, and if so call `lend_failed`."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self.owner.lend_answered(own, result, now_us, out)
        return self.settle(now_us, out)

    def lend_returned(self, request: RequestId, lease: LeaseId, reason: str, now_us: int) -> list[Output]:
        """409 offload_returned: it has not started there."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self.owner.lend_returned(own, reason, now_us, out)
        return self.settle(now_us, out)

    def lend_busy(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """503 offload_busy: the desk is full; it has not started there."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self.owner.lend_busy(own, now_us, out)
        return self.settle(now_us, out)

    def lend_refused(self, request: RequestId, lease: LeaseId, reason: str, now_us: int) -> list[Output]:
        """It could not be passed on and provably did not start: no_live_lease (403), helper_unreachable, forward_failed."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self.owner.lend_refused(own, reason, now_us, out)
        return self.settle(now_us, out)

    def lend_failed(self, request: RequestId, lease: LeaseId, failure: LendFailure, now_us: int) -> list[Output]:
        """The helper failed after it may have begun; it is fenced. Runs again here if it may, else `Refuse` 502."""
        out: list[Output] = []
        own = self._lent(request, lease)
        if own is not None:
            self.owner.lend_failed(own, failure, now_us, out)
        return self.settle(now_us, out)

    def may_run_again(self, request: RequestId) -> bool:
        """Return whether a lent request may run at its owner if its helper fails now, nothing having been sent to the client."""
        own = self.owner.lent(request)
        return own is not None and may_run_again(own)

    # -- borrowing --------------------------------------------------------------------------------------------------

    def borrow(self, offer: BorrowOffer, now_us: int) -> list[Output]:
        """The headers of a lend came: `AcceptBorrow` or `RefuseBorrow`."""
        out: list[Output] = []
        self.resume(now_us)
        if offer.request in self.owner:  # whoever lends us our own request is mistaken or worse
            out.append(RefuseBorrow(request=offer.request, status=409, code="offload_duplicate"))
            return out
        room = self.room
        here = len(self.desk) if room is None else room.borrowed_here()
        in_engine = len(self.pipe) if room is None else room.inside()
        closed = self.why_closed() or ("" if room is None else room.why_not_loaded(self, offer))
        if self.desk.offer(offer, now_us, out, depth=self.depth, here=here, in_engine=in_engine, closed=closed):
            self.borrow_seen_us = now_us
            if room is not None:
                room.borrow_came(now_us)
        return self.settle(now_us, out)

    def borrow_body(self, request: RequestId, now_us: int) -> list[Output]:
        """The body is whole and its hash right: it may start. `Dispatch`, or it waits, and may yet get `RefuseBorrow` 409."""
        self.desk.body(request)
        return self.settle(now_us, [])

    def borrower_gone(self, request: RequestId, now_us: int) -> list[Output]:
        """The owner closed the connection, or its body was broken: an unstarted one leaves, a running one is cancelled."""
        out: list[Output] = []
        self.desk.owner_gone(request, out)
        return self.settle(now_us, out)

    # -- time and the rest ------------------------------------------------------------------------------------------

    def set_depth(self, depth: int, now_us: int) -> list[Output]:
        """Change `scheduling_backend_depth`. What is inside the engine stays there."""
        self.depth = depth
        return self.settle(now_us, [])

    def set_hold(self, on: bool, now_us: int) -> list[Output]:  # noqa: FBT001  # the setting itself
        """Change `offload_hold_for_faster_helper`."""
        self.owner.hold_on = on
        return self.settle(now_us, [])

    def set_lending(self, ttl_us: int, streams: bool, now_us: int) -> list[Output]:  # noqa: FBT001  # the setting itself
        """Change `offload_lease_ttl` and `offload_streams`; streams that are held follow it."""
        out: list[Output] = []
        self.owner.set_lending(ttl_us, now_us, out, streams=streams)
        return self.settle(now_us, out)

    def set_stall(self, stall_us: int, now_us: int) -> list[Output]:
        """Change `offload_lent_stall_timeout`."""
        self.owner.set_stall(stall_us, now_us)
        return self.settle(now_us, [])

    def tick(self, now_us: int) -> list[Output]:
        """Do what is due at `now_us`: lease ends, wait bounds, cut-offs, releases, the sign of life."""
        out = self.settle(now_us, [])
        self.owner.give_sign_of_life(now_us, out)
        return out

    def drain(self, now_us: int) -> list[Output]:
        """Take nothing new from now on; what is held or running ends, unstarted borrowed work is handed back."""
        out: list[Output] = []
        self.draining = True
        self.desk.hand_back_unstarted("draining", out)
        return self.settle(now_us, out)

    def has(self, request: RequestId) -> bool:
        """Tell whether a request, own or borrowed, is here and has not ended."""
        return request in self.owner or request in self.desk

    @property
    def idle(self) -> bool:
        """Whether no request is here, own or borrowed: the end of a drain."""
        return not len(self.owner) and not len(self.desk)

    def counts(self) -> Counts:
        """Return how many requests are where."""
        owner, desk = self.owner, self.desk
        return Counts(held=owner.held, in_engine=len(self.pipe), lent=owner.out, borrowed=len(desk))

    def snapshot(self, now_us: int) -> tuple[QueueState, DeskState]:
        """Return all open requests, as the facts stated so far tell them."""
        queue = QueueState(model=self.config.model, requests=self.owner.snapshot(now_us))
        return queue, DeskState(model=self.config.model, requests=self.desk.snapshot(now_us))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _lent(self, request: RequestId, lease: LeaseId) -> OwnRequest | None:
        own = self.owner.lent(request)
        return own if own is not None and own.lease == lease else None

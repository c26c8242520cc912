"""One model of the node: drives its machines (domain.runtime), states their facts, passes their actions to the handlers."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from adapters.http.errors import ApiError
from domain.actions import Action, LoadModel, OrderKey, Output, Refuse, RefuseBorrow
from domain.engine_room import EngineRoom
from domain.events import BorrowFinished, BorrowStarted, Fact, Kept, Lent, Started
from domain.events.base import EventBody
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import LeaseId, LinkId, ModelId, RequestId
from domain.inputs import BorrowOffer, EngineResult, LendFailure, LendResult, NewRequest, NewSize, RuntimeConfig
from domain.ports import Clock
from domain.runtime import ModelRuntime
from services.config import NodeModel
from services.node.ticket import Ticket

_LOG: Final = logging.getLogger("leaseway.node")

State = Callable[[Fact], None]
"""States a fact: in order, at once, whatever the bus does."""
_OfBorrowed = BorrowStarted | BorrowFinished


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What people are told of an open own request besides its place."""

    since_arrival_us: int
    """Since it came to this node first, wherever it has been meanwhile."""
    kept_for: LinkId | None
    """The link over which a helper should end it sooner, for which it is kept out of the engine."""


class Shared(Protocol):
    """The runtime that the model shares with others (services.node.shared_runtime): an input of one may concern all."""

    room: EngineRoom

    def ticket_of(self, request: RequestId) -> Ticket | None:
        """Return the mailbox of a request of any of them."""
        ...

    def load(self, order: LoadModel) -> None:
        """Load a model in place of another."""
        ...

    def after_input(self) -> None:
        """Look at what an input of one changed for all."""
        ...


class ModelServing:
    """The one driver of a model's machines. Everything runs on the event loop, one input at a time."""

    def __init__(
        self, model: NodeModel, config: RuntimeConfig, state: State, clock: Clock, shared: Shared | None = None
    ) -> None:
        """Begin with an engine that is not up; `shared`: the runtime that the model shares, which it joins."""
        self.model, self.id = model, ModelId(model.id)
        self._runtime = ModelRuntime(config)
        self._shared = shared
        self._state, self._clock = state, clock
        self._tickets: dict[RequestId, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_us: int | None = None
        self._emptied = asyncio.Event()
        self._engine_up = True
        if shared is None:
            self.engine_up(up=False)
        else:
            # nothing of a shared runtime is up before its room says so
            shared.room.join(self._runtime)

    # -- own requests

    def submit(self, new: NewRequest) -> Ticket:
        """Take a client's request; its actions come to the ticket. `close` it when its handler ends, however it does."""
        ticket = self._tickets[new.request] = Ticket(new.request, arrived_us=self._now())
        self.do(self._runtime.submit(new, self._now()))
        return ticket

    def resize(self, sizes: Mapping[RequestId, NewSize]) -> None:
        """Tell what is known by now of requests that came before it was."""
        self.do(self._runtime.resize(sizes, self._now()))

    def client_gone(self, request: RequestId) -> None:
        """Tell that the client has closed its connection."""
        self.do(self._runtime.client_gone(request, self._now()))

    def engine_finished(self, request: RequestId, result: EngineResult) -> None:
        """Tell how a request left the engine; exactly once for each dispatch."""
        self.do(self._runtime.engine_finished(request, result, self._now()))

    def close(self, request: RequestId) -> None:
        """Forget the handler of `request`: it has ended. What the machines still have of it goes, since nobody waits for it."""
        ticket = self._tickets.get(request)
        if ticket is not None and self._runtime.has(request):
            self.client_gone(request)
            self.borrower_gone(request)
            if ticket.is_dispatched:
                # it has its place in the engine, and its handler ended in the moment before it would have filled it
                self.engine_finished(request, EngineResult(status=0, complete=False))
        self._tickets.pop(request, None)
        if self._runtime.idle and not self._tickets:
            self._emptied.set()

    # -- lent ones

    def lend_accepted(self, request: RequestId, lease: LeaseId) -> None:
        """Tell that the helper said 100."""
        self.do(self._runtime.lend_accepted(request, lease, self._now()))

    def lend_answering(self, request: RequestId, lease: LeaseId) -> None:
        """Tell that the helper's answer has begun."""
        self.do(self._runtime.lend_answering(request, lease, self._now()))

    def lend_answered(self, request: RequestId, lease: LeaseId, result: LendResult) -> None:
        """Tell that the helper's answer is with the client."""
        self.do(self._runtime.lend_answered(request, lease, result, self._now()))

    def lend_returned(self, request: RequestId, lease: LeaseId, reason: str) -> None:
        """Tell that the helper handed the request back unstarted."""
        self.do(self._runtime.lend_returned(request, lease, reason, self._now()))

    def lend_busy(self, request: RequestId, lease: LeaseId) -> None:
        """Tell that the helper's desk was full."""
        self.do(self._runtime.lend_busy(request, lease, self._now()))

    def lend_refused(self, request: RequestId, lease: LeaseId, reason: str) -> None:
        """Tell that the request could not be passed on and provably did not start."""
        self.do(self._runtime.lend_refused(request, lease, reason, self._now()))

    def lend_failed(self, request: RequestId, lease: LeaseId, failure: LendFailure) -> None:
        """Tell that the helper failed, and is fenced."""
        self.do(self._runtime.lend_failed(request, lease, failure, self._now()))

    def may_run_again(self, request: RequestId) -> bool:
        """Tell whether a lent request may run here if its helper fails now."""
        return self._runtime.may_run_again(request)

    # -- borrowed ones

    def borrow(self, offer: BorrowOffer) -> tuple[Ticket, Action]:
        """Take or refuse a lend; return its ticket and the first action: AcceptBorrow or RefuseBorrow.

        `close` an accepted one when its handler ends, however it does.
        """
        # an id names one mailbox among all models of the runtime: what is meant for one request must not reach another
        if self._ticket(offer.request) is not None:
            return Ticket(offer.request), RefuseBorrow(request=offer.request, status=409, code="offload_duplicate")
        ticket = self._tickets[offer.request] = Ticket(offer.request)
        self.do(self._runtime.borrow(offer, self._now()))
        action = ticket.take()
        if isinstance(action, RefuseBorrow):
            self.close(offer.request)
        return ticket, action

    def borrow_body(self, request: RequestId) -> None:
        """Tell that the body of a borrowed request is here."""
        self.do(self._runtime.borrow_body(request, self._now()))

    def borrower_gone(self, request: RequestId) -> None:
        """Tell that the owner has closed its connection."""
        self.do(self._runtime.borrower_gone(request, self._now()))

    # -- the node's business

    def engine_up(self, *, up: bool) -> None:
        """Tell that the engine came up or is dead; the same again changes nothing."""
        if up != self._engine_up or self._shared is not None:
            self._engine_up = up
            self.do(self._runtime.set_engine_up(up, self._now()))

    @property
    def ready(self) -> bool:
        """Tell whether the engine is up; of a shared runtime, whether the model is the loaded one."""
        return self._engine_up if self._shared is None else self._shared.room.resident == self.id

    def set_links(self, owner_links: Sequence[LinkId], helper_links: Sequence[LinkId]) -> None:
        """Tell the links in which the model is the owner's, and the helper's."""
        self.do(self._runtime.set_links(owner_links, helper_links, self._now()))

    def set_depth(self, depth: int) -> None:
        """Change how many requests are given to the engine at once."""
        self.do(self._runtime.set_depth(depth, self._now()))

    def set_hold(self, *, on: bool) -> None:
        """Change whether a request may be kept for a faster helper."""
        self.do(self._runtime.set_hold(on, self._now()))

    def set_lending(self, *, ttl_us: int, streams: bool) -> None:
        """Change how long leases last, and whether streams are lent."""
        self.do(self._runtime.set_lending(ttl_us, streams, self._now()))

    def set_stall(self, stall_us: int) -> None:
        """Change after which silence a helper is asked what it still runs."""
        self.do(self._runtime.set_stall(stall_us, self._now()))

    def take_word(self, word: LinkWord, order: OrderKey) -> None:
        """Take what else the master says of a link of this model, its signature checked."""
        self.do(self._runtime.take_word(word, order, self._now()))

    def take_lease(self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None) -> None:
        """Take a lease event, its signature checked, that names this model as the owner's."""
        self.do(self._runtime.take_lease(event, order, basis_sent_us, self._now()))

    async def drain(self) -> None:
        """Take nothing new, and return when all has ended."""
        self.do(self._runtime.drain(self._now()))
        while not self._runtime.idle or self._tickets:
            self._emptied.clear()
            await self._emptied.wait()

    def break_off(self) -> None:
        """End what is still here: the drain has taken too long, and the process ends."""
        why = ApiError("node_draining", "the node is stopping")
        for request, ticket in list(self._tickets.items()):
            # what has begun nowhere may go to another node
            begun = not self._runtime.owner.has_not_begun(request)
            ticket.push(
                Refuse(request=request, status=why.status, code=why.code, message=why.message, may_have_run=begun)
            )

    def stop(self) -> None:
        """Let no timer outlive the node."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def runtime(self) -> ModelRuntime:
        """Return the machines, to be looked at."""
        return self._runtime

    # -- inside

    def _now(self) -> int:
        return self._clock.monotonic_us()

    def do(self, outputs: Sequence[Output]) -> None:
        """State and do what the machines, or the room that they share, answered to an input."""
        for output in outputs:
            if isinstance(output, EventBody):
                self._state(output)
                self._note(output)
            else:
                self._pass_on(output)
        if self._shared is None:
            self._arm()
        else:
            self._shared.after_input()

    def look_after(self) -> None:
        """Look whether an input of another model that shares the runtime changed something here."""
        self._arm()
        if self._runtime.idle and not self._tickets:
            self._emptied.set()

    def own_ticket(self, request: RequestId) -> Ticket | None:
        """Return the mailbox of a request of this model; None if it has none of this id."""
        return self._tickets.get(request)

    @property
    def kept(self) -> int:
        """Return how many held requests are kept for a faster helper."""
        return sum(ticket.kept_for is not None for ticket in self._tickets.values())

    def told_of(self, request: RequestId) -> Told:
        """Return what people are told of an open own request."""
        ticket = self._tickets.get(request)
        if ticket is None:
            return Told(since_arrival_us=0, kept_for=None)
        return Told(since_arrival_us=self._now() - ticket.arrived_us, kept_for=ticket.kept_for)

    def _note(self, fact: Fact) -> None:
        """Note what is to be told of a request: of a kept one to people, of a borrowed one to its owner besides the action."""
        if isinstance(fact, Kept | Started | Lent):
            if (ticket := self._ticket(fact.request)) is not None:
                ticket.kept_for = fact.link if isinstance(fact, Kept) else None
                ticket.was_kept = ticket.was_kept or isinstance(fact, Kept)
        elif isinstance(fact, _OfBorrowed) and (ticket := self._ticket(fact.request)) is not None:
            _note_borrowed(ticket, fact)

    def _pass_on(self, action: Action) -> None:
        if isinstance(action, LoadModel):
            assert self._shared is not None, f"model {action.model}: has its runtime to itself, and nothing to load"
            self._shared.load(action)
            return
        ticket = self._ticket(action.request)
        if ticket is None:
            # its handler is gone: what it had open was closed with it
            _LOG.debug("action_without_handler", extra={"request": action.request, "action": type(action).__name__})
            return
        ticket.push(action)

    def _ticket(self, request: RequestId) -> Ticket | None:
        ticket = self._tickets.get(request)
        return ticket if ticket is not None or self._shared is None else self._shared.ticket_of(request)

    def _arm(self) -> None:
        due_us = self._runtime.next_timer_us()
        if due_us == self._due_us and self._timer is not None:
            return
        self.stop()
        self._due_us = due_us
        if due_us is not None:
            delay_s = max(0, due_us - self._now()) / 1e6
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.do(self._runtime.tick(self._now()))


def _note_borrowed(ticket: Ticket, fact: _OfBorrowed) -> None:
    match fact:
        case BorrowStarted():
            ticket.load_us = fact.load_us
        case BorrowFinished():
            ticket.service_us = fact.service_us


def as_error(refuse: Refuse) -> ApiError:
    """Return what the client is told."""
    return ApiError(
        refuse.code,
        refuse.message,
        status=refuse.status,
        retry_after_s=refuse.retry_after_s,
        may_have_run=refuse.may_have_run,
    )

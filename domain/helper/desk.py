"""A helper's desk: the borrowed requests of one model at the node that serves them. The node's own work goes first.

A borrowed request waits here until it claims the runtime (`BorrowStarted`): the point of no return. Until then the helper
hands it back when its own work comes; after it, the request always ends in the engine.
"""

from collections.abc import Collection

import msgspec

from domain.actions import AcceptBorrow, CancelEngine, Dispatch, Output, RefuseBorrow
from domain.events import BorrowAccepted, BorrowBusy, BorrowFinished, BorrowReturned, BorrowStarted, StillRunning
from domain.events.status import OpenRequest
from domain.helper.accepted import AcceptedBook
from domain.ids import LinkId, ModelId, RequestId
from domain.inputs import BorrowOffer, EngineResult, RuntimeConfig
from domain.pipe import Left

_NO_ANSWER = 502


class Borrowed(msgspec.Struct, kw_only=True, eq=False):
    """A request that another node owns."""

    offer: BorrowOffer
    since_us: int
    """When it was accepted, or given to the engine."""
    whole: bool = False
    """Its body is here."""
    gone: bool = False
    """Its owner left while it was in the engine."""
    load_us: int = 0
    """What loading the model for it took."""


class HelperDesk:
    """The borrowed requests of one model. Methods append facts and actions to `out`."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._model: ModelId = config.model
        self._waiting: dict[RequestId, Borrowed] = {}
        self._running: dict[RequestId, Borrowed] = {}
        self.accepted = AcceptedBook()
        """What was accepted, whatever became of it."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting or request in self._running

    @property
    def waiting(self) -> int:
        """How many accepted requests have not started."""
        return len(self._waiting)

    @property
    def wants_restore(self) -> bool:
        """Whether a waiting request came over a link that wants back what is driven out for it."""
        return any(borrowed.offer.restore for borrowed in self._waiting.values())

    def set_links(self, links: Collection[LinkId], now_us: int) -> None:
        """Say over which links lends may come."""
        self.accepted.set_links(links, now_us)

    def offer(
        self, offer: BorrowOffer, now_us: int, out: list[Output], *, depth: int, here: int, in_engine: int, closed: str
    ) -> bool:
        """Accept or refuse a lend whose headers came; tell whether it was accepted.

        `here`: borrowed requests of all models that share the engine. `closed`: why none is taken now (own_work, draining,
        engine_down, restoring, load_needed, load_failed); empty if it is.
        """
        request = offer.request
        if request in self or self.accepted.has(offer):
            # A copy of a lend that is or was here: no fact, for a fact would close the true one's slot.
            out.append(RefuseBorrow(request=request, status=409, code="offload_duplicate"))
        elif not offer.lease_live or offer.remaining_us <= 0:
            self._hand_back(offer, "no_live_lease", 403, out, after_arrival=False)
        elif closed:
            self._hand_back(offer, closed, 409, out, after_arrival=False)
        elif here >= depth or self._out_of(offer) >= offer.slots:
            out.append(
                BorrowBusy(
                    request=request,
                    model=self._model,
                    owner=offer.owner,
                    link=offer.link,
                    lease=offer.lease,
                    borrowed=here,
                    depth=depth,
                )
            )
            out.append(RefuseBorrow(request=request, status=503, code="offload_busy"))
        else:
            position = in_engine + len(self._waiting)
            self._waiting[request] = Borrowed(offer=offer, since_us=now_us)
            self.accepted.add(offer)
            out.append(
                BorrowAccepted(
                    request=request,
                    model=self._model,
                    owner=offer.owner,
                    link=offer.link,
                    lease=offer.lease,
                    position=position,
                )
            )
            out.append(AcceptBorrow(request=request, position=position))
            return True
        return False

    def body(self, request: RequestId) -> None:
        """The body of `request` is whole; an echo of one that left changes nothing."""
        borrowed = self._waiting.get(request)
        if borrowed is not None:
            borrowed.whole = True

    def next_ready(self) -> Borrowed | None:
        """Return the first accepted request whose body is here; None if there is none."""
        return next((borrowed for borrowed in self._waiting.values() if borrowed.whole), None)

    def start(self, borrowed: Borrowed, load_us: int, now_us: int, out: list[Output]) -> None:
        """Let a waiting request claim the runtime; `load_us`: what loading the model for it took."""
        offer = borrowed.offer
        request = offer.request
        self._running[request] = self._waiting.pop(request)
        borrowed.since_us, borrowed.load_us = now_us, load_us
        out.append(
            BorrowStarted(
                request=request,
                model=self._model,
                owner=offer.owner,
                link=offer.link,
                lease=offer.lease,
                load_us=load_us,
            )
        )
        out.append(Dispatch(request=request, borrowed=True))

    def hand_back_unstarted(self, reason: str, out: list[Output], *, loadable: bool = True) -> None:
        """Hand back every accepted request that has not started: own work came, the engine died, or the node drains.

        Without `loadable` only those whose link does not let the model be loaded for them.
        """
        if not self._waiting:
            return
        for borrowed in [one for one in self._waiting.values() if loadable or not one.offer.may_load]:
            del self._waiting[borrowed.offer.request]
            self._hand_back(borrowed.offer, reason, 409, out, after_arrival=True)

    def owner_gone(self, request: RequestId, out: list[Output]) -> None:
        """The owner closed the connection: an unstarted request leaves, a running one is cancelled at the engine."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            out.append(self._returned(waiting.offer, "owner_gone", after_arrival=True))
            return
        running = self._running.get(request)
        if running is not None and not running.gone:
            running.gone = True
            out.append(CancelEngine(request=request))

    def finished(self, request: RequestId, result: EngineResult, left: Left, out: list[Output]) -> None:
        """The engine is done with `request`."""
        borrowed = self._running.pop(request)
        offer = borrowed.offer
        answered = result.complete and not result.not_started and result.status > 0
        out.append(
            BorrowFinished(
                request=request,
                model=self._model,
                owner=offer.owner,
                link=offer.link,
                lease=offer.lease,
                work=result.work or offer.work,
                service_us=left.service_us,
                load_us=borrowed.load_us,
                status=result.status if answered else _NO_ANSWER,
                ok=answered and result.status < 400 and not borrowed.gone,
                owner_gone=borrowed.gone,
            )
        )

    def engine_died(self, request: RequestId, left: Left, out: list[Output]) -> None:
        """The engine died with `request` inside."""
        if not self._running[request].gone:  # else it is cancelled already
            out.append(CancelEngine(request=request))
        self.finished(request, EngineResult(status=0, complete=False), left, out)

    def still_running(self, link: LinkId, now_us: int, out: list[Output]) -> None:
        """Answer a stall check of `link`: state what of it waits or runs here, and since when."""
        for borrowed in (*self._running.values(), *self._waiting.values()):
            offer = borrowed.offer
            if offer.link == link:
                out.append(
                    StillRunning(
                        request=offer.request,
                        model=self._model,
                        owner=offer.owner,
                        link=link,
                        lease=offer.lease,
                        running_us=now_us - borrowed.since_us,
                    )
                )

    def snapshot(self, now_us: int) -> tuple[OpenRequest, ...]:
        """Return what is here: running first, then waiting, each in order."""
        return tuple(
            OpenRequest(
                request=request,
                state=state,
                work=borrowed.offer.work,
                age_us=now_us - borrowed.since_us,
                link=borrowed.offer.link,
                lease=borrowed.offer.lease,
                owner=borrowed.offer.owner,
            )
            for state, place in (("running", self._running), ("waiting", self._waiting))
            for request, borrowed in place.items()
        )

    def _out_of(self, offer: BorrowOffer) -> int:
        """Count what is here over the link of `offer`, whatever lease it came under."""
        here = (*self._waiting.values(), *self._running.values())
        return sum(borrowed.offer.link == offer.link for borrowed in here)

    def _hand_back(
        self, offer: BorrowOffer, reason: str, status: int, out: list[Output], *, after_arrival: bool
    ) -> None:
        out.append(self._returned(offer, reason, after_arrival=after_arrival))
        code = "no_live_lease" if status == 403 else "offload_returned"
        out.append(RefuseBorrow(request=offer.request, status=status, code=code, reason=reason))

    def _returned(self, offer: BorrowOffer, reason: str, *, after_arrival: bool) -> BorrowReturned:
        return BorrowReturned(
            request=offer.request,
            model=self._model,
            owner=offer.owner,
            link=offer.link,
            lease=offer.lease,
            reason=reason,
            after_arrival=after_arrival,
        )

"""An owner's queue: what is held, what is in its own engine, what is lent. One object for one model at its owner.

Custody never moves: whatever happens, a request is at exactly one place and ends with exactly one terminal fact, said here.
"""

from collections.abc import Collection

from domain.actions import CancelEngine, CancelLend, Dispatch, Lend, OrderKey, Output, Refuse
from domain.events import Fact
from domain.events.decision import LeaseEvent
from domain.events.status import OpenRequest
from domain.ids import LeaseId, LinkId, NodeId, RequestId
from domain.inputs import EngineResult, LendFailure, LendResult, NewRequest, RuntimeConfig
from domain.owner.drain_rate import DrainRate
from domain.owner.facts import FactMaker, open_request
from domain.owner.held import HeldQueue
from domain.owner.leases import LeaseBook
from domain.owner.request import OwnRequest
from domain.pipe import Left

_NO_ANSWER = 502


class OwnerQueue:
    """The requests that this node received for one model. Methods append facts and actions to `out`."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        self._facts = FactMaker(config)
        self._requests: dict[RequestId, OwnRequest] = {}
        self._held = HeldQueue()
        self._rate = DrainRate()
        self._seq = 0
        self._in_engine = 0
        self._lent = 0
        self._said_us = 0
        self.leases = LeaseBook()
        self.enrolled = False

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._requests

    @property
    def held(self) -> int:
        """How many requests are held."""
        return len(self._held)

    @property
    def out(self) -> int:
        """How many requests are lent."""
        return self._lent

    # -- arrival ----------------------------------------------------------------------------------------------------

    def refuse(self, new: NewRequest, code: str, now_us: int, out: list[Output]) -> None:
        """Refuse `new`: queue_full or draining."""
        self._rate.refused()
        self._say(self._facts.rejected(new, code), now_us, out)
        message = f"model {self._config.model}: {self.held} requests wait, {self._config.held_max} may"
        if code == "draining":
            message = f"model {self._config.model}: node {self._config.node} is shutting down"
        out.append(
            Refuse(
                request=new.request,
                status=503,
                code="queue_full" if code == "queue_full" else "model_unavailable",
                message=message,
                retry_after_s=self._rate.retry_after_s(now_us),
            )
        )

    def arrive(self, new: NewRequest, now_us: int, *, behind: int, behind_load: bool) -> OwnRequest:
        """Take custody of `new`. It has no place yet: `start` or `hold` it next.

        `behind`: borrowed requests inside the engine. `behind_load`: a model is being loaded for borrowed work.
        """
        assert new.request not in self._requests, f"request {new.request}: came twice"
        why = _not_lendable(new, self._config)
        self._seq += 1
        request = OwnRequest(
            new=new,
            seq=self._seq,
            arrived_us=now_us,
            deadline_us=now_us + self._config.wait_us_max,
            lendable=not why,
            not_lendable=why,
            behind=behind,
            behind_load=behind_load,
        )
        self._requests[new.request] = request
        return request

    def hold(self, request: OwnRequest, now_us: int, out: list[Output]) -> None:
        """Hold `request`, at its place in the order of arrival."""
        request.place, request.since_us = "held", now_us
        self._held.put(request)
        if self.enrolled:
            self._say(self._facts.held(request, self.held), now_us, out)

    # -- the own engine ---------------------------------------------------------------------------------------------

    def first_held(self) -> OwnRequest | None:
        """Return the request that goes to the engine next; None if none is held."""
        return self._held.first()

    def start(self, request: OwnRequest, in_engine: int, now_us: int, out: list[Output]) -> None:
        """Give `request` to the engine; `in_engine`: requests inside, this one counted."""
        if request.place == "held":
            self._held.remove(request)
        request.place, request.since_us = "engine", now_us
        self._in_engine += 1
        if self.enrolled:
            self._say(self._facts.started(request, in_engine), now_us, out)
        out.append(Dispatch(request=request.new.request))

    def served(self, request: RequestId, now_us: int, out: list[Output]) -> None:
        """The engine's service of `request` begins now."""
        own = self._requests[request]
        own.began_us = now_us
        if (own.behind or own.behind_load) and now_us > own.arrived_us and self.enrolled:
            self._say(self._facts.native_waited(own), now_us, out)
            own.behind, own.behind_load = 0, False  # said once, also if the engine turns out not to have begun

    def engine_finished(
        self, request: RequestId, result: EngineResult, left: Left, now_us: int, out: list[Output]
    ) -> None:
        """`request` left the engine: it ends here, unless it provably never started; then it is held again."""
        own = self._requests[request]
        own.began_us = left.began_us
        self._in_engine -= 1
        if own.gone:
            self._end(own, self._facts.cancelled(own, left.service_us, "engine", now_us), now_us, out)
        elif result.not_started:
            own.began_us = None
            self.hold(own, now_us, out)
        elif result.complete and result.status:
            answer = LendResult(
                status=result.status,
                service_us=left.service_us,
                tokens_in=result.tokens_in,
                tokens_out=result.tokens_out,
            )
            self._answered(own, answer, now_us, out)
        else:
            self._fail(own, left.service_us, result.code or "engine_failed", now_us, out)

    def engine_died(self, request: RequestId, left: Left, now_us: int, out: list[Output]) -> None:
        """The engine died with `request` inside. It does not run again: it may be what killed the engine."""
        if not self._requests[request].gone:  # else it is cancelled already
            out.append(CancelEngine(request=request))
        self.engine_finished(request, EngineResult(status=0, complete=False), left, now_us, out)

    # -- lending ----------------------------------------------------------------------------------------------------

    def take_lease(
        self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int, out: list[Output]
    ) -> None:
        """Take a lease event that names this queue."""
        fact = self.leases.take(event, order, basis_sent_us, now_us)
        if fact is not None:
            self._say(fact, now_us, out)

    def lend(self, now_us: int, out: list[Output]) -> None:
        """Lend held requests, first come first, while a lease has a free slot."""
        while (request := self._held.first_lendable()) is not None:
            lease = self.leases.pick()
            if lease is None:
                return
            grant = lease.grant
            self._held.remove(request)
            request.place, request.since_us = "lent", now_us
            request.link, request.lease, request.helper = grant.link, grant.lease, grant.helper
            request.taken = False
            self._lent += 1
            out_count = self.leases.opened(grant.link, request.new.request)
            self._say(self._facts.lent(request, grant.link, grant.lease, out_count, now_us), now_us, out)
            out.append(
                Lend(
                    request=request.new.request,
                    link=grant.link,
                    lease=grant.lease,
                    grant=grant,
                    order=lease.order,
                    remaining_us=lease.ends_us - now_us,
                )
            )

    def lent(self, request: RequestId) -> OwnRequest | None:
        """Return `request` if it is lent now."""
        own = self._requests.get(request)
        return own if own is not None and own.place == "lent" else None

    def lend_answered(self, own: OwnRequest, result: LendResult, now_us: int, out: list[Output]) -> None:
        """The helper's answer was passed on whole."""
        link, lease = self._lend_over(own)
        self._say(self._facts.answered(own, link, lease, result), now_us, out)
        self.leases.answered(link)
        self._answered(own, result, now_us, out)

    def lend_returned(self, own: OwnRequest, reason: str, now_us: int, out: list[Output]) -> None:
        """Handed back unstarted: held again, never lent again."""
        link, lease = self._lend_over(own)
        self._say(self._facts.returned(own, link, lease, reason), now_us, out)
        self.leases.refused(link, now_us)
        self._hold_again(own, "returned", now_us, out)

    def lend_refused(self, own: OwnRequest, reason: str, now_us: int, out: list[Output]) -> None:
        """It could not be passed on: the owner runs it itself."""
        link, lease = self._lend_over(own)
        self._say(self._facts.relay_refused(own, link, lease, reason), now_us, out)
        self.leases.refused(link, now_us)
        self._hold_again(own, "relay_refused", now_us, out)

    def lend_busy(self, own: OwnRequest, now_us: int, out: list[Output]) -> None:
        """The desk was full: held again, and as lendable as before."""
        link, lease = self._lend_over(own)
        self._say(self._facts.busy(own, link, lease), now_us, out)
        self.leases.desk_full(link)
        self._hold_again(own, "", now_us, out)

    def lend_failed(self, own: OwnRequest, failure: LendFailure, now_us: int, out: list[Output]) -> None:
        """The helper is fenced: the request runs again here if it may, else it fails."""
        link, lease = self._lend_over(own)
        cut = self._facts.cut_off(own, link, lease, failure.reason, may_have_run=failure.may_have_run)
        self._say(cut, now_us, out)
        self.leases.refused(link, now_us)
        again = not failure.may_have_run or (may_run_again(own) and not failure.poison)
        if not again or failure.sent:
            self._fail(own, 0, "engine_failed", now_us, out)
            return
        if failure.may_have_run:
            own.may_have_run = True
            own.deadline_us = now_us + self._config.wait_us_max
        self._hold_again(own, "cut_off", now_us, out)

    # -- ends -------------------------------------------------------------------------------------------------------

    def client_gone(self, request: RequestId, now_us: int, out: list[Output]) -> None:
        """The client left: the request ends where it is; in the engine, once the engine is done with it."""
        own = self._requests[request]
        if own.place == "engine":
            if not own.gone:
                own.gone = True
                out.append(CancelEngine(request=request))
            return
        if own.place == "held":
            self._held.remove(own)
            self._end(own, self._facts.cancelled(own, 0, "held", now_us), now_us, out)
            return
        link, lease = self._lend_over(own)
        out.append(CancelLend(request=request, lease=lease))
        self._say(self._facts.cut_off(own, link, lease, "client_gone", may_have_run=True), now_us, out)
        self._end(own, self._facts.cancelled(own, 0, "lent", now_us), now_us, out)

    def refuse_held(self, why: str, now_us: int, out: list[Output]) -> None:
        """Refuse all that is held, since its model cannot be loaded: 503 model_unavailable (502 if a helper may have run it)."""
        while (own := self._held.first()) is not None:
            self._held.remove(own)
            if own.may_have_run:
                self._fail(own, 0, "engine_failed", now_us, out)
                continue
            self._end(own, self._facts.failed(own, 0, 503, "load_failed", now_us), now_us, out)
            out.append(
                Refuse(
                    request=own.new.request,
                    status=503,
                    code="model_unavailable",
                    message=f"model {self._config.model}: {why}",
                    retry_after_s=30,
                )
            )

    def expire(self, now_us: int, out: list[Output]) -> None:
        """End the leases and the held requests whose time is over."""
        for fact in self.leases.expire(now_us):
            self._say(fact, now_us, out)
        while (own := self._held.first_due()) is not None and own.deadline_us <= now_us:
            self._held.remove(own)
            if own.may_have_run:  # "never started" cannot be said of it
                self._fail(own, 0, "engine_failed", now_us, out)
                continue
            waited_s = (now_us - own.arrived_us) // 1_000_000
            retry_after_s = self._rate.retry_after_s(now_us)
            self._end(own, self._facts.expired(own, now_us), now_us, out)
            out.append(
                Refuse(
                    request=own.new.request,
                    status=504,
                    code="queue_timeout",
                    message=f"model {self._config.model}: waited {waited_s} s and did not start",
                    retry_after_s=retry_after_s,
                )
            )

    # -- links, time, snapshot --------------------------------------------------------------------------------------

    def set_links(self, links: Collection[LinkId], *, enrolled: bool, now_us: int, out: list[Output]) -> None:
        """Set the links of which the model is the owner. On enrolling, what is open is stated as if it came now."""
        for fact in self.leases.set_links(links):
            self._say(fact, now_us, out)
        newly = enrolled and not self.enrolled
        self.enrolled = enrolled
        if not newly:
            return
        inside = sorted((own for own in self._requests.values() if own.place == "engine"), key=lambda own: own.seq)
        for count, own in enumerate(inside, 1):
            self._say(self._facts.started(own, count), now_us, out)
        for count, own in enumerate(self._held.in_order(), 1):
            self._say(self._facts.held(own, count), now_us, out)

    def give_sign_of_life(self, now_us: int, out: list[Output]) -> None:
        """State a snapshot if the queue should have said something by now."""
        due_us = self._sign_due_us()
        if due_us is not None and due_us <= now_us:
            fact = self._facts.snapshot(
                held=self.held, in_engine=self._in_engine, lent=self._lent, lease=self.leases.first_lease()
            )
            self._say(fact, now_us, out)

    def next_timer_us(self) -> int | None:
        """Return when something of this queue is due next."""
        due = self._held.first_due()
        moments = (due.deadline_us if due is not None else None, self.leases.next_timer_us(), self._sign_due_us())
        return min((moment for moment in moments if moment is not None), default=None)

    def snapshot(self, now_us: int) -> tuple[OpenRequest, ...]:
        """Return the open requests that facts told of, in order of arrival."""
        told = (own for own in self._requests.values() if self.enrolled or own.place == "lent")
        return tuple(open_request(own, now_us) for own in sorted(told, key=lambda own: own.seq))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _sign_due_us(self) -> int | None:
        if not self.enrolled or not (self.held or len(self.leases)):
            return None
        ttl_us = min(self._config.lease_ttl_us, self.leases.ttl_us_min() or self._config.lease_ttl_us)
        return self._said_us + ttl_us // 3

    def _say(self, fact: Fact, now_us: int, out: list[Output]) -> None:
        self._said_us = now_us
        out.append(fact)

    def _lend_over(self, own: OwnRequest) -> tuple[LinkId, LeaseId]:
        """Close the slot of `own`; return what it was lent under."""
        assert own.link is not None, f"request {own.new.request}: is lent over no link"
        assert own.lease is not None, f"request {own.new.request}: is lent under no lease"
        self._lent -= 1
        self.leases.closed(own.link, own.new.request)
        return own.link, own.lease

    def _hold_again(self, own: OwnRequest, not_lendable: str, now_us: int, out: list[Output]) -> None:
        own.link, own.lease, own.helper = None, None, NodeId("")
        if not_lendable:
            own.keep_from_lending(not_lendable)
        self.hold(own, now_us, out)

    def _answered(self, own: OwnRequest, result: LendResult, now_us: int, out: list[Output]) -> None:
        if result.status < 500:
            self._end(own, self._facts.finished(own, result, now_us), now_us, out)
        else:  # passed on unchanged
            fact = self._facts.failed(own, result.service_us, result.status, "engine_error", now_us)
            self._end(own, fact, now_us, out)

    def _fail(self, own: OwnRequest, service_us: int, code: str, now_us: int, out: list[Output]) -> None:
        where = f"helper {own.helper}" if own.helper else f"node {self._config.node}"
        self._end(own, self._facts.failed(own, service_us, _NO_ANSWER, code, now_us), now_us, out)
        out.append(
            Refuse(
                request=own.new.request,
                status=_NO_ANSWER,
                code=code,
                message=f"model {self._config.model}: the engine of {where} failed, and the request may have run there",
                may_have_run=True,
            )
        )

    def _end(self, own: OwnRequest, terminal: Fact, now_us: int, out: list[Output]) -> None:
        del self._requests[own.new.request]
        self._rate.departed(now_us)
        self.leases.something_ended()
        self._say(terminal, now_us, out)


def may_run_again(own: OwnRequest) -> bool:
    """Tell whether a lent request may run at its owner after its helper failed, if no byte went to the client."""
    return own.new.replayable and not (own.new.streaming and own.taken)


def _not_lendable(new: NewRequest, config: RuntimeConfig) -> str:
    if not new.lendable:
        return new.not_lendable or "request"
    if new.streaming and not config.offload_streams:
        return "streaming_off"
    return "" if new.replayable else "not_replayable"

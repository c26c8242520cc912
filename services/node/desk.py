"""The helper's side of a lend: checks who asks and under which lease before it says 100, then serves it as its own engine can."""

import contextlib
import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from adapters.http.body import BodyReader, ReadRequest, parse
from adapters.http.errors import ApiError
from adapters.http.headers import to_engine
from adapters.http.relay import ClientAnswer
from adapters.http.server import Call
from domain.actions import AcceptBorrow, CancelEngine, Dispatch, Refuse, RefuseBorrow
from domain.control.view import ControlView
from domain.ids import ModelId, NodeId, RequestId
from domain.inputs import BorrowOffer, EngineResult
from domain.ports import Clock
from services import lend_head
from services.lend_check import LendCheck
from services.lend_head import LendHead
from services.node.grants import LeaseCopies
from services.node.own_work import Served, Work, run_on_own_engine
from services.node.ticket import Ticket
from services.telemetry.tracing import OFF

_LOG: Final = logging.getLogger("leaseway.node")
_OUTCOMES: Final = {"offload_returned": "returned", "offload_busy": "busy", "offload_duplicate": "refused"}


class Desk:
    """Takes lends for the node's models."""

    def __init__(
        self,
        node: NodeId,
        models: Mapping[ModelId, Served],
        view: ControlView,
        check: LendCheck,
        copies: LeaseCopies,
        bodies: BodyReader,
        clock: Clock,
    ) -> None:
        """Take what `check` lets through, over the links in `view`."""
        self.knows_control: Callable[[], bool] = lambda: True
        """Whether `view` holds all that operators had decided when this process began to listen."""
        self.tracing = OFF
        self._node, self._models, self._view = node, models, view
        self._check, self._copies, self._bodies, self._clock = check, copies, bodies, clock

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one lend; every answer says in a header how it is meant."""
        client = ClientAnswer(call, self._node)
        try:
            await self._serve(call, client)
            await client.end()
        except ApiError as error:
            # nothing has started: all that may fail afterwards is told by an outcome of its own
            client.extra[lend_head.OUTCOME] = _OUTCOMES.get(error.code, "refused")
            client.extra[lend_head.REASON] = error.code
            error.close = True
            await client.fail(error)
        finally:
            client.stop()
        return client.result()

    async def _serve(self, call: Call, client: ClientAnswer) -> None:
        head = self._checked(call)
        told = {
            "gen_ai.request.model": head.model, "leaseway.request": head.request, "leaseway.owner": head.owner,
            "leaseway.helper": self._node, "leaseway.link": head.link, "leaseway.lease": head.lease,
        }  # fmt: skip
        with self.tracing.span("helper.serve", told, within=call.request.headers) as span:
            await self._take(call, head, client)
            span.set("leaseway.outcome", client.extra.get(lend_head.OUTCOME, ""))
            if client.error is not None:
                span.fail(client.error.code)

    async def _take(self, call: Call, head: LendHead, client: ClientAnswer) -> None:
        served = self._models.get(head.model)
        if served is None:
            raise ApiError("model_not_found", f"node {self._node}: no model {head.model[:256]!r}", param="model")
        ticket, first = served.serving.borrow(self._offer(head))
        if not isinstance(first, AcceptBorrow):
            await self._hand_back(first, client)
            return
        try:
            await self._accepted(call, head, served, ticket, client)
        finally:
            served.serving.close(head.request)

    # -- before the 100

    def _checked(self, call: Call) -> LendHead:
        """Return the head of a lend that this node may take.

        Raises:
            ApiError: it is not one; nothing has changed.
        """
        try:
            shown = self._check.shown(call, lend_head.PREFIX, helper=self._node)
        except ApiError as error:
            if error.code == "bad_signature":
                self._require_control()
            raise
        if self._view.link(shown.head.link) is None:
            self._require_control()
        # the owner may have heard of it first
        self._copies.take(shown.grant, self._clock.monotonic_us())
        return shown.head

    def _require_control(self) -> None:
        """Return if what is not known here is not so.

        Raises:
            ApiError: offload_busy, since owner or link may only not have been heard of yet.
        """
        if not self.knows_control():
            raise ApiError("offload_busy", f"node {self._node}: does not know yet whom it may help")

    def _offer(self, head: LendHead) -> BorrowOffer:
        live = self._copies.live(head.link, head.lease, self._clock.monotonic_us())
        link = self._view.link(head.link)
        return BorrowOffer(
            request=head.request,
            owner=head.owner,
            link=head.link,
            lease=head.lease,
            work=head.work,
            slots=live.slots if live is not None else 0,
            remaining_us=head.remaining_ms * 1000,
            lease_live=live is not None and link is not None,
            may_load=link is not None and link.load_if_unloaded,
            restore=link is not None and link.restore_after_borrow,
        )

    # -- after it (who reads the body says it)

    async def _accepted(self, call: Call, head: LendHead, served: Served, ticket: Ticket, client: ClientAnswer) -> None:
        async with contextlib.AsyncExitStack() as kept:
            read: ReadRequest | None = None
            async with ticket.working():
                read = _checked_body(head, await kept.enter_async_context(self._bodies.reading(call.request)))
            if read is not None:
                served.serving.borrow_body(head.request)
            await self._follow(call, head, served, ticket, read, client)

    async def _follow(
        self, call: Call, head: LendHead, served: Served, ticket: Ticket, read: ReadRequest | None, client: ClientAnswer
    ) -> None:
        """Do what the machines say until the owner has been answered."""
        while True:
            action = await ticket.next()
            if isinstance(action, RefuseBorrow):
                await self._hand_back(action, client)
                return
            if isinstance(action, Dispatch) and read is not None:
                await self._run(call, head, served, ticket, read, client)
                return
            if isinstance(action, Refuse):
                # the node ends before it has begun
                served.serving.borrower_gone(head.request)
                await self._hand_back(_stopped(head.request), client)
                return
            assert isinstance(action, CancelEngine), f"request {head.request}: {action} is not for a desk"

    async def _run(
        self, call: Call, head: LendHead, served: Served, ticket: Ticket, read: ReadRequest, client: ClientAnswer
    ) -> None:
        work = Work(
            read=read,
            path=head.path,
            headers={**to_engine(call.request.headers), "x-request-id": head.request},
            measured=lambda result: served.sizes.work_of_lent(read, result) if head.rough else 0,
        )
        client.extra[lend_head.OUTCOME] = "answered"
        if ticket.load_us:
            client.extra[lend_head.LOAD_US] = str(ticket.load_us)
        result = await run_on_own_engine(served, ticket, work, client, served.serving.borrower_gone)
        if result.complete:
            client.add_header(lend_head.SERVICE_US, str(ticket.service_us))
        elif client.sent:
            # no event: the owner must see that it is cut, and says so to its client
            client.cut()
        else:
            await self._tell_failure(result, client, stopped=ticket.is_refused)

    async def _tell_failure(self, result: EngineResult, client: ClientAnswer, *, stopped: bool) -> None:
        if result.not_started:
            client.extra[lend_head.OUTCOME] = "refused"
            await client.fail(ApiError("model_unavailable", f"node {self._node}: the engine is down", close=True))
        elif stopped:
            # the request is not at fault: it may run again
            client.extra[lend_head.OUTCOME] = "stopped"
            await client.fail(ApiError("node_draining", f"node {self._node}: is stopping", close=True))
        else:
            client.extra[lend_head.OUTCOME] = "failed"
            await client.fail(ApiError("engine_failed", f"node {self._node}: the engine failed", close=True))

    async def _hand_back(self, action: object, client: ClientAnswer) -> None:
        assert isinstance(action, RefuseBorrow), f"{action} is not for an owner that waits"
        client.extra[lend_head.OUTCOME] = _OUTCOMES.get(action.code, "refused")
        client.extra[lend_head.REASON] = action.reason or action.code
        error = ApiError(action.code, f"node {self._node}: {action.code}", status=action.status, close=True)
        await client.fail(error)


def _stopped(request: RequestId) -> RefuseBorrow:
    return RefuseBorrow(request=request, status=409, code="offload_returned", reason="draining")


def _checked_body(head: LendHead, body: bytes) -> ReadRequest:
    if not hmac.compare_digest(lend_head.body_hash(body), head.body_sha256):
        raise ApiError("invalid_body", "lend: the body is not the one that was signed")
    read = parse(body)
    if read.model != head.model:
        raise ApiError("invalid_model", f"lend: the body must name {head.model[:256]!r}", param="model")
    return read

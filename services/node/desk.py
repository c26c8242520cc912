"""The helper's side of a lend: checks who asks and under which lease before it says 100, then serves it as its own engine can."""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from adapters.decisions import DecisionReader
from adapters.http.body import BodyReader, ReadRequest, check_headers, parse
from adapters.http.errors import ApiError
from adapters.http.headers import to_engine
from adapters.http.relay import ClientAnswer
from adapters.http.server import Call
from adapters.http.surface import WORK_PATHS
from domain.actions import AcceptBorrow, CancelEngine, Dispatch, Refuse, RefuseBorrow
from domain.control.view import ControlView
from domain.ids import ModelId, NodeId
from domain.inputs import BorrowOffer, EngineResult
from domain.ports import Clock
from services.node import lend_head
from services.node.grants import LeaseCopies
from services.node.lend_head import BadLendError, LendHead
from services.node.own_work import Served, Work, run_on_own_engine
from services.node.ticket import Ticket

_LOG: Final = logging.getLogger("leaseway.node")
_OUTCOMES: Final = {"offload_returned": "returned", "offload_busy": "busy", "offload_duplicate": "refused"}


class Desk:
    """Takes lends for the node's models."""

    def __init__(
        self,
        node: NodeId,
        models: Mapping[ModelId, Served],
        view: ControlView,
        reader: DecisionReader,
        copies: LeaseCopies,
        bodies: BodyReader,
        clock: Clock,
    ) -> None:
        """Believe the roster in `view` for owners' keys, and `reader` for the master's word."""
        self._node, self._models, self._view = node, models, view
        self._reader, self._copies, self._bodies, self._clock = reader, copies, bodies, clock

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one lend; every answer says in a header how it is meant."""
        client = ClientAnswer(call, self._node)
        try:
            await self._serve(call, client)
            await client.end()
        except ApiError as error:
            # nothing has started: all that may fail afterwards is told by an outcome of its own
            client.extra[lend_head.OUTCOME] = "refused"
            client.extra[lend_head.REASON] = error.code
            error.close = True
            await client.fail(error)
        finally:
            client.stop()
        return client.result()

    async def _serve(self, call: Call, client: ClientAnswer) -> None:
        head = self._checked(call)
        served = self._models.get(head.model)
        if served is None:
            raise ApiError("model_not_found", f"node {self._node}: no model {head.model[:256]!r}", param="model")
        ticket, first = served.serving.borrow(self._offer(head))
        if not isinstance(first, AcceptBorrow):
            await self._hand_back(first, ticket, client)
            return
        try:
            await self._accepted(call, head, served, ticket, client)
        except asyncio.CancelledError:
            served.serving.borrower_gone(head.request)
            raise
        finally:
            served.serving.close(head.request)

    # -- before the 100

    def _checked(self, call: Call) -> LendHead:
        """Return the head of a lend that this node may take.

        Raises:
            ApiError: it is not one; nothing has changed.
        """
        headers = call.request.headers
        if headers.get("Expect", "").strip().lower() != "100-continue":
            raise ApiError("expectation_failed", "a lend must wait for 100 Continue before its body")
        check_headers(call.request, self._bodies.limit_bytes)
        try:
            head, encoded, signature, grant = lend_head.opened(headers)
        except BadLendError as error:
            raise ApiError("bad_request", f"lend: {error}") from None
        owner = self._view.node(head.owner)
        if owner is None or not lend_head.is_signed(encoded, signature, owner.public_key):
            _LOG.warning("lend_refused", extra={"owner": head.owner, "request": head.request, "why": "signature"})
            raise ApiError("bad_signature", f"lend of {head.owner}: must be signed by a node of this cluster")
        path = call.path.removeprefix(lend_head.PREFIX)
        if head.helper != self._node or head.path != path or path not in WORK_PATHS:
            raise ApiError("bad_request", f"lend: is for {head.helper} at {head.path[:80]}, came to {self._node}")
        if call.request.content_length != head.size_bytes:
            raise ApiError("bad_request", f"lend: Content-Length must be {head.size_bytes}")
        self._check_grant(head, grant)
        return head

    def _check_grant(self, head: LendHead, grant: bytes) -> None:
        signed = self._reader.read(grant)
        event = signed.lease if signed is not None else None
        if signed is None or event is None:
            _LOG.warning("lend_refused", extra={"owner": head.owner, "request": head.request, "why": "grant"})
            raise ApiError("bad_signature", f"lend of {head.owner}: the grant must be signed by the master")
        named = (event.link, event.owner, event.helper, event.helper_model, event.lease)
        if named != (head.link, head.owner, head.helper, head.model, head.lease):
            raise ApiError("no_live_lease", f"lend of {head.owner}: the grant is for something else")
        # the owner may have heard of it first
        self._copies.take(signed, self._clock.monotonic_us())

    def _offer(self, head: LendHead) -> BorrowOffer:
        live = self._copies.live(head.link, head.lease, self._clock.monotonic_us())
        return BorrowOffer(
            request=head.request,
            owner=head.owner,
            link=head.link,
            lease=head.lease,
            work=head.work,
            slots=live.slots if live is not None else 0,
            remaining_us=head.remaining_ms * 1000,
            lease_live=live is not None and self._view.link(head.link) is not None,
        )

    # -- after it

    async def _accepted(self, call: Call, head: LendHead, served: Served, ticket: Ticket, client: ClientAnswer) -> None:
        await call.request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        call.request.writer.output_size = 0  # aiohttp's own way to say that the answer has not begun
        async with contextlib.AsyncExitStack() as kept:
            read: ReadRequest | None = None
            try:
                async with ticket.working():
                    read = _checked_body(head, await kept.enter_async_context(self._bodies.reading(call.request)))
            except ApiError:
                served.serving.borrower_gone(head.request)
                raise
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
                await self._hand_back(action, ticket, client)
                return
            if isinstance(action, Dispatch) and read is not None:
                await self._run(call, head, served, ticket, read, client)
                return
            assert isinstance(action, CancelEngine | Refuse), f"request {head.request}: {action} is not for a desk"

    async def _run(
        self, call: Call, head: LendHead, served: Served, ticket: Ticket, read: ReadRequest, client: ClientAnswer
    ) -> None:
        work = Work(
            read=read, path=head.path, headers={**to_engine(call.request.headers), "x-request-id": head.request}
        )
        client.extra[lend_head.OUTCOME] = "answered"
        result = await run_on_own_engine(served, ticket, work, client, served.serving.borrower_gone)
        if result.complete:
            client.add_header(lend_head.SERVICE_US, str(ticket.service_us))
        elif client.sent:
            # no event: the owner must see that it is cut, and says so to its client
            client.cut()
        else:
            await self._tell_failure(result, client)

    async def _tell_failure(self, result: EngineResult, client: ClientAnswer) -> None:
        if result.not_started:
            client.extra[lend_head.OUTCOME] = "refused"
            await client.fail(ApiError("model_unavailable", f"node {self._node}: the engine is down", close=True))
        else:
            client.extra[lend_head.OUTCOME] = "failed"
            await client.fail(ApiError("engine_failed", f"node {self._node}: the engine failed", close=True))

    async def _hand_back(self, action: object, ticket: Ticket, client: ClientAnswer) -> None:
        assert isinstance(action, RefuseBorrow), f"{action} is not for an owner that waits"
        client.extra[lend_head.OUTCOME] = _OUTCOMES.get(action.code, "refused")
        client.extra[lend_head.REASON] = ticket.returned or action.code
        error = ApiError(action.code, f"node {self._node}: {action.code}", status=action.status, close=True)
        await client.fail(error)


def _checked_body(head: LendHead, body: bytes) -> ReadRequest:
    if not hmac.compare_digest(lend_head.body_hash(body), head.body_sha256):
        raise ApiError("invalid_body", "lend: the body is not the one that was signed")
    read = parse(body)
    if read.model != head.model:
        raise ApiError("invalid_model", f"lend: the body must name {head.model[:256]!r}", param="model")
    return read

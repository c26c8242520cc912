"""The owner's side of a lend: sends a held request to a helper and passes the answer on to the client."""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from adapters.http.headers import to_engine
from adapters.http.relay import ClientAnswer, relay
from adapters.http.rewrite import request_for_engine
from adapters.http.upstream import Answer, Upstream
from adapters.keys import Signer
from domain.errors import MayHaveRunError, NotConnectedError, NotStartedError
from domain.ids import NodeId
from domain.inputs import LendFailure, LendResult
from domain.ports import Clock
from services import lend_head
from services.config import Limits
from services.node.grants import LeaseCopies
from services.node.ingress import LendRequest
from services.node.own_work import Served
from services.node.routes import Route, Routes
from services.node.ticket import Ticket
from services.telemetry.tracing import OFF, Span

_LOG: Final = logging.getLogger("leaseway.node")
_CONNECTIONS: Final = 64
_HEARD_US: Final = 1_000_000
_REFUSALS: Final = frozenset({"no_live_lease", "helper_unreachable", "forward_failed"})


class _Sent(NamedTuple):
    """The head of an answer."""

    answer: Answer
    asked: bool
    """The helper asked for the body: it has it."""

    @property
    def reason(self) -> str:
        """Return why the helper, or a relay, did not do it."""
        return self.answer.headers.get(lend_head.REASON, "")


class HttpLender:
    """Lends over HTTP: the head first, the body only when the helper asks for it."""

    def __init__(
        self,
        node: NodeId,
        signer: Signer,
        copies: LeaseCopies,
        limits: Limits,
        clock: Clock,
        *,
        relays: tuple[str, ...] = (),
    ) -> None:
        """Lend in the name of `node`, whose nkey signs; `relays` are asked where a helper cannot be reached."""
        self._node, self._signer, self._copies = node, signer, copies
        self._clock, self._routes = clock, Routes(relays, clock)
        # helpers change their addresses: one for all of them keeps nothing of those that they have left
        self._upstream = Upstream(
            connections=_CONNECTIONS,
            per_party=True,
            connect_s=limits.upstream_connect_s,
            # a helper may be silent for as long as it works: the cut-off and the stall check know whether it does
            keep_alive=False,
        )
        self.tracing = OFF

    def known_at(self, url: str) -> None:
        """Take the URL at which others find this node: a helper's URL that only its own machine understands is none for it."""
        self._routes.own_url = url

    async def close(self) -> None:
        """Close every connection."""
        await self._upstream.close()

    async def lend(self, served: Served, ticket: Ticket, lend: LendRequest, client: ClientAnswer) -> bool:
        """Send the request, tell the machines how it went, pass an answer on; tell whether the client has been answered."""
        try:
            with self.tracing.span("node.lend", self._told(served, lend)) as span:
                async with ticket.working():
                    return await self._lend(served, lend, client, span)
                span.fail("taken_back")
        finally:
            client.served_by = client.served_by if client.sent else self._node
        return False

    def _told(self, served: Served, lend: LendRequest) -> dict[str, str]:
        action = lend.action
        return {
            "gen_ai.request.model": served.serving.id, "leaseway.request": action.request, "leaseway.owner": self._node,
            "leaseway.helper": action.grant.helper, "leaseway.link": action.link, "leaseway.lease": action.lease,
        }  # fmt: skip

    async def _lend(self, served: Served, lend: LendRequest, client: ClientAnswer, span: Span) -> bool:
        serving, request, lease = served.serving, lend.action.request, lend.action.lease
        grant = self._copies.shown(lend.action.link, lease)
        if grant is None:
            serving.lend_refused(request, lease, "no_live_lease")
            span.fail("no_live_lease")
            return False
        try:
            sent = await self._send(served, lend, grant, span)
        except NotStartedError as error:
            _LOG.info(
                "helper_unreachable", extra={"request": request, "helper": lend.action.grant.helper, "why": str(error)}
            )
            serving.lend_refused(request, lease, "helper_unreachable")
            span.fail("helper_unreachable")
            return False
        except MayHaveRunError:
            serving.lend_failed(request, lease, LendFailure(reason="helper_failed"))
            span.fail("helper_failed")
            return False
        _tell_sent(span, sent.answer)
        try:
            return await self._take(served, lend, sent, client)
        finally:
            sent.answer.close()

    async def _send(self, served: Served, lend: LendRequest, grant: bytes, span: Span) -> "_Sent":
        """Ask for the helper, directly or through relays, and return its answer; the body leaves at most once.

        Raises:
            NotConnectedError: no way leads to it.
            NotStartedError, MayHaveRunError: see Upstream.post_when_asked.
        """
        helper_url, body = (
            lend.action.grant.helper_url,
            request_for_engine(lend.work.read, lend.action.grant.helper_model),
        )
        began_us = self._clock.monotonic_us()
        for route in self._routes.to(helper_url):
            passed_us = self._clock.monotonic_us() - began_us
            try:
                headers = span.headers(self._headers(lend, body, grant, passed_us))
                sent = await self._ask(served, lend, route, body, headers)
            except NotConnectedError:
                if not route.relayed:
                    self._routes.shut(helper_url)
                continue
            if sent.asked or sent.reason != "helper_unreachable":
                return sent
            sent.answer.close()
        raise NotConnectedError(f"no way to {helper_url}")

    async def _ask(
        self, served: Served, lend: LendRequest, route: Route, body: bytes, headers: Mapping[str, str]
    ) -> "_Sent":
        request, lease = lend.action.request, lend.action.lease
        asked: list[bool] = []

        def asked_for() -> None:
            asked.append(True)
            served.serving.lend_accepted(request, lease)

        url = route.base + route.prefix + lend.work.path
        answer = await self._upstream.post_when_asked(
            url, body, headers, asked_for=asked_for, continue_s=route.continue_s
        )
        return _Sent(answer, bool(asked))

    def _headers(self, lend: LendRequest, body: bytes, grant: bytes, passed_us: int) -> dict[str, str]:
        action, work = lend.action, lend.work
        head = lend_head.LendHead(
            request=action.request,
            lease=action.lease,
            link=action.link,
            owner=self._node,
            helper=action.grant.helper,
            model=action.grant.helper_model,
            path=work.path,
            work=lend.units,
            rough=lend.rough,
            remaining_ms=(action.remaining_us - passed_us) // 1000,
            size_bytes=len(body),
            body_sha256=lend_head.body_hash(body),
        )
        sealed = lend_head.sealed(head, self._signer, grant)
        return {**to_engine(work.headers), "x-request-id": action.request, **sealed}

    async def _take(self, served: Served, lend: LendRequest, sent: "_Sent", client: ClientAnswer) -> bool:
        """Tell the machines what the helper's answer means; pass it on if it is one for the client."""
        serving, request, lease = served.serving, lend.action.request, lend.action.lease
        answer, outcome = sent.answer, sent.answer.headers.get(lend_head.OUTCOME, "")
        match outcome:
            case "returned":
                serving.lend_returned(request, lease, sent.reason[:40] or "own_work")
            case "busy":
                serving.lend_busy(request, lease)
            case "refused":
                serving.lend_refused(request, lease, sent.reason if sent.reason in _REFUSALS else "forward_failed")
            case "answered" if answer.status < 500 or not serving.may_run_again(request):
                return await self._pass_on(served, lend, answer, client)
            case _ if not sent.asked:
                # whoever answered there is neither a helper nor a relay
                serving.lend_refused(request, lease, "forward_failed")
            case _:
                # an engine that died under a request may have died of it: it gets no second one
                failure = LendFailure(reason="helper_error", poison=outcome == "failed")
                serving.lend_failed(request, lease, failure)
        return False

    async def _pass_on(self, served: Served, lend: LendRequest, answer: Answer, client: ClientAnswer) -> bool:
        serving, request, lease = served.serving, lend.action.request, lend.action.lease
        client.served_by = lend.action.grant.helper
        serving.lend_answering(request, lease)
        try:
            done = await relay(answer, client, public=serving.id, heard=self._hearing(served, lend))
        except MayHaveRunError:
            serving.lend_failed(request, lease, LendFailure(reason="helper_failed", sent=client.sent))
            return False
        result = LendResult(
            status=done.status,
            service_us=_whole_number(answer.headers, lend_head.SERVICE_US),
            load_us=_whole_number(answer.headers, lend_head.LOAD_US),
            tokens_in=done.usage.tokens_in,
            tokens_out=done.usage.tokens_out,
        )
        serving.lend_answered(request, lease, result)
        return True

    def _hearing(self, served: Served, lend: LendRequest) -> Callable[[], None]:
        """Return what tells the machines that the answer goes on, at most once a second."""
        said_us = self._clock.monotonic_us()

        def heard() -> None:
            nonlocal said_us
            now_us = self._clock.monotonic_us()
            if now_us - said_us >= _HEARD_US:
                said_us = now_us
                served.serving.lend_answering(lend.action.request, lend.action.lease)

        return heard


def _tell_sent(span: Span, answer: Answer) -> None:
    """Say how a helper, or a relay, took a lend."""
    outcome = answer.headers.get(lend_head.OUTCOME, "")[:40]
    span.set("leaseway.outcome", outcome)
    span.set("http.response.status_code", answer.status)
    if outcome != "answered" or answer.status >= 500:
        span.fail(answer.headers.get(lend_head.REASON, "")[:40] or outcome or "forward_failed")


def _whole_number(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0

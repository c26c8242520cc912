"""Passes a lend on for an owner that cannot reach its helper: head first, body only once the helper asks for it, never twice.

A gateway or any node of the cluster may do it. It goes only where a grant that the master signed says.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from aiohttp import web

from adapters.http.body import ask_for_body
from adapters.http.errors import ApiError
from adapters.http.headers import to_client, to_engine
from adapters.http.server import Call
from adapters.http.upstream import CONTINUE_S, Answer, Parts, Upstream
from domain.errors import MayHaveRunError, NotConnectedError, NotStartedError
from domain.events import LeaseCleared
from services import lend_head
from services.config_rules import http_url
from services.lend_check import LendCheck, Shown

_CONNECTIONS: Final = 256
_ANSWER_HEADERS: Final = (
    lend_head.OUTCOME,
    lend_head.REASON,
    lend_head.SERVICE_US,
    lend_head.LOAD_US,
    "leaseway-served-by",
    "leaseway-request",
    "x-request-id",
)


class Relay:
    """Passes lends on."""

    def __init__(
        self,
        name: str,
        check: LendCheck,
        is_over: Callable[[Shown], bool],
        *,
        connect_s: float,
        continue_s: float = CONTINUE_S,
    ) -> None:
        """Relay in the name of `name`. `is_over`: whether this process knows better than the grant that its lease is over."""
        self._name, self._check, self._is_over, self._continue_s = name, check, is_over, continue_s
        self.in_progress = 0
        """How many lends are being passed on."""
        self._idle = asyncio.Event()
        self._idle.set()
        # how long a helper may be silent is the owner's business: when it hangs up, so does this
        self._upstream = Upstream(connections=_CONNECTIONS, connect_s=connect_s, keep_alive=False)

    async def close(self) -> None:
        """Close every connection."""
        await self._upstream.close()

    async def drained(self) -> None:
        """Return when nothing is being passed on."""
        await self._idle.wait()

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one lend with its helper's answer, or say why it could not be passed on: then it has not started."""
        self.in_progress += 1
        self._idle.clear()
        try:
            return await self._serve(call)
        finally:
            self.in_progress -= 1
            if not self.in_progress:
                self._idle.set()

    async def _serve(self, call: Call) -> web.StreamResponse:
        try:
            shown = self._check.shown(call, lend_head.RELAY_PREFIX)
            self._require_live(shown)
            answer = await self._ask(call, shown)
        except ApiError as error:
            return self._refused(call, error)
        if answer is None:
            return _cut(call, web.Response(status=502))
        try:
            return await self._pass_on(call, answer)
        finally:
            answer.close()

    def _require_live(self, shown: Shown) -> None:
        lease = shown.lease
        dead = isinstance(lease, LeaseCleared) or lease.slots <= 0 or shown.head.remaining_ms <= 0
        if dead or self._is_over(shown):
            raise ApiError("no_live_lease", f"lend of {shown.head.owner}: its lease is over")
        # what a node says of itself the master signs unread: it must not choose the path of a post from here
        if any(http_url("helper_url", lease.helper_url)):
            raise ApiError("forward_failed", f"{self._name}: helper {shown.head.helper} has no sound URL")

    async def _ask(self, call: Call, shown: Shown) -> Answer | None:
        """Return the head of the helper's answer; None if it took the request and was lost.

        Raises:
            ApiError: the helper did not take it.
        """
        head = shown.head
        url = shown.lease.helper_url.rstrip("/") + lend_head.PREFIX + head.path
        taken: list[bool] = []
        try:
            return await self._upstream.post_when_asked(
                url,
                Parts(head.size_bytes, _body(call)),
                _to_helper(call, head.request),
                asked_for=lambda: taken.append(True),
                continue_s=self._continue_s,
            )
        except NotConnectedError:
            raise ApiError("helper_unreachable", f"{self._name}: helper {head.helper} cannot be reached") from None
        except (NotStartedError, MayHaveRunError):
            if taken:
                return None
            raise ApiError("forward_failed", f"{self._name}: helper {head.helper} did not take it") from None

    async def _pass_on(self, call: Call, answer: Answer) -> web.StreamResponse:
        """Give the helper's answer as it comes; a cut one is cut here too."""
        response = web.StreamResponse(
            status=answer.status, headers={**to_client(answer.headers), **_kept(answer.headers)}
        )
        response.force_close()
        length = answer.headers.get("Content-Length", "")
        if length.isdecimal():
            response.content_length = int(length)
        await response.prepare(call.request)
        try:
            async for part in answer.chunks():
                await response.write(part)
        except MayHaveRunError:
            return _cut(call, response)
        await response.write_eof()
        return response

    def _refused(self, call: Call, error: ApiError) -> web.Response:
        error.close = True
        extra = {lend_head.OUTCOME: "refused", lend_head.REASON: error.code, "leaseway-served-by": self._name}
        return error.response({**call.id_headers(), **extra})


async def _body(call: Call) -> AsyncIterator[bytes]:
    """Ask the owner for the body, and yield it as it comes."""
    await ask_for_body(call.request)
    async for part in call.request.content.iter_any():
        yield part


def _cut(call: Call, response: web.StreamResponse) -> web.StreamResponse:
    """Drop the owner's connection: it must see that the answer is not whole, as if the helper itself had been lost."""
    transport = call.request.transport
    if transport is not None:
        transport.abort()
    return response


def _to_helper(call: Call, request: str) -> dict[str, str]:
    shown = {name: call.request.headers[name] for name in (lend_head.HEAD, lend_head.SIGNATURE, lend_head.GRANT)}
    return {**to_engine(call.request.headers), "x-request-id": request, **shown}


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _ANSWER_HEADERS if name in headers}

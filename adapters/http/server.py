"""An aiohttp server fit for an edge: deadlines, bounds, quiet refusals, ids, and handlers that end when the client goes.

aiohttp's own defaults let silent and half-sent requests stay for ever, log a traceback for each malformed one, and build
`request.url` from the client's Host header: handlers here route on the raw path alone.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

from adapters.clock import new_request_id
from adapters.http.errors import ApiError
from adapters.http.headers import client_request_id, host_is_sound
from adapters.http.hosts import Hosts
from domain.ids import RequestId

_LOG: Final = logging.getLogger("leaseway.http")
SERVER_NAME: Final = "leaseway"
_OWN: Final = {"Server": SERVER_NAME}


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a connection may take for what costs its client nothing."""

    first_byte_s: float = 5
    headers_s: float = 10
    """From the first byte of a request to the end of its headers."""
    idle_s: float = 15
    """Between requests of one connection."""
    take_s: float = 60
    """Until something of what was sent has arrived: for a client that is there and takes nothing, or is gone without a word."""


class Call(msgspec.Struct, kw_only=True):
    """One request as a handler gets it."""

    request: web.BaseRequest
    id: RequestId
    """Ours, new for each request."""
    client_id: str
    """The client's own id if it stated a sound one."""
    path: str
    """The raw path, neither decoded nor taken from a Host header."""

    def id_headers(self) -> dict[str, str]:
        """Return the headers that name the request, and us, in its answer."""
        return {"x-request-id": self.client_id or self.id, "leaseway-request": self.id, "Server": SERVER_NAME}


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves one handler on one port."""

    def __init__(
        self,
        handler: Handler,
        *,
        connections_max: int,
        deadlines: Deadlines | None = None,
        served_by: str = "",
        hosts: Hosts | None = None,
    ) -> None:
        """Prepare a server that answers to the names of `hosts`; `served_by` names this process in answers that are its own."""
        self._handler, self._served_by, self._hosts = handler, served_by, hosts
        self._server = _Server(self._serve, connections_max, deadlines or Deadlines())
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port (the one that was free if `port` is 0).

        Raises:
            OSError: the port is taken or not ours to take.
        """
        runner = web.ServerRunner(self._server, shutdown_timeout=1)
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        address: tuple[str, int] = runner.addresses[0]
        return address[1]

    async def stop_listening(self) -> None:
        """Take no new connection; what is being served goes on."""
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()

    async def stop(self) -> None:
        """Close every connection, cancelling what is still being served. May be called twice, or before `start`."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        call = Call(
            request=request,
            id=new_request_id(),
            client_id=client_request_id(request.headers),
            path=request.rel_url.raw_path,
        )
        try:
            _check_host(request)
            if self._hosts is not None:
                self._hosts.check(request.headers)
            return await self._handler(call)
        except ApiError as error:
            return error.response({**call.id_headers(), "leaseway-served-by": self._served_by})


class _Server(web.Server):
    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        connections_max: int,
        deadlines: Deadlines,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self.connections_max, self.deadlines = connections_max, deadlines

    def __call__(self) -> RequestHandler:
        return _Connection(self, self.deadlines, loop=asyncio.get_running_loop())


class _Connection(RequestHandler):
    """One connection with deadlines for its first byte and for each request's headers."""

    __slots__ = ("_deadline", "_deadlines", "_headers_begun")

    def __init__(self, server: _Server, deadlines: Deadlines, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=deadlines.idle_s,
            access_log=None,  # type: ignore[arg-type]  # it is optional in all but the annotation
            max_headers=64,
            auto_decompress=False,
            lingering_time=2.0,
            logger=_LOG,
        )
        self._deadlines = deadlines
        self._deadline: asyncio.TimerHandle | None = None
        self._headers_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        server = self._manager
        assert isinstance(server, _Server)
        if len(server.connections) > server.connections_max:
            error = ApiError("too_many_connections", f"at most {server.connections_max} connections are served")
            assert isinstance(transport, asyncio.Transport)
            transport.write(_raw(error))
            self.force_close()
            return
        self._arm(self._deadlines.first_byte_s)
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it
        if option is not None:
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, option, int(self._deadlines.take_s * 1000)
            )

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # aiohttp's start() waits on `_waiter` while no request is whole
        idle = self._waiter is not None and not self._waiter.done()
        if not idle:
            self._disarm()
        elif not self._headers_begun:
            self._headers_begun = True
            self._arm(self._deadlines.headers_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer in our shape; a client's malformed request is no event for an operator, a fault of ours is."""
        del message  # the parser's words may quote the request
        if isinstance(exc, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            raise exc  # the client has left: there is nobody to be told, and nothing for an operator to see to
        if status >= 500:
            _LOG.error("handler_failed", exc_info=exc, extra={"path": request.rel_url.raw_path})
            if request.writer.output_size > 0:
                raise ConnectionError("the answer had begun")
            return ApiError("internal_error", "an error of the router's own", close=True).response(_OWN)
        return ApiError("bad_request", "malformed HTTP request", status=status, close=True).response(_OWN)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        _LOG.error("connection_failed", exc_info=kw.get("exc_info"), extra={"detail": str(args[0]) if args else ""})

    def _arm(self, after_s: float) -> None:
        self._disarm_timer()
        self._deadline = asyncio.get_running_loop().call_later(after_s, self.force_close)

    def _disarm(self) -> None:
        self._headers_begun = False
        self._disarm_timer()

    def _disarm_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _check_host(request: web.BaseRequest) -> None:
    stated = request.headers.get("Host")
    if stated is None and request.version < HttpVersion11:
        return  # as load balancers ask how we are
    if not host_is_sound(stated or ""):
        raise ApiError("bad_host", "Host: must be a name or address, and perhaps a port", close=True)


def _raw(error: ApiError) -> bytes:
    """Return an error as the bytes of a whole answer, for a connection that gets no handler."""
    body = error.body()
    head = "".join(f"{name}: {value}\r\n" for name, value in error.headers().items())
    return (
        f"HTTP/1.1 {error.status} Service Unavailable\r\n{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body

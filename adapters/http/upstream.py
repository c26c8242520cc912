"""Asks engines and other nodes over HTTP, and says for each failure whether the request may have run.

Effectful calls are POST, which aiohttp never sends again by itself (it does so with GET and PUT on a stale connection).
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver

from domain.errors import MayHaveRunError, NotConnectedError, NotStartedError

CONNECT_S: Final = 10.0
CONTINUE_S: Final = 5.0
_KEEPALIVE_S: Final = 1.0
"""Shorter than any engine's own (llama.cpp: 5 s), so that no request meets a connection that is being closed."""
_GET_BYTES_MAX: Final = 1024 * 1024
_PART_BYTES: Final = 64 * 1024
_ALIVE_AFTER_S, _ALIVE_EVERY_S, _ALIVE_TIMES = 30, 10, 6
"""Who may be silent for ever is asked by the kernel whether it is still there: a machine that is gone is noticed in 90 s."""


class Answer:
    """An answer whose head has come and whose body is on its way. Closing it cancels what makes it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """Wrap a response of aiohttp's client."""
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.content_type: str = response.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, until its end in order.

        Raises:
            MayHaveRunError: the connection was lost before the end.
        """
        try:
            async for part in self._response.content.iter_any():
                yield part
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise MayHaveRunError(f"the answer was cut: {type(error).__name__}") from None
        finally:
            # after the end in order this changes nothing: the connection is back in the pool
            self._response.close()

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body.

        Raises:
            MayHaveRunError: the connection was lost before the end, or the body is larger than the limit.
        """
        parts: list[bytes] = []
        size = 0
        async for part in self.chunks():
            size += len(part)
            if size > limit_bytes:
                raise MayHaveRunError(f"the answer has more than {limit_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Let go: a body that is still on its way is cancelled by closing its connection."""
        self._response.close()


class Parts(NamedTuple):
    """A body that comes in parts, `size_bytes` together."""

    size_bytes: int
    parts: AsyncIterator[bytes]


class Upstream:
    """Connections to other parties, at most `connections` of them; the surplus waits in order.

    Nothing is kept of a party to which no connection is open: parties may come and go, and change their addresses, for ever.
    """

    def __init__(
        self,
        *,
        connections: int,
        per_party: bool = False,
        connect_s: float = CONNECT_S,
        silent_s: float | None = None,
        keep_alive: bool = True,
    ) -> None:
        """Begin without a connection.

        `per_party`: each address may have `connections` of them, whatever the others have, so that a sick one slows no other.
        `silent_s`: the longest silence within an answer, its beginning included.
        """
        self._connections, self._per_party = 0 if per_party else connections, connections if per_party else 0
        self._keep_alive, self._connect_s = keep_alive, connect_s
        self._timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=connect_s, sock_read=silent_s)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, silent_s: float | None = None) -> Answer:
        """Send `body` once and return the answer's head. `silent_s`: its own longest silence instead of the one for all.

        Raises:
            NotConnectedError: nothing was sent.
            MayHaveRunError: no answer came, and what was sent may have run.
        """
        limit = self._timeout
        if silent_s is not None:
            limit = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=silent_s)
        try:
            response = await self._open().post(url, data=body, headers=headers, allow_redirects=False, timeout=limit)
        except _NEVER_SENT as error:
            raise NotConnectedError(f"not connected: {type(error).__name__}") from None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise MayHaveRunError(f"no answer: {type(error).__name__}") from None
        return Answer(response)

    async def post_when_asked(
        self,
        url: str,
        body: bytes | Parts,
        headers: Mapping[str, str],
        *,
        asked_for: Callable[[], None],
        continue_s: float = CONTINUE_S,
    ) -> Answer:
        """Send the head with `Expect: 100-continue`, and `body` only after the 100; `asked_for` is called in between.

        A body in parts is not touched before the 100 either.

        The connection is never used again after a final status instead of the 100: the other side may still wait for a body.
        Connecting may take half of `continue_s` at most, so that a way that is shut is told from a party that is slow.

        Raises:
            NotConnectedError: there was no connection.
            NotStartedError: the body was not sent: no 100 in time, or closed before the 100.
            MayHaveRunError: the body was sent, at least in part, and no answer came.
        """
        asked = asyncio.Event()

        async def on_continue() -> AsyncIterator[bytes]:
            # aiohttp pulls the first part only once the 100 is there
            asked.set()
            asked_for()
            if isinstance(body, bytes):
                yield body
                return
            async for part in body.parts:
                yield part

        framed = {**headers, "Content-Length": str(len(body) if isinstance(body, bytes) else body.size_bytes)}
        connect_s = min(self._connect_s, continue_s / 2)
        limit = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=self._timeout.sock_read)
        opening = asyncio.ensure_future(
            self._open().post(
                url, data=on_continue(), headers=framed, expect100=True, allow_redirects=False, timeout=limit
            )
        )
        answer: Answer | None = None
        try:
            await _first_of(opening, asked, continue_s)
            if not opening.done() and not asked.is_set():
                raise NotStartedError(f"no 100 within {continue_s} s")
            answer = Answer(await opening)
        except _NEVER_SENT as error:
            raise NotConnectedError(f"not connected: {type(error).__name__}") from None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            kind = MayHaveRunError if asked.is_set() else NotStartedError
            raise kind(f"no answer: {type(error).__name__}") from None
        finally:
            if answer is None:
                await _give_up(opening)
        return answer

    async def get(self, url: str, headers: Mapping[str, str], *, timeout_s: float) -> tuple[int, bytes]:
        """Return (status, body) of a harmless question; it may be asked twice.

        Raises:
            NotStartedError: nobody listens there.
            MayHaveRunError: no whole answer of reasonable size in time.
        """
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._open().get(url, headers=headers, timeout=limit, allow_redirects=False) as response:
                body = await response.content.read(_GET_BYTES_MAX)
                while part := await response.content.read(_PART_BYTES):
                    body += part
                    if len(body) > _GET_BYTES_MAX:
                        raise MayHaveRunError(f"the answer has more than {_GET_BYTES_MAX} bytes")
                return response.status, body
        except _NEVER_SENT as error:
            raise NotConnectedError(f"not connected: {type(error).__name__}") from None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise MayHaveRunError(f"no answer: {type(error).__name__}") from None

    async def close(self) -> None:
        """Close every connection. May be called twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            how: dict[str, Any] = {"keepalive_timeout": _KEEPALIVE_S} if self._keep_alive else {"force_close": True}
            if self._timeout.sock_read is None:
                how["socket_factory"] = _watched_socket
            how["resolver"] = _BoundedResolver(self._connect_s)
            connector = aiohttp.TCPConnector(limit=self._connections, limit_per_host=self._per_party, **how)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                # identity is asked for; an engine that compresses unasked is undone, and its header dropped
                headers={"Accept-Encoding": "identity", "User-Agent": "leaseway"},
            )
        return self._session


class _BoundedResolver(ThreadedResolver):
    """Gives up a name that takes too long: `sock_connect` does not cover the look-up."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await super().resolve(host, port, family)
        except TimeoutError:
            raise OSError(0, f"look-up of {host} took more than {self._timeout_s} s") from None


def _watched_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that breaks when the other machine is gone, and bears any silence of one that is there."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _ALIVE_AFTER_S),
        ("TCP_KEEPINTVL", _ALIVE_EVERY_S),
        ("TCP_KEEPCNT", _ALIVE_TIMES),
    ):
        if option := getattr(socket, name, None):  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


_NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


async def _first_of(opening: asyncio.Future[aiohttp.ClientResponse], asked: asyncio.Event, timeout_s: float) -> None:
    waiting = asyncio.ensure_future(asked.wait())
    either: set[asyncio.Future[Any]] = {opening, waiting}
    try:
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _give_up(opening: asyncio.Future[aiohttp.ClientResponse]) -> None:
    """Cancel a request that nobody waits for any more; its connection closes."""
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError, ConnectionError, TimeoutError):
        (await opening).close()

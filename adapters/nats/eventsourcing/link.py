"""A NATS connection that plain threads can use: it lives on an event loop of its own, in a thread of its own.

The eventsourcing library is synchronous throughout, nats-py is asyncio throughout; `NatsLink.call` is the one bridge.
"""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec
import nats.aio.client
import nats.errors
from eventsourcing.persistence import OperationalError

from adapters.keys import Credentials
from adapters.nats.accounts import inbox_prefix

CONNECT_S: Final = 5.0
REQUEST_S: Final = 10.0
_CLOSE_S: Final = 5.0
_PENDING_BYTES_MAX: Final = 256 * 1024 * 1024

_T = TypeVar("_T")


class NoAnswerError(OperationalError):
    """Nobody answered in time: what was asked is done, or not, or will be."""


class Incoming(msgspec.Struct, frozen=True):
    """One message as it came."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    body: bytes


class NatsLink:
    """One connection. `call`, `begin` and `close` are for any thread; coroutines run on the link's own loop."""

    def __init__(self, url: str, credentials: Credentials | None = None, *, connect_s: float = CONNECT_S) -> None:
        """Connect; without `credentials` as nobody in particular, for servers without accounts.

        Raises:
            OperationalError: no connection within `connect_s`, or the credentials are refused.
        """
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._replies: dict[str, asyncio.Future[Incoming]] = {}
        self._numbers = itertools.count(1)
        self._inbox = ""
        """What replies are sent to; empty until the connection stands."""
        self._trouble = ""
        """What the connection complained of last."""
        self._denied = asyncio.Event()
        self._client = nats.aio.client.Client()
        self._thread = threading.Thread(target=self._run, name="eventsourcing-nats", daemon=True)
        self._thread.start()
        try:
            self.call(self._open(credentials, connect_s))
        except BaseException:
            self.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _open(self, credentials: Credentials | None, connect_s: float) -> None:
        options: dict[str, Any] = {}
        if credentials is not None:
            options["nkeys_seed_str"] = credentials.nkey_seed
            options["inbox_prefix"] = inbox_prefix(credentials.name).encode()
        # Tried again and again until the time is up, since a server may be starting; but a refusal will not change.
        ways = {asyncio.ensure_future(self._connect(options)), asyncio.ensure_future(self._denied.wait())}
        await asyncio.wait(ways, timeout=connect_s, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if not self._inbox:
            raise OperationalError(f"bus {self.url}: no connection: {self._trouble or 'no answer'}")

    async def _connect(self, options: Mapping[str, Any]) -> None:
        while not self._inbox:
            with contextlib.suppress(OSError, nats.errors.Error):
                await self._client.connect(
                    self.url.split(","),
                    error_cb=self._on_error,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.2,
                    **options,
                )
                # A server that closes at once leaves a client that believes in its connection until it is used.
                inbox = self._client.new_inbox()
                await self._client.subscribe(f"{inbox}.*", cb=self._on_reply)
                await self._client.flush(1)
                self._inbox = inbox

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns, having run it on the link's loop."""
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Start `work` on the link's loop; cancelling the future cancels it."""
        if self._loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise OperationalError(f"bus {self.url}: the connection is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End connection and thread; may be called twice."""
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
            self.begin(self._shut()).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    async def _shut(self) -> None:
        await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # What follows runs on the link's loop.

    @property
    def max_payload_bytes(self) -> int:
        """What the server takes as one message, headers included."""
        limit: int = self._client.max_payload
        return limit

    def unique(self) -> str:
        """Return a name that nobody else uses, fit for a consumer or a batch."""
        return f"{self._inbox.rpartition('.')[2]}-{next(self._numbers)}"

    async def publish(
        self, subject: str, body: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one message; that it was stored is known only from an answer."""
        try:
            await self._client.publish(subject, body, reply=reply, headers=dict(headers) if headers else None)
        except (nats.errors.Error, OSError) as error:
            raise OperationalError(f"{subject}: cannot be sent: {said(error)}") from error

    async def request(
        self, subject: str, body: bytes = b"", *, headers: Mapping[str, str] | None = None, timeout_s: float = REQUEST_S
    ) -> Incoming:
        """Return the answer to one message.

        Raises:
            NoAnswerError: no answer in time.
            OperationalError: nobody listens on the subject, or the server refused it.
        """
        reply = f"{self._inbox}.{next(self._numbers)}"
        answer = self._replies[reply] = self._loop.create_future()
        try:
            await self.publish(subject, body, reply=reply, headers=headers)
            async with asyncio.timeout(timeout_s):
                message: Incoming = await answer
        except TimeoutError:
            raise NoAnswerError(f"{subject}: no answer within {timeout_s:g} s; it may be done or not") from None
        finally:
            del self._replies[reply]
        if message.headers.get("Status") == "503":
            raise OperationalError(f"{subject}: nobody listens there; is the stream made?")
        return message

    @contextlib.asynccontextmanager
    async def listening(self, take: Callable[[Incoming], None]) -> AsyncIterator[str]:
        """Yield an inbox; until the block ends, what is sent to `<inbox>.<anything>` goes to `take`."""

        async def on_message(message: Any) -> None:
            take(_incoming(message))

        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(f"{inbox}.*", cb=on_message, pending_bytes_limit=_PENDING_BYTES_MAX)
        try:
            yield inbox
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _on_reply(self, message: Any) -> None:
        answer = self._replies.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(_incoming(message))

    async def _on_error(self, error: Exception) -> None:
        if self._denied.is_set():
            return
        self._trouble = said(error)
        if "authorization" in self._trouble.lower():
            self._denied.set()
        # A refused publish is never answered; without this it would look like a slow server.
        if "permissions violation" in str(error).lower():
            for answer in self._replies.values():
                if not answer.done():
                    answer.set_exception(OperationalError(f"bus {self.url}: refused: {said(error)}"))


def said(error: BaseException) -> str:
    """Return what an error says, or its name if it says nothing."""
    return str(error) or type(error).__name__


def _incoming(message: Any) -> Incoming:
    return Incoming(message.subject, message.reply, message.headers or {}, message.data)

"""Gives an engine's or a node's answer to the one who asked: whole, or event by event, and never a cut one as a whole one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Final, Protocol

import msgspec
from aiohttp import web

from adapters.http.errors import ApiError
from adapters.http.headers import scrub, to_client
from adapters.http.rewrite import EventTooLargeError, StreamRewriter, Usage, answer_for_client, usage_in
from adapters.http.server import Call
from domain.errors import MayHaveRunError
from domain.ids import ModelId

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
EVENT_STREAM: Final = "text/event-stream"


class Source(Protocol):
    """An answer whose head has come (adapters.http.upstream.Answer, an engine's reply)."""

    status: int
    headers: Mapping[str, str]
    content_type: str

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; raise MayHaveRunError if it is cut."""
        ...

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body; raise MayHaveRunError if it is cut or too large."""
        ...

    def close(self) -> None:
        """Cancel what is still on its way."""
        ...


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a stream is, in seconds."""

    comment_s: float = 10.0
    """Silence after which its client gets a comment; proxies on the way cut after 60 s, and 15 s is promised."""
    stall_s: float = 60.0
    """Time for a client to take what was written; one that takes nothing would hold an engine's slot for ever."""


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was given whole."""

    status: int
    """500 if the engine ended its stream with an error event of its own."""
    usage: Usage


class ClientAnswer:
    """The answer to one request, from nothing sent to its end."""

    def __init__(self, call: Call, served_by: str, *, pace: Pace | None = None) -> None:
        """Begin with nothing sent; `served_by` is the node that answers unless another is named before."""
        self._call, self.served_by, self._pace = call, served_by, pace or Pace()
        self._stream: web.StreamResponse | None = None
        self._whole: web.Response | None = None
        self._beginning = asyncio.Lock()
        self._named = served_by
        self._loop = asyncio.get_running_loop()
        self._written_s = self._loop.time()
        self._writing = False
        self._comments = False
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self.extra: dict[str, str] = {}
        """Headers besides the usual ones."""
        self.sent = False
        """A byte of an answer (comments are none) was given to the client: it cannot be answered otherwise any more."""
        self._began_s = self._written_s
        self.first_byte_s = 0.0
        """How long after the beginning that was; 0 before it."""
        self.error: ApiError | None = None
        """What the client was told instead of an answer."""

    @property
    def begun(self) -> bool:
        """Tell whether the status is out: an error can only be an event from here on."""
        return self._stream is not None

    @property
    def status(self) -> int:
        """Return the status of the answer, in a stream that of the error that ended it; 0 while there is none."""
        if self.error is not None:
            return self.error.status
        return self._whole.status if self._whole is not None else 200 if self._stream is not None else 0

    def keep_alive(self) -> None:
        """Send a comment whenever the client has heard nothing for a while: for requests that asked for a stream."""
        self._comments = True
        self._arm(self._pace.comment_s)

    def result(self) -> web.StreamResponse:
        """Return the response for the server."""
        answer = self._stream if self._stream is not None else self._whole
        assert answer is not None, f"request {self._call.id}: nobody answered"
        return answer

    async def events(self, data: bytes) -> None:
        """Give whole events."""
        stream = await self._begin()
        self._note_first()
        if self.served_by != self._named:
            self._named = self.served_by
            data = b": leaseway-served-by %b\n\n" % self.served_by.encode() + data
        await self._write(stream, data)

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Give a whole answer; in a stream that has begun it becomes an event."""
        self._note_first()
        if self._stream is not None:
            await self.events(b"data: " + _one_line(body) + b"\n\n")
            if status < 400:
                await self.events(b"data: [DONE]\n\n")
            return
        self._whole = web.Response(status=status, body=body, headers={**headers, **self._own_headers()})

    async def fail(self, error: ApiError) -> None:
        """Tell an error instead of an answer; a stream ends with it as its last event, and its connection closes."""
        self.error = error
        if self._stream is None:
            self._whole = error.response(self._own_headers())
            return
        await self.events(error.event())

    def add_header(self, name: str, value: str) -> None:
        """Add a header to a whole answer that is not out yet; nothing happens if the answer is a stream."""
        if self._whole is not None:
            self._whole.headers[name] = value

    async def end(self) -> None:
        """End the answer in order."""
        self.stop()
        if self._stream is not None:
            await self._stream.write_eof()

    def cut(self) -> None:
        """Drop the connection, so that who reads sees that the answer is not whole."""
        self.stop()
        transport = self._call.request.transport
        if transport is not None:
            transport.abort()

    def stop(self) -> None:
        """Send no more comments. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._comment is not None:
            self._comment.cancel()

    def _note_first(self) -> None:
        if not self.sent:
            self.sent, self.first_byte_s = True, self._loop.time() - self._began_s

    def _own_headers(self) -> dict[str, str]:
        return {
            **self._call.id_headers(),
            "leaseway-served-by": self.served_by,
            "X-Content-Type-Options": "nosniff",
            **self.extra,
        }

    async def _begin(self) -> web.StreamResponse:
        if self._stream is not None and self._stream.prepared:
            return self._stream
        async with self._beginning:
            if self._stream is None:
                self._named = self.served_by
                headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
                stream = web.StreamResponse(headers={**headers, **self._own_headers()})
                # said in the head already: after an error event the connection must close, and nobody may count on it then
                stream.force_close()
                await stream.prepare(self._call.request)
                self._stream = stream
                if self._timer is None:
                    self._arm(self._pace.stall_s)
            return self._stream

    async def _write(self, stream: web.StreamResponse, data: bytes) -> None:
        self._written_s = self._loop.time()
        self._writing = True
        try:
            await stream.write(data)
        finally:
            self._writing = False

    def _arm(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(after_s, self._tick)

    def _tick(self) -> None:
        silent_s = self._loop.time() - self._written_s
        if self._writing and silent_s >= self._pace.stall_s:
            self.cut()
            return
        if self._comments and not self._writing and silent_s >= self._pace.comment_s:
            self._comment = self._loop.create_task(self._say_waiting())
            silent_s = 0.0
        patience_s = self._pace.stall_s if self._writing or not self._comments else self._pace.comment_s
        self._arm(max(patience_s - silent_s, patience_s / 10))

    async def _say_waiting(self) -> None:
        # events are written whole, so between two writes is always a border
        with contextlib.suppress(ConnectionError):
            await self._write(await self._begin(), b": waiting\n\n")


def _deaf() -> None:
    """Take no note."""


async def relay(
    source: Source,
    client: ClientAnswer,
    *,
    public: ModelId | None,
    addresses: Collection[str] = (),
    hide_usage: bool = False,
    heard: Callable[[], None] = _deaf,
) -> Relayed:
    """Give `source`'s answer to `client` with the model id `public`, and return what it was.

    `addresses` (`host:port`) are internal: they do not stand in the errors that are passed on. `hide_usage`: see StreamRewriter.
    `heard` is called for each part of a stream that comes.

    Raises:
        MayHaveRunError: the answer was cut, empty, or a stream without its terminator; the client got at most a part.
    """
    try:
        if source.content_type == EVENT_STREAM and source.status == 200:
            return await _relay_events(source, client, StreamRewriter(public, hide_usage=hide_usage), heard)
        body = await source.read(ANSWER_BYTES_MAX)
        if not body and source.status < 300:
            raise MayHaveRunError(f"the engine answered {source.status} and nothing else")
        usage = usage_in(body) or Usage()
        if source.status >= 400:
            body = scrub(body, addresses)
        if public is not None:
            body = answer_for_client(body, public)
        await client.whole(source.status, to_client(source.headers), body)
        return Relayed(status=source.status, usage=usage)
    finally:
        source.close()


async def _relay_events(
    source: Source, client: ClientAnswer, rewriter: StreamRewriter, heard: Callable[[], None]
) -> Relayed:
    try:
        async for part in source.chunks():
            heard()
            events = rewriter.feed(part)
            if events:
                await client.events(events)
    except EventTooLargeError as error:
        raise MayHaveRunError(str(error)) from None
    rest = rewriter.end()
    if rest:
        await client.events(rest)
    if not rewriter.done and not rewriter.failed:
        raise MayHaveRunError("the stream ended without its terminator")
    return Relayed(status=500 if rewriter.failed else source.status, usage=rewriter.usage)


def _one_line(body: bytes) -> bytes:
    """Return a JSON document without line breaks, fit for one `data` line."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(msgspec.json.decode(body))
    return msgspec.json.encode({"error": {"message": "the engine's answer is not JSON", "type": "server_error"}})

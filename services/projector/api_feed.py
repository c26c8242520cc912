"""`GET /v1/lending/events`: every event as it is stored, as server-sent events, from any place on.

A client reads as fast as it likes: more is read for it only as it takes what it got. One that takes nothing for a while is cut,
with a last event that says where to go on, so that it holds no place of another. All who follow live share one reader of the
streams (services.projector.live).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Final

import msgspec
from aiohttp import ClientConnectionError, web

from adapters.clickhouse.pages import BadQueryError
from adapters.http.errors import ApiError
from adapters.http.server import Call
from adapters.log.place_ids import PlaceId, lives_of, made_anew, parse_id
from adapters.log.public import Place
from domain.errors import BusError
from projections.feed import Wanted, fits, is_pattern
from services.projector.live import Entry, Live
from services.projector.parameters import CHECKS, Parameters, none_left
from services.projector.routes import Desk, Routes
from services.projector.since import place_of, since_of

PATH: Final = "/v1/lending/events"
CLIENTS_MAX: Final = 512
"""A browser's EventSource that is refused never comes back by itself: there is room for all who lost their connection at once."""
_PATTERNS_MAX: Final = 16
_GONE: Final = (ClientConnectionError, ConnectionError)
"""What a write says to whom there is nobody any more; the server's own cancelling comes a moment later."""
_START_S: Final = 10.0
"""How long the bus may take to say where to begin."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the feed is, in seconds."""

    silence_s: float = 15.0
    """After that a client gets a comment, and the place that it has reached."""
    stall_s: float = 10.0
    """Time for a client to take what was written."""
    flush_s: float = 5.0
    """Time for a client that is cut to take its last event."""
    linger_s: float = 5.0
    """After the last client has left, the streams are followed for so long: those who lost a connection come back."""


def add(routes: Routes, desk: Desk) -> None:
    """Add the path of the feed."""
    routes.add(PATH, LiveFeed(desk).answer)


class LiveFeed:
    """Serves the events to several clients."""

    def __init__(self, desk: Desk, pace: Pace | None = None) -> None:
        self._desk, self._pace = desk, pace or Pace()
        self._live = Live(desk.streams, desk.told, linger_s=self._pace.linger_s)
        self.clients = 0
        """That are being served now."""

    async def answer(self, call: Call, said: Parameters) -> web.StreamResponse:
        """Serve one client until it goes, is cut, or the bus fails."""
        last_id, since = call.request.headers.get("Last-Event-ID", ""), said.pop("since", "")
        wanted = take_wanted(said)
        none_left(said)
        if self.clients >= CLIENTS_MAX:
            raise ApiError("too_many_connections", f"{PATH}: at most {CLIENTS_MAX} clients are served")
        self.clients += 1
        try:
            async with AsyncExitStack() as stack:
                began = await self._begin(last_id, since, stack)
                return await self._serve(call, began, wanted)
        finally:
            self.clients -= 1

    async def _begin(self, last_id: str, since: str, stack: AsyncExitStack) -> PlaceId:
        """Be one of those who follow, and return the place to begin at; it says in which streams, unless it is an old id."""
        try:
            async with asyncio.timeout(_START_S):
                await stack.enter_async_context(self._live.joined())
                if (said := parse_id(last_id) or since_of(last_id or since).id) is not None:
                    return said
                return PlaceId(await place_of(self._desk.streams, self._desk.clock, last_id or since))
        except (BusError, TimeoutError) as error:
            raise ApiError("bus_away", str(error) or "the bus is silent", status=503, retry_after_s=2) from None

    async def _serve(self, call: Call, began: PlaceId, wanted: Wanted) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, **call.id_headers()})
        response.force_close()
        await response.prepare(call.request)
        created_ns = began.created_ns(self._live.created_ns)
        place = PlaceId(began.place, began.lives or lives_of(created_ns))
        try:
            await self._write(response, b"retry: 2000\nid: %b\n\n" % str(place).encode())
            async with aclosing(self._pieces(place, created_ns, wanted)) as pieces:
                async for reached, piece in pieces:
                    place = reached
                    await self._write(response, piece)
        except _StalledError:
            self._cut(call, place)
        except _GONE:  # it is gone: no fault of anybody's, however many go at once
            pass
        except BusError as error:
            with suppress(_StalledError, *_GONE):
                await self._write(response, _ending("bus_away", place, str(error)))
        return response

    async def _pieces(
        self, at: PlaceId, created_ns: tuple[int, ...], wanted: Wanted
    ) -> AsyncGenerator[tuple[PlaceId, bytes], None]:
        """Yield (place after it, bytes) of what is wanted, and of a sign of life when there was nothing for a while."""
        loop, silence_s = asyncio.get_running_loop(), self._pace.silence_s
        written_s = loop.time()
        place, lives = at.place, at.lives
        async with aclosing(self._live.follow(place, created_ns, silence_s=silence_s)) as batches:
            async for batch in batches:
                told = []
                for place, entry in batch:
                    if entry.missed is not None and entry.missed.created_ns:
                        created_ns = made_anew(created_ns, entry.missed)
                        lives = lives_of(created_ns)
                    told.append(_piece(place, lives, entry, wanted))
                piece = b"".join(told)
                if not piece and loop.time() - written_s >= silence_s:
                    piece = b": still here\nid: %b\n\n" % str(PlaceId(place, lives)).encode()
                if piece:
                    written_s = loop.time()
                    yield PlaceId(place, lives), piece

    async def _write(self, response: web.StreamResponse, piece: bytes) -> None:
        try:
            async with asyncio.timeout(self._pace.stall_s):
                await response.write(piece)
        except TimeoutError:
            raise _StalledError from None

    def _cut(self, call: Call, place: PlaceId) -> None:
        """Give a client that takes nothing its last event behind what it has not taken, and hang up in a while."""
        transport = call.request.transport
        if transport is None or transport.is_closing():
            return
        last = _ending("too_slow", place, f"nothing was taken for {self._pace.stall_s:g} s")
        transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
        transport.close()
        asyncio.get_running_loop().call_later(self._pace.flush_s, transport.abort)


class _StalledError(Exception):
    """The client takes nothing."""


_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Accel-Buffering": "no",
}


def take_wanted(said: Parameters) -> Wanted:
    """Take the filter from the parameters.

    Raises:
        BadQueryError: one breaks its rule.
    """
    names = {name: CHECKS[name](name, said.pop(name)) for name in ("owner", "helper", "model") if name in said}
    return Wanted(kinds=_patterns(said, "kind"), subjects=_patterns(said, "subject"), **names)


def _patterns(said: Parameters, name: str) -> tuple[str, ...]:
    text = said.pop(name, "")
    patterns = tuple(each.strip() for each in text.split(",")) if text else ()
    if len(patterns) > _PATTERNS_MAX or not all(is_pattern(each) for each in patterns):
        example = "lease.*" if name == "kind" else "lw.local.lease.>"
        rule = f"must be at most {_PATTERNS_MAX} patterns such as {example}, with commas between"
        raise BadQueryError(name, f"{name}: {rule}, got {text[:80]!r}")
    return patterns


def _piece(place: Place, lives: str, entry: Entry, wanted: Wanted) -> bytes:
    """Return what a client is told of one message, after which it is at `place`; nothing if it does not want it."""
    if (missed := entry.missed) is not None:
        said = {"stream": missed.stream, "after": missed.after, "first": missed.first, "anew": missed.created_ns > 0}
        return _event(PlaceId(place, lives), "leaseway.missed", msgspec.json.encode(said))
    event = entry.event
    return _event(PlaceId(place, lives), event.kind, event.body) if event is not None and fits(wanted, event) else b""


def _event(place: PlaceId, kind: str, data: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (str(place).encode(), kind.encode(), data)


def _ending(code: str, place: PlaceId, message: str) -> bytes:
    said: dict[str, Any] = {"code": code, "message": message, "resume": str(place)}
    return _event(place, "leaseway.cut", msgspec.json.encode(said))

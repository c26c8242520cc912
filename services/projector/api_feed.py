"""`GET /v1/lending/events`: every event as it is stored, as server-sent events, from any place on.

A client reads as fast as it likes: the streams are asked for more only as it takes what it got. One that takes nothing for a
while is cut, with a last event that says where to go on, so that it holds no place of another.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec
from aiohttp import web

from adapters.clickhouse.pages import BadQueryError
from adapters.http.errors import ApiError
from adapters.http.server import Call
from adapters.log.public import Came, Missed, Place, read_public
from domain.errors import BusError
from projections.feed import PublicEvent, Wanted, fits, is_pattern, public_event
from services.projector.parameters import CHECKS, Parameters, none_left
from services.projector.routes import Desk, Routes
from services.projector.since import place_of

PATH: Final = "/v1/lending/events"
CLIENTS_MAX: Final = 16
_PATTERNS_MAX: Final = 16
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


def add(routes: Routes, desk: Desk) -> None:
    """Add the path of the feed."""
    routes.add(PATH, LiveFeed(desk).answer)


class LiveFeed:
    """Serves the events to several clients."""

    def __init__(self, desk: Desk, pace: Pace | None = None) -> None:
        self._desk, self._pace = desk, pace or Pace()
        self.clients = 0
        """That are being served now."""

    async def answer(self, call: Call, said: Parameters) -> web.StreamResponse:
        """Serve one client until it goes, is cut, or the bus fails."""
        since = call.request.headers.get("Last-Event-ID", "") or said.pop("since", "")
        said.pop("since", None)
        wanted = take_wanted(said)
        none_left(said)
        if self.clients >= CLIENTS_MAX:
            raise ApiError("too_many_connections", f"{PATH}: at most {CLIENTS_MAX} clients are served")
        self.clients += 1
        try:
            place = await self._begin(since)
            return await self._serve(call, place, wanted)
        finally:
            self.clients -= 1

    async def _begin(self, since: str) -> Place:
        try:
            async with asyncio.timeout(_START_S):
                return await place_of(self._desk.streams, self._desk.clock, since)
        except (BusError, TimeoutError) as error:
            raise ApiError("bus_away", str(error) or "the bus is silent", status=503, retry_after_s=2) from None

    async def _serve(self, call: Call, place: Place, wanted: Wanted) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, **call.id_headers()})
        response.force_close()
        await response.prepare(call.request)
        try:
            await self._write(response, b"retry: 2000\nid: %b\n\n" % str(place).encode())
            async with aclosing(_pieces(self._desk, place, wanted, self._pace.silence_s)) as pieces:
                async for reached, piece in pieces:
                    place = reached
                    await self._write(response, piece)
        except _StalledError:
            self._cut(call, place)
        except BusError as error:
            with suppress(_StalledError):
                await self._write(response, _ending("bus_away", place, str(error)))
        return response

    async def _write(self, response: web.StreamResponse, piece: bytes) -> None:
        try:
            async with asyncio.timeout(self._pace.stall_s):
                await response.write(piece)
        except TimeoutError:
            raise _StalledError from None

    def _cut(self, call: Call, place: Place) -> None:
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


async def _pieces(
    desk: Desk, place: Place, wanted: Wanted, silence_s: float
) -> AsyncGenerator[tuple[Place, bytes], None]:
    """Yield (place after it, bytes) of each event that is wanted, and of a sign of life when there was none for a while."""
    loop = asyncio.get_running_loop()
    written_s = loop.time()
    async with aclosing(read_public(desk.streams, place, silence_s=silence_s)) as items:
        async for item in items:
            if item is not None:
                place = item.place
            piece = _piece(item, wanted)
            if not piece and loop.time() - written_s >= silence_s:
                piece = b": still here\nid: %b\n\n" % str(place).encode()
            if piece:
                written_s = loop.time()
                yield place, piece


def _piece(item: Came | Missed | None, wanted: Wanted) -> bytes:
    match item:
        case None:
            return b""
        case Missed():
            said = {"stream": item.stream, "after": item.after, "first": item.first}
            return _event(str(item.place), "leaseway.missed", msgspec.json.encode(said))
        case Came():
            event = public_event(item.message)
            return _shown(item.place, event) if event is not None and fits(wanted, event) else b""


def _shown(place: Place, event: PublicEvent) -> bytes:
    return _event(str(place), event.kind, event.body)


def _event(place: str, kind: str, data: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (place.encode(), kind.encode(), data)


def _ending(code: str, place: Place, message: str) -> bytes:
    said: dict[str, Any] = {"code": code, "message": message, "resume": str(place)}
    return _event(str(place), "leaseway.cut", msgspec.json.encode(said))

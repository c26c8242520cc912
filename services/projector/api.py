"""The read API: what is in ClickHouse and in the streams, for the command line and the console. Loopback by default, GET only."""

from typing import Final

from aiohttp import web

from adapters.http.server import Call
from domain.ports import Clock
from services.projector import api_archive, api_feed, api_projections, api_rows, api_telemetry, api_why
from services.projector.health import Health
from services.projector.projector import Projector
from services.projector.routes import Desk, Routes, json_answer
from services.projector.told import Told

_PARTS: Final = (
    api_archive.add,
    api_feed.add,
    api_projections.add,
    api_rows.add,
    api_telemetry.add,
    api_why.add,
)  # fmt: skip
"""Each adds its paths."""


class Api:
    """Answers the calls of an HTTP server."""

    def __init__(self, projector: Projector, health: Health, clock: Clock, told: Told | None = None) -> None:
        """Answer from `projector`; `told` says what outside tools may be told, without it no decision."""
        self._health = health
        self.routes = Routes()
        desk = Desk(projector, clock, told)
        for add in _PARTS:
            add(self.routes, desk)

    async def handle(self, call: Call) -> web.StreamResponse:
        """Return the answer to one call.

        Raises:
            ApiError: there is none, for the reason it says.
        """
        if call.path == "/health" and call.request.method == "GET":
            status, body = await self._health.answer()
            return json_answer(status, body, call)
        return await self.routes.answer(call)

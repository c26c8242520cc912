"""The console's paths: pages for people, and the operators' read API of all processes at one address."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from aiohttp import web

from adapters.http.errors import ApiError
from adapters.http.server import Call
from domain.errors import UnreachableError
from services.console.pages import Page, Pages
from services.console.peers import STATE, Peers
from services.console.render import STYLE, Renderer
from services.telemetry import answer
from services.telemetry.instruments import Instruments

HEALTH: Final = "/health"
STYLE_PATH: Final = "/style.css"
ADMIN: Final = ("/admin/v1/decisions", "/admin/v1/why/", "/admin/v1/at", "/admin/v1/telemetry/")
"""What the projector is asked for as it stands here; what ends in a slash with everything below it."""
_POLICY: Final = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""No page runs a script, loads anything from elsewhere, stands in a frame, or is kept by the browser."""


class Site:
    """Answers the calls of an HTTP server. GET alone: nothing can be changed here."""

    def __init__(self, peers: Peers, pages: Pages, renderer: Renderer, measured: Instruments) -> None:
        """Show `pages`; what is asked below /admin is asked of `peers`."""
        self._peers, self._renderer, self._measured = peers, renderer, measured
        self._pages: Mapping[str, Callable[[Mapping[str, str]], Awaitable[Page]]] = {
            "/": pages.cluster,
            "/decisions": pages.decisions,
            "/why": pages.why,
            "/at": pages.at,
            "/telemetry": pages.telemetry,
        }

    async def handle(self, call: Call) -> web.StreamResponse:
        """Return the answer to one call.

        Raises:
            ApiError: there is none, for the reason it says.
        """
        if call.request.method != "GET":
            raise ApiError("method_not_allowed", "only GET is served here: the console changes nothing")
        if call.path in self._pages:
            return await self._page(call)
        if call.path == STYLE_PATH:
            headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=300", **call.id_headers()}
            return web.Response(text=STYLE, content_type="text/css", headers=headers)
        if call.path == HEALTH:
            return _json(200, {"status": "ok", "version": answer.installed_version()}, call)
        if call.path == answer.PATH:
            return answer.answer(self._measured, call.request, call)
        return await self._admin(call)

    async def _page(self, call: Call) -> web.Response:
        query: dict[str, str] = {}
        for name, value in call.request.rel_url.query.items():
            if value.strip():  # a form sends its empty fields too
                query.setdefault(name, value.strip())
        page = await self._pages[call.path](query)
        text = self._renderer.text(page, path=call.path)
        outcome = "ok" if page.status < 400 else f"{page.status // 100}xx"
        self._measured.add("leaseway_console_pages_total", page.template, outcome)
        headers = {**_PAGE_HEADERS, **call.id_headers()}
        return web.Response(status=page.status, text=text, content_type="text/html", charset="utf-8", headers=headers)

    async def _admin(self, call: Call) -> web.Response:
        query = _once(call)
        try:
            if call.path == STATE:
                return _json(200, await self._peers.state(), call)
            if any(call.path == path or (path.endswith("/") and _is_below(path, call.path)) for path in ADMIN):
                status, said = await self._peers.history(call.path, query)
                return _json(status, said, call)
        except UnreachableError as error:
            raise ApiError("unreachable", str(error), status=503) from None
        served = ", ".join((*self._pages, HEALTH, answer.PATH, STATE, *ADMIN))
        raise ApiError("not_found", f"served are {served}")


def _once(call: Call) -> dict[str, str]:
    """Return what is asked, by name.

    Raises:
        ApiError: something is said twice.
    """
    asked: dict[str, str] = {}
    for name, value in call.request.rel_url.query.items():
        if name in asked:
            raise ApiError("bad_query", f"{name[:80]}: must be given once", param=name[:80], status=400)
        asked[name] = value
    return asked


def _is_below(above: str, path: str) -> bool:
    """Tell whether `path` is one below `above`, and leads nowhere else: a client would take its dots for steps up."""
    return path.startswith(above) and not {".", ".."} & set(unquote(path).split("/"))


def _json(status: int, body: Any, call: Call) -> web.Response:
    headers = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", **call.id_headers()}
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)

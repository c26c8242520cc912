"""The read API: what is in ClickHouse, for the command line and the console. Loopback by default, GET only, JSON."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from adapters.clickhouse import folds, queries
from adapters.clickhouse.pages import PAGE_ROWS_MAX, BadQueryError
from adapters.clickhouse.store import Store
from adapters.http.errors import ApiError
from adapters.http.server import Call
from domain.errors import BadIdError, StoreAwayError, StoreError
from domain.ids import model_id, node_id, request_id
from domain.ports import Clock
from domain.subjects import CONTROL, EVENTS, LEDGER
from projections import decision_log, health, loads
from projections.folds import FOLDED_BY
from projections.tables import column_names
from services.projector.health import Health
from services.projector.projector import Projector
from services.projector.threads import in_thread

_ROWS: Final = 100
_WINDOW_S, _WINDOW_S_MAX = 3600, 3650 * 86400
_NS_MAX: Final = (1 << 63) - 1
_READERS: Final = 2
_SUBJECT: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_WORD: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_HEX: Final = re.compile(r"[0-9a-f-]{1,64}")

Parameters = dict[str, str]


class Api:
    """Answers the calls of an HTTP server."""

    def __init__(self, projector: Projector, health: Health, clock: Clock) -> None:
        self._projector, self._health, self._clock = projector, health, clock
        self._reading = asyncio.Semaphore(_READERS)
        self._routes: dict[str, Callable[[Parameters], Awaitable[dict[str, Any]]]] = {
            "/v1/decisions": self._decisions,
            "/v1/requests": self._requests,
            "/v1/loads": self._loads,
            "/v1/health": self._health_log,
            "/v1/events": self._events,
            "/v1/stats": self._stats,
        }

    async def handle(self, call: Call) -> web.Response:
        """Return the answer to one call.

        Raises:
            ApiError: there is none, for the reason it says.
        """
        if call.request.method != "GET":
            raise ApiError("method_not_allowed", "only GET is served here")
        if call.path == "/health":
            status, body = await self._health.answer()
            return _json(status, body, call)
        route = self._routes.get(call.path)
        if route is None:
            raise ApiError("not_found", f"served are /health, {', '.join(self._routes)}")
        try:
            return _json(200, await route(_parameters(call)), call)
        except (BadQueryError, BadIdError) as error:
            param = error.param if isinstance(error, BadQueryError) else error.kind
            raise ApiError("bad_query", str(error), param=param, status=400) from None
        except StoreAwayError as error:
            raise ApiError("clickhouse_away", str(error), status=503, retry_after_s=2) from None
        except StoreError as error:
            raise ApiError("clickhouse_refused", str(error), status=503, retry_after_s=5) from None

    async def _decisions(self, said: Parameters) -> dict[str, Any]:
        if _switch(said, "folded"):
            return await self._folded(said)
        return await self._rows("decisions", queries.decisions, said, queries.DECISION_FILTERS)

    async def _folded(self, said: Parameters) -> dict[str, Any]:
        """Return the newest runs of rows that say the same; they have no cursor, since the newest one may grow."""
        asked = _asked(said, queries.DECISION_FILTERS, decision_log.KINDS)
        if asked.after is not None:
            raise BadQueryError("after", "after: folded rows are the newest ones only")
        _none_left(said)
        rows = await self._ask(folds.folded, column_names("decisions"), FOLDED_BY, asked)
        return {"decisions": [_shown(row) for row in rows], "next": ""}

    async def _requests(self, said: Parameters) -> dict[str, Any]:
        return await self._rows("requests", queries.requests, said, queries.REQUEST_FILTERS)

    async def _loads(self, said: Parameters) -> dict[str, Any]:
        return await self._rows("loads", queries.loads, said, queries.LOAD_FILTERS, kinds=loads.KINDS)

    async def _health_log(self, said: Parameters) -> dict[str, Any]:
        return await self._rows("health", queries.health, said, queries.HEALTH_FILTERS, kinds=health.KINDS)

    async def _rows(
        self,
        table: str,
        question: Callable[..., Any],
        said: Parameters,
        names: tuple[str, ...],
        *,
        kinds: Mapping[str, str] = decision_log.KINDS,
    ) -> dict[str, Any]:
        """Return a page of a table; `kinds` are those that its filter `kind` may name."""
        asked = _asked(said, names, kinds)
        _none_left(said)
        rows, cursor = await self._ask(question, column_names(table), asked)
        return {table: [_shown(row) for row in rows], "next": cursor}

    async def _events(self, said: Parameters) -> dict[str, Any]:
        stream = said.pop("stream", EVENTS)
        if stream not in {EVENTS, CONTROL, LEDGER}:
            raise BadQueryError("stream", f"stream: must be {EVENTS}, {CONTROL} or {LEDGER}, got {stream[:80]!r}")
        subject = said.pop("subject", "")
        if subject and not _SUBJECT.fullmatch(subject):
            raise BadQueryError("subject", f"subject: must be the beginning of a subject, got {subject[:80]!r}")
        bodies = _switch(said, "bodies")
        asked = _asked(said, queries.EVENT_FILTERS, {})
        _none_left(said)
        rows, cursor = await self._ask(
            queries.events, column_names("events"), asked, stream=stream, subject=subject, bodies=bodies
        )
        return {"events": [_shown(row) for row in rows], "next": cursor}

    async def _stats(self, said: Parameters) -> dict[str, Any]:
        window_s = _number(said, "window_s", _WINDOW_S, _WINDOW_S_MAX)
        _none_left(said)
        now_us = self._clock.wall_us()
        since_ns = max(0, now_us - window_s * 1_000_000) * 1000
        counted: dict[str, Any] = await self._ask(queries.stats, since_ns=since_ns)
        return {"window_s": window_s, **counted}

    async def _ask(self, question: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        store: Store | None = self._projector.store
        if store is None:
            why = self._projector.away or "ClickHouse is being opened"
            raise ApiError("starting", why, status=503, retry_after_s=1)
        async with self._reading:
            return await in_thread(question, store, *args, **kwargs)


def _parameters(call: Call) -> Parameters:
    said: Parameters = {}
    for name, value in call.request.rel_url.query.items():
        if name in said:
            raise BadQueryError(name[:80], f"{name[:80]}: must be given once")
        said[name] = value
    return said


def _asked(said: Parameters, names: tuple[str, ...], kinds: Mapping[str, str]) -> queries.Asked:
    """Take which rows are asked for from the parameters; `names` are the columns to filter by."""
    checks = _CHECKS | {"kind": _one_of(tuple(kinds))}
    return queries.Asked(
        filters={name: checks[name](name, said.pop(name)) for name in names if name in said},
        limit=_number(said, "limit", _ROWS, PAGE_ROWS_MAX),
        after=said.pop("after", None),
        since_ns=_number(said, "since_ns", 0, _NS_MAX, least=0),
        until_ns=_number(said, "until_ns", 0, _NS_MAX, least=0),
    )


def _number(said: Parameters, name: str, default: int, maximum: int, *, least: int = 1) -> int:
    text = said.pop(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= maximum):
        raise BadQueryError(name, f"{name}: must be a whole number from {least} to {maximum}, got {text[:80]!r}")
    return int(text)


def _switch(said: Parameters, name: str) -> bool:
    text = said.pop(name, "false")
    if text not in {"true", "false"}:
        raise BadQueryError(name, f"{name}: must be true or false, got {text[:80]!r}")
    return text == "true"


def _none_left(said: Mapping[str, str]) -> None:
    if said:
        name = min(said)[:80]
        raise BadQueryError(name, f"{name}: is no parameter of this query")


def _node(name: str, text: str) -> str:
    try:
        return node_id(text)
    except BadIdError as error:
        raise BadQueryError(name, str(error)) from None


def _pattern(pattern: re.Pattern[str]) -> Callable[[str, str], str]:
    def check(name: str, text: str) -> str:
        if not pattern.fullmatch(text):
            raise BadQueryError(name, f"{name}: must match {pattern.pattern}, got {text[:80]!r}")
        return text

    return check


def _one_of(words: tuple[str, ...]) -> Callable[[str, str], str]:
    def check(name: str, text: str) -> str:
        if text not in words:
            raise BadQueryError(name, f"{name}: must be one of {', '.join(words)}; got {text[:80]!r}")
        return text

    return check


_CHECKS: Final[dict[str, Callable[[str, str], str]]] = {
    "owner": _node,
    "helper": _node,
    "producer": _node,
    "node": _node,
    "side": _one_of(("master", "owner", "helper")),
    "reason": _pattern(_WORD),
    "outcome": _pattern(_WORD),
    "code": _pattern(_WORD),
    "cause": _pattern(_WORD),
    "event": _pattern(_WORD),
    "link": _pattern(_HEX),
    "lease": _pattern(_HEX),
    "request": lambda _, text: request_id(text),
    "model": lambda _, text: model_id(text),
}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it: the stamp for people too (`at_ns` is beyond what JavaScript holds exactly), bytes as text."""
    at_ns = row.pop("at_ns")
    whole_s, rest_ns = divmod(at_ns, 1_000_000_000)
    at = datetime.fromtimestamp(whole_s, UTC).replace(microsecond=rest_ns // 1000)
    shown = {"at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"), "at_ns": at_ns}
    for name, value in row.items():
        if isinstance(value, bytes):
            shown |= _text_of(name, value)
        else:
            shown[name] = value
    return shown


def _text_of(name: str, value: bytes) -> dict[str, Any]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": value}


def _json(status: int, body: dict[str, Any], call: Call) -> web.Response:
    headers = {"Content-Type": "application/json", **call.id_headers()}
    if status == 503:
        headers["Retry-After"] = "1"
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)

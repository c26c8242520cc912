"""The paths of the read API, and what all their answers have in common.

A part of the API is a module `api_<name>.py` with one function `add(routes, desk)`, named in `api.py`:

    def add(routes: Routes, desk: Desk) -> None:
        async def why(call: Call, said: Parameters) -> Any: ...   # a JSON body, or a web.StreamResponse of its own
        routes.add("/admin/v1/why/", why)                         # ends in "/": everything below it
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from adapters.clickhouse.pages import BadQueryError
from adapters.clickhouse.store import Store
from adapters.http.errors import ApiError
from adapters.http.server import Call
from domain.errors import BadIdError, StoreAwayError, StoreError
from domain.ports import Clock, Stream
from services.projector.now import BusTime
from services.projector.parameters import Parameters, parameters_of
from services.projector.projector import Projector
from services.projector.threads import asking
from services.projector.told import Told

READERS: Final = 2
"""Questions that run at once."""

Answer = Callable[[Call, Parameters], Awaitable[Any]]
"""Returns what becomes the JSON body, or the whole answer (a `web.StreamResponse`)."""


class Desk:
    """What answers are made of: the tables, the streams, the time."""

    def __init__(self, projector: Projector, clock: Clock, told: Told | None = None) -> None:
        """Answer from `projector`; `told` says what outside tools may be told, without it no decision."""
        self._projector, self.clock = projector, clock
        self.told = told or Told()
        self._reading = asyncio.Semaphore(READERS)
        self._time = BusTime(projector.streams, clock)

    async def now_ns(self) -> int:
        """Return the time by the clock that stamps the messages, in nanoseconds since the epoch."""
        return await self._time.now_ns()

    @property
    def projector(self) -> Projector:
        """Return the projector whose tables are read."""
        return self._projector

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Return LW_EVENTS, LW_CONTROL and LW_LEDGER by name."""
        return self._projector.streams

    async def ask(self, question: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """Return `question(store, ...)`, which blocks, from a thread; at most two at once.

        Raises:
            ApiError: ClickHouse is not open yet.
            StoreError: it refused the query, or is not there.
        """
        store = self.opened()
        async with self._reading:
            return await asking(question, store, *args, **kwargs)

    def opened(self) -> Store:
        """Return the store.

        Raises:
            ApiError: it is not open yet.
        """
        store: Store | None = self._projector.store
        if store is None:
            why = self._projector.away or "ClickHouse is being opened"
            raise ApiError("starting", why, status=503, retry_after_s=1)
        return store


class Routes:
    """Which path is answered by what."""

    def __init__(self) -> None:
        self._paths: dict[str, Answer] = {}
        self._posts: dict[str, Answer] = {}

    def add(self, path: str, answer: Answer, *, method: str = "GET") -> None:
        """Let `answer` answer GET (or POST) of `path`, or GET of everything below it if it ends in a slash."""
        paths = self._posts if method == "POST" else self._paths
        if path in paths:
            raise ValueError(f"path {path}: must have one answer, it has two")
        paths[path] = answer

    def paths(self) -> tuple[str, ...]:
        """Return all paths, in the order in which they were added."""
        return tuple(self._paths)

    async def answer(self, call: Call) -> web.StreamResponse:
        """Return the answer to one call.

        Raises:
            ApiError: there is none, for the reason it says.
        """
        if call.request.method == "POST" and call.path in self._posts:
            answer: Answer | None = self._posts[call.path]
        elif call.request.method != "GET":
            raise ApiError("method_not_allowed", f"only GET is served here, and POST of {', '.join(self._posts)}")
        else:
            answer = self._paths.get(call.path) or self._above(call.path)
        if answer is None:
            raise ApiError("not_found", f"served are /health, {', '.join(self._paths)}")
        try:
            body = await answer(call, parameters_of(call))
        except (BadQueryError, BadIdError) as error:
            param = error.param if isinstance(error, BadQueryError) else error.kind
            raise ApiError("bad_query", str(error), param=param, status=400) from None
        except StoreAwayError as error:
            raise ApiError("clickhouse_away", str(error), status=503, retry_after_s=2) from None
        except StoreError as error:
            raise ApiError("clickhouse_refused", str(error), status=503, retry_after_s=5) from None
        return body if isinstance(body, web.StreamResponse) else json_answer(200, body, call)

    def _above(self, path: str) -> Answer | None:
        """Return what answers everything below the longest of the paths that `path` begins with."""
        above = [added for added in self._paths if added.endswith("/") and path.startswith(added)]
        return self._paths[max(above, key=len)] if above else None


def json_answer(status: int, body: object, call: Call) -> web.Response:
    """Return `body` as JSON."""
    headers = {"Content-Type": "application/json", **call.id_headers()}
    if status == 503:
        headers["Retry-After"] = "1"
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)

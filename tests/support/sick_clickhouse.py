"""A ClickHouse that falls ill and gets well: a real one behind a door that tells it, with each statement, what it suffers from.

    async with sick_clickhouse(server.dsn) as door:
        open_store(door.dsn)
        door.suffers(Sickness(settings={"readonly": "1"}))
        door.is_well()

The refusals are the engine's own: settings make it find its disk too full, its parts too many, its memory too little.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web


class Sickness(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong."""

    settings: dict[str, str] = {}
    """Are said with each statement."""
    writes_only: bool = False
    """Questions are answered as if nothing were wrong."""
    user: str = ""
    """Says that it is this one, with a password that is wrong."""
    database: str = ""
    """Asks in this database in place of the one that is meant."""
    delay_s: float = 0.0
    """Answers so much later."""
    instead: tuple[int, bytes] | None = None
    """(Status, body) of what answers in its place."""
    cut_at: int = -1
    """Hangs up after so many bytes of an answer."""


WELL = Sickness()


class Door:
    """Stands before a ClickHouse."""

    def __init__(self, dsn: str, client: aiohttp.ClientSession) -> None:
        self._behind, self._client = dsn, client
        self.sickness, self._changed = WELL, asyncio.Event()
        self.dsn = ""
        self.refused = 0
        """Statements that were not answered with 200 since it fell ill."""

    def suffers(self, sickness: Sickness) -> None:
        self.sickness, self.refused = sickness, 0
        self._changed.set()
        self._changed = asyncio.Event()

    def is_well(self) -> None:
        self.suffers(WELL)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        sickness = self.sickness
        if sickness.writes_only and "insert_deduplication_token" not in request.query:
            sickness = WELL
        if sickness.delay_s:  # whoever waits when it gets well waits no longer
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), sickness.delay_s)
        if sickness.instead is not None:
            self.refused += 1
            status, said = sickness.instead
            return web.Response(status=status, body=said, headers={"Content-Type": "text/html"})
        return await self._passed_on(request, body, sickness)

    async def _passed_on(self, request: web.Request, body: bytes, sickness: Sickness) -> web.StreamResponse:
        query = {**request.query, **sickness.settings}
        if sickness.database and "database" in query:
            query["database"] = sickness.database
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        if sickness.user:
            headers["Authorization"] = aiohttp.encode_basic_auth(sickness.user, "wrong")
        async with self._client.request(
            request.method, self._behind, params=query, data=body, headers=headers, auto_decompress=False
        ) as behind:
            content = await behind.read()
            self.refused += behind.status != 200
            told = {name: value for name, value in behind.headers.items() if name not in _HOP}
            if sickness.cut_at < 0:
                return web.Response(status=behind.status, body=content, headers=told)
        response = web.StreamResponse(status=200, headers={**told, "Content-Length": str(len(content) + 1)})
        await response.prepare(request)
        await response.write(content[: sickness.cut_at])
        self.refused += 1
        assert request.transport is not None
        request.transport.close()
        return response


_HOP = frozenset({"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive"})


@contextlib.asynccontextmanager
async def sick_clickhouse(dsn: str) -> AsyncIterator[Door]:
    """Yield the door before the ClickHouse at `dsn`; nothing is wrong yet."""
    parts = urlsplit(dsn)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        door = Door(f"http://{parts.hostname}:{parts.port}/", client)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{any:.*}", door.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        door.dsn = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            yield door
        finally:
            door.is_well()
            await runner.cleanup()

"""A console in this process, and small HTTP servers that answer it as masters, projectors and gateways do."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from services.config import Config, UrlsConfig
from services.console import main

NOBODY = "http://127.0.0.1:9"
"""Where nothing listens."""


class Peer:
    """Answers by path, and keeps what it was asked. As long as `open` is not set, it takes questions and answers none."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        """Answer with `answers`: path -> JSON, or (status, JSON), of which 0 hangs up; 404 to everything else."""
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        await self.open.wait()
        said = self.answers.get(request.path, (404, {"error": {"code": "not_found", "message": "not served"}}))
        status, body = said if isinstance(said, tuple) else (200, said)
        if status == 0 and request.transport is not None:
            request.transport.close()
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[Peer]:
    """Let `peer` listen for the length of the block."""
    app = web.Application()
    app.router.add_get("/{path:.*}", peer.answer)
    async with TestServer(app) as server:
        peer.url = str(server.make_url("")).rstrip("/")
        yield peer
        peer.open.set()


@asynccontextmanager
async def console(
    data: Path, *, master: str = NOBODY, projector: str = NOBODY, gateway: str = NOBODY
) -> AsyncIterator[str]:
    """Run a console that asks these for the length of the block; yield where it listens."""
    urls = UrlsConfig(master=master, projector=projector, gateway=gateway)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    running = asyncio.create_task(main.run(Config(data=data, urls=urls), ready.set_result, stop))
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield ready.result()
    finally:
        stop.set()
        await running


def well(**more: Any) -> dict[str, Any]:
    """Return what a master that decides says of itself."""
    return {"status": "active", "doubt": "", "feed": "", **more}


def state(**more: Any) -> dict[str, Any]:
    """Return the state of a master without nodes."""
    empty: dict[str, Any] = {name: [] for name in ("nodes", "links", "leases", "breakers")}
    of_it = {"generation": "00010000", "version": 1, "term": 1, "policy": "p", "mode": "active", "safe_mode": False}
    return {**of_it, "doubt": "", "now_us": 0, **empty, **more}

"""Somebody's endpoint, and the webhooks that post to it."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from services.config import WebhookConfig
from services.projector.webhooks import Pace, Webhooks
from tests.support.public import Public

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
QUICK = Pace(first_s=0.02, most_s=0.1, note_s=0.05)


class Endpoint:
    """Somebody's HTTP server: takes events, or does as it is told."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.attempts: list[str] = []
        self.answers: list[web.Response] = []
        """What the next posts get instead of 200."""
        self.forged = 0
        self.silent = False
        self.mute_at = 0
        """It says nothing of the event that makes so many."""
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body, headers = await request.read(), request.headers
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(base64.b64decode(SECRET[6:]), signed, hashlib.sha256).digest()
        self.forged += headers["webhook-signature"] != "v1," + base64.b64encode(digest).decode()
        self.attempts.append(headers["webhook-id"])
        if self.silent:
            await asyncio.Event().wait()
        if self.answers:
            return self.answers.pop(0)
        self.taken.append(json.loads(body))
        self.ids.append(headers["webhook-id"])
        if len(self.taken) == self.mute_at:
            await asyncio.Event().wait()
        return web.Response(status=204)

    def has(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.taken) >= count

    def kinds(self) -> list[str]:
        return [each["type"] for each in self.taken]


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[Endpoint]:
    """Serve an endpoint for the length of the block, at a free port unless one is given."""
    endpoint = Endpoint()
    application = web.Application()
    application.router.add_post("/{rest:.*}", endpoint.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


def config(url: str, **more: Any) -> WebhookConfig:
    return WebhookConfig(**{"name": "tickets", "url": url, "secret": SECRET, "since": "0", **more})


@asynccontextmanager
async def posting(public: Public, data: Path, *configs: WebhookConfig, pace: Pace = QUICK) -> AsyncIterator[Webhooks]:
    hooks = Webhooks(configs, public.supply, data, pace)
    task = asyncio.create_task(hooks.run())
    try:
        yield hooks
    finally:
        task.cancel()
        await asyncio.wait({task})


def stated(hooks: Webhooks, name: str = "tickets") -> dict[str, Any]:
    return next(each for each in hooks.shown() if each["name"] == name)

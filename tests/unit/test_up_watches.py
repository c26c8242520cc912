"""`leaseway up` says when safe mode begins and when it ends, also long after everything has started."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.cli.up import watch_doubt
from tests.support.waiting import until


async def test_safe_mode_that_begins_later_is_said_on_the_console_once_and_its_end_too(
    capsys: pytest.CaptureFixture[str],
):
    health, told = {"status": "active", "doubt": ""}, [""]
    asked = 0

    async def answer(_: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response(health, status=200 if health["status"] == "active" else 503)

    def said(text: str) -> bool:
        told[0] += capsys.readouterr().err
        return text in told[0]

    app, stop = web.Application(), asyncio.Event()
    app.router.add_get("/health", answer)
    async with TestServer(app) as server:
        watching = asyncio.create_task(watch_doubt(str(server.make_url("")).rstrip("/"), "", stop, every_s=0.01))
        await until("it looks", lambda: asked > 2)
        assert not said("safe mode")
        health.update(status="safe_mode", doubt="ledger: it is empty")
        await until("it says so", lambda: said("stored history is in doubt: ledger: it is empty"))
        assert said("SAFE MODE")
        health.update(status="starting")
        begun = asked
        await until("it looks again", lambda: asked > begun + 2)
        health.update(status="safe_mode")
        await until("it looks again", lambda: asked > begun + 5)
        health.update(status="active", doubt="")
        await until("it says so", lambda: said("has left safe mode"))
        stop.set()
        await watching
    assert told[0].count("SAFE MODE") == 1


async def test_who_is_told_to_stop_asks_nobody_any_more():
    """A master that does not answer would hold up the end by as long as it is waited for."""
    asked, stop = 0, asyncio.Event()

    async def answer(_: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/health", answer)
    async with TestServer(app) as server:
        watching = asyncio.create_task(watch_doubt(str(server.make_url("")).rstrip("/"), "", stop, every_s=600))
        await asyncio.sleep(0)
        stop.set()
        await watching
    assert asked == 0

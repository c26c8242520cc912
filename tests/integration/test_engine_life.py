"""One engine's life at its edges: what an engine that behaves never shows."""

import asyncio

import pytest

from adapters.engines.openai import HEALTH_S
from services.config import Limits, NodeModel
from services.node.engine_life import EngineLife

pytestmark = pytest.mark.real


async def test_an_engine_that_takes_connections_and_says_nothing_is_given_up_when_patience_ends():
    gone = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        life = EngineLife(NodeModel(id="m", url=url), Limits(), connections=1, busy=lambda: False)
        async with asyncio.timeout(2 * HEALTH_S + 1):
            assert (await life.start(patience_s=1)).startswith("not ready within 1 s")
        gone.set()
        await life.close()

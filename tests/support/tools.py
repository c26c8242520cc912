"""Outside tools on a provisioned bus: what they may do, tried with plain nats-py."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from adapters.nats.outside import MIRRORED
from adapters.nats.provision import administer, provision_tools
from tests.support.nats import CLUSTER, ServerUnderTest

API = "$JS.mirror.API"


async def enrol(server: ServerUnderTest, *tools: str) -> None:
    """Enrol `tools` on the running bus."""
    server.provisioned = await provision_tools(server.data, server.url, CLUSTER, added=tools)


async def take(client: Client, stream: str, name: str, count: int) -> list[Msg]:
    """Pull `count` messages of a tool's consumer, acknowledge them and return them."""
    bound = await client.jetstream(domain="mirror").pull_subscribe_bind(durable=name, stream=stream)
    messages: list[Msg] = []
    while len(messages) < count:
        for message in await bound.fetch(min(count - len(messages), 500), timeout=5):
            await message.ack()
            messages.append(message)
    await bound.unsubscribe()
    return messages


async def ask(client: Client, what: str, body: object = None) -> dict[str, Any]:
    """Return the answer of the mirrors' API."""
    data = b"" if body is None else json.dumps(body).encode()
    return dict(json.loads((await client.request(f"{API}.{what}", data, timeout=5)).data))


@asynccontextmanager
async def keeper(server: ServerUnderTest) -> AsyncIterator[Client]:
    """Yield the one who may look at the mirrors themselves."""
    async with administer(server.data, server.url, "mirror") as client:
        yield client


async def mirrors(server: ServerUnderTest) -> dict[str, int]:
    """Return how many messages each mirror holds; -1 if it is not there."""
    held = {}
    async with keeper(server) as client:
        for stream in MIRRORED:
            info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=5)).data)
            held[stream] = info["state"]["messages"] if "state" in info else -1
    return held

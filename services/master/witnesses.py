"""Whom a master asks, before it decides anything, for the newest commit that they have seen."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from domain.ports import Witnessed

LOG = logging.getLogger("leaseway.master")
WAIT_S = 5.0

AskWitness = Callable[[], Awaitable[Witnessed | None]]


class _Health(msgspec.Struct):
    witness: Witnessed | None = None


def clickhouse_at(projector_url: str) -> AskWitness:
    """Return how to ask ClickHouse, through the projector that owns it, for the newest commit that it holds.

    No answer within five seconds, or none that says, is no witness: the archive may be away, and lending does not wait for it.
    """

    async def ask() -> Witnessed | None:
        try:
            async with (
                asyncio.timeout(WAIT_S),
                aiohttp.ClientSession() as session,
                session.get(f"{projector_url}/health") as answer,
            ):
                return msgspec.json.decode(await answer.read(), type=_Health).witness
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, OSError) as error:
            LOG.info("clickhouse_no_witness", extra={"why": str(error) or type(error).__name__})
            return None

    return ask

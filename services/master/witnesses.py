"""Whom a master asks, before it decides anything, for the newest commit that they have seen and for what it has signed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import aiohttp
import msgspec

from adapters.log.checkpoints import Kept
from adapters.log.generations import GENERATION_CHARS_MAX
from domain.events import Checkpoint
from domain.ids import Generation
from domain.ports import Witnessed

LOG = logging.getLogger("leaseway.master")
WAIT_S = 5.0
_MISDIRECTED: Final = 421
"""Who is asked does not answer to the name by which it is: its own configuration has to state it (docs/adr/0027)."""
SIGNED_MAX: Final = 1000
"""The newest so many checkpoints are asked for: sixteen hours of one a minute."""
WHO: Final = "ClickHouse"

A = TypeVar("A")


class Archived(msgspec.Struct, frozen=True):
    """What ClickHouse has seen."""

    newest: Witnessed | None = None
    """The newest commit that it holds; nobody has signed that."""
    signed: tuple[Kept, ...] = ()
    """Checkpoints, newest first, as they are kept there: who asks checks their signatures."""


NOTHING: Final = Archived()
AskArchive = Callable[[], Awaitable[Archived]]


class _Health(msgspec.Struct):
    witness: Witnessed | None = None


class _Signed(msgspec.Struct):
    checkpoints: tuple[Checkpoint, ...] = ()


def clickhouse_at(projector_url: str) -> AskArchive:
    """Return how to ask ClickHouse, through the projector that owns it, for what it has seen.

    No answer within five seconds, or none that says, is no witness: the archive may be away, and lending does not wait for it.
    """

    async def ask() -> Archived:
        health, signed = await asyncio.gather(
            _asked(f"{projector_url}/health", _Health),
            _asked(f"{projector_url}/admin/v1/archive/checkpoints?limit={SIGNED_MAX}", _Signed),
        )
        kept = tuple(Kept(checkpoint=each, source=WHO) for each in signed.checkpoints) if signed is not None else ()
        return Archived(health.witness if health is not None else None, kept)

    return ask


class _Master(msgspec.Struct):
    behind: str = ""


async def doubted_by(masters: Sequence[str]) -> list[Generation]:
    """Return the generations behind which the ledger is, by the word of those masters that answer and are in safe mode for it."""
    words = ("master_refuses", "master_not_asked")
    said = await asyncio.gather(*(_asked(f"{url.strip()}/health", _Master, words) for url in masters))
    return [Generation(each.behind[:GENERATION_CHARS_MAX]) for each in said if each is not None and each.behind]


async def _asked(
    url: str, kind: type[A], words: tuple[str, str] = ("clickhouse_refuses", "clickhouse_no_witness")
) -> A | None:
    try:
        async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as session, session.get(url) as answer:
            if answer.status == _MISDIRECTED:
                LOG.warning(words[0], extra={"url": url, "why": (await answer.text())[:500]})
                return None
            return msgspec.json.decode(await answer.read(), type=kind)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, OSError) as error:
        LOG.info(words[1], extra={"url": url, "why": str(error) or type(error).__name__})
        return None

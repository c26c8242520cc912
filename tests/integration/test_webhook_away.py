"""An endpoint that was away for an hour, at one two-thousandth of the time: the pauses of a hook are so much shorter, too."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.memory.stream import MemoryStream
from adapters.ports import free_port
from domain.ports import StoredMessage
from domain.subjects import EVENTS
from services.projector.webhooks import Pace, Webhooks
from tests.support.facts import finished, granted
from tests.support.hooks import config, posting, serving, stated
from tests.support.public import Public
from tests.support.waiting import until

SCALE = 2000
HOUR_S = 3600 / SCALE
PACE = Pace(first_s=1 / SCALE, most_s=300 / SCALE, note_s=5 / SCALE)
ATTEMPTS_MAX = 10 + 2 * 12
"""Of an hour: ten until the pause is at its most, then one in at least half of five minutes."""


class Watched(MemoryStream):
    """Counts the messages that were asked of it."""

    given = 0

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        async for batch in super().read(after=after, until=until):
            self.given += len(batch)
            yield batch


@pytest.fixture
def public() -> Public:
    made = Public()
    made.streams[EVENTS] = Watched(EVENTS, made.clock, batch_max=50)
    return made


async def away_for_an_hour(public: Public, each: int = 20) -> int:
    """Tell events all along an hour, and return how many."""
    loop = asyncio.get_running_loop()
    begun_s, told = loop.time(), 0
    for share in range(1, 31):
        await public.tell(*(finished(told + number) for number in range(each)))
        await public.decide(granted())
        told += each
        await until("two minutes more", lambda: loop.time() >= begun_s + share * HOUR_S / 30)  # noqa: B023  # awaited in its own round
    return told


def sequences(ids: Sequence[str]) -> list[int]:
    """Return the numbers of the facts among the events that were taken."""
    return [int(each.rpartition("/")[2]) for each in ids if "/" in each]


@asynccontextmanager
async def left(public: Public, tmp_path: Path) -> AsyncIterator[tuple[Webhooks, int]]:
    """Yield (the hook, a port) right after the endpoint there has taken event 1 and is gone with event 2 on its way."""
    port = free_port()
    async with posting(public, tmp_path, config(f"http://127.0.0.1:{port}/hook"), pace=PACE) as hooks:
        async with serving(port) as endpoint:
            await until("its start", lambda: stated(hooks)["state"] == "ok")
            await public.tell(finished(0))
            await until("the first event", endpoint.has(1))
        await public.tell(finished(1))
        await until("the first failure", lambda: stated(hooks)["failures"])
        yield hooks, port


async def test_after_an_hour_away_an_endpoint_gets_all_of_it_in_order_and_nothing_was_kept_meanwhile(
    public: Public, tmp_path: Path
) -> None:
    stream = public.streams[EVENTS]
    assert isinstance(stream, Watched)
    async with left(public, tmp_path) as (hooks, port):
        told = 2 + await away_for_an_hour(public)
        asked = stated(hooks)["attempts"]
        assert 5 < asked <= ATTEMPTS_MAX
        assert 50 < stream.given <= 500 < told  # one queue and a batch of each stream, however long it lasts
        loop = asyncio.get_running_loop()
        async with serving(port) as endpoint:
            back_s = loop.time()
            await until("the next", endpoint.has(1))
            assert loop.time() - back_s < PACE.most_s + 1
            decided = public.decisions
            await until("all of it", lambda: stated(hooks)["delivered"] == told + decided, timeout_s=30)
            assert sequences(endpoint.ids) == list(range(2, told + 1))
            assert len(endpoint.attempts) == len(set(endpoint.ids)) == told - 1 + decided
        assert (stated(hooks)["missed"], hooks.hooks[0].retries) == (0, stated(hooks)["attempts"] - told - decided)


async def test_what_the_streams_dropped_meanwhile_is_counted_and_the_rest_comes_in_order(
    public: Public, tmp_path: Path
) -> None:
    async with left(public, tmp_path) as (hooks, port):
        told = 2 + await away_for_an_hour(public)
        public.streams[EVENTS].expire(told * 3 // 4)
        async with serving(port) as endpoint:
            await until("the last", lambda: stated(hooks)["place"] == f"{told}-0-{public.decisions}", timeout_s=30)
            got, missed = sequences(endpoint.ids), stated(hooks)["missed"]
    assert missed > 50
    assert len(got) == len(set(got)) == told - 1 - missed
    assert got == sorted(got)
    assert got[-1] == told

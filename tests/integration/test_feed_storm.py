"""Many clients of the events that come, are cut off and come back all at once: nobody waits for them, and they lose nothing."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from adapters.log.public import Place, parse_place
from domain.subjects import DECISIONS
from tests.support.facts import finished, granted
from tests.support.nats import ServerUnderTest
from tests.support.public import FeedServer, Public, feed_of
from tests.support.stall import Watch, elsewhere
from tests.support.story import story_on
from tests.support.waiting import until

pytestmark = pytest.mark.real
ROUNDS = 5
EVENT = re.compile(rb"^id: (\S+)\nevent: (\S+)$", re.MULTILINE)
STORED = 1200
"""Events that are there before anybody comes."""
STALL_S = 0.3
"""The longest time of the processor for which the server's loop may do nothing else; for a process of this test alone."""


class Listener:
    """One client: reads as raw as can be, and hangs up without a word."""

    def __init__(self, feed: FeedServer) -> None:
        self._where = urlsplit(feed.url)
        self.ids = ["0-0-0"]

    async def listen(self, count: int) -> None:
        """Come back where it was, read until it has had `count` events, and be gone."""
        where = self._where
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            await self._listen(reader, writer, count)
        finally:
            writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
        where = self._where
        head = f"GET {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nLast-Event-ID: {self.ids[-1]}\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        rest = b""
        while len(self.ids) <= count:
            came = await reader.read(1 << 16)
            assert came, "it was cut off"
            *blocks, rest = (rest + came).split(b"\n\n")
            for block in blocks:
                if found := EVENT.search(block):
                    assert not found[2].startswith(b"leaseway."), block
                    self.ids.append(found[1].decode())

    def is_whole(self) -> bool:
        """Tell whether each event moved one stream on by one: nothing is left out, nothing comes twice, all is in order."""
        places = [parse_place(each.partition("@")[0]) for each in self.ids]
        return all(a is not None and b is not None and steps(a, b) == [0, 0, 1] for a, b in pairwise(places))


def steps(before: Place, after: Place) -> list[int]:
    return sorted((after.events - before.events, after.control - before.control, after.decisions - before.decisions))


async def tell(public: Public) -> None:
    """Tell a hundred events, as they come."""
    for _ in range(10):
        await asyncio.gather(*(public.tell(finished(number)) for number in range(9)), public.decide(granted()))


@asynccontextmanager
async def beside(*work: object) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


async def listening(listeners: list[Listener], count: int) -> None:
    """Have all of them listen at once: what they do is no work of the server's."""
    await elsewhere(each.listen(count) for each in listeners)


async def storm(public: Public, clients: int) -> float:
    """Have so many clients come and go together; return the longest stall of the server's loop in seconds."""
    watch = Watch()
    async with feed_of(public) as feed:
        listeners = [Listener(feed) for _ in range(clients)]
        for number in range(1, ROUNDS + 1):
            await asyncio.gather(tell(public), listening(listeners, STORED + 100 * number - 30))
        for _ in range(9):  # while nobody listens: then all are behind together
            await tell(public)
        ends = [(await public.streams[name].bounds()).last for name in public.streams]
        await listening(listeners, sum(ends))
        stalled_s = watch.end()
        assert [each.ids[-1].partition("@")[0] for each in listeners] == ["-".join(map(str, ends))] * clients
        assert all(each.is_whole() for each in listeners)
        await until("nobody to be served", lambda: feed.feed.clients == 0)
    return stalled_s


async def stored(public: Public) -> None:
    await public.link()
    for _ in range(STORED // 100):
        await asyncio.gather(*(public.tell(finished(number)) for number in range(99)), public.decide(granted()))


async def test_fifty_clients_that_are_cut_off_and_come_back_together_lose_nothing(
    nats_server: ServerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    public = Public()
    async with story_on(nats_server, public):
        await stored(public)
        await storm(public, 50)
    assert [record.message for record in caplog.records if record.name.startswith("leaseway")] == []


@pytest.mark.long
async def test_two_hundred_clients_that_are_cut_off_and_come_back_together_lose_nothing_and_stall_nobody(
    nats_server: ServerUnderTest,
) -> None:
    public = Public()
    async with story_on(nats_server, public):
        await stored(public)
        assert await storm(public, 200) < STALL_S


async def test_clients_that_come_together_have_one_reader_of_each_stream(nats_server: ServerUnderTest) -> None:
    public = Public()
    async with story_on(nats_server, public):
        await stored(public)
        before = await consumers(nats_server)
        async with feed_of(public) as feed:
            listeners = [Listener(feed) for _ in range(20)]
            await asyncio.gather(*(each.listen(STORED) for each in listeners))
            async with beside(*(each.listen(1 << 30) for each in listeners)):
                await until("all to be served", lambda: feed.feed.clients == 20)
                await public.tell(finished(1))
                await until("all to have heard", lambda: len({each.ids[-1] for each in listeners}) == 1)
                assert await consumers(nats_server) == before + 1


async def consumers(server: ServerUnderTest) -> int:
    """Return how many read the decisions."""
    client = await server.client("projector")
    return int((await client.jetstream().stream_info(DECISIONS)).state.consumer_count)

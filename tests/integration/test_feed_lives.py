"""An id names the streams that it is a place in: in one that was made anew the same numbers are other events. On a real bus."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from adapters.log.place_ids import lives_of
from adapters.log.public import bounds_of, created_of
from domain.subjects import EVENTS
from services.projector.api_feed import Pace
from services.projector.since import place_of
from tests.support.facts import finished, granted, held
from tests.support.nats import ServerUnderTest
from tests.support.public import FeedServer, Public, Reader, feed_of, kinds
from tests.support.story import story_on

pytestmark = pytest.mark.real
MISSED = {"stream": EVENTS, "after": 3, "first": 1, "anew": True}
AFTER_IT = [f"{seq}-0-1" for seq in range(1, 6)]


class Lives(msgspec.Struct):
    """A feed of a real bus, on which three requests were held under a lease."""

    public: Public
    server: ServerUnderTest

    async def make_anew(self) -> None:
        """Make the stream of the facts anew; it soon reaches beyond where the old one ended."""
        client = await self.server.client("provisioner")
        info = await client.request(f"$JS.API.STREAM.INFO.{EVENTS}", b"")
        for what, body in (("DELETE", b""), ("CREATE", json.dumps(json.loads(info.data)["config"]).encode())):
            answer = await client.request(f"$JS.API.STREAM.{what}.{EVENTS}", body)
            assert "error" not in json.loads(answer.data), answer.data
        await self.public.tell(*(finished(number) for number in range(5)))

    async def lives(self) -> str:
        return lives_of(created_of(await bounds_of(self.public.streams)))


@pytest.fixture
async def lives(nats_server: ServerUnderTest) -> AsyncIterator[Lives]:
    public = Public()
    async with story_on(nats_server, public):
        await public.tell(held(1), held(2), held(3))
        await public.decide(granted())
        yield Lives(public, nats_server)


@pytest.fixture(params=[0.0, 5.0], ids=["nobody_followed", "it_is_followed"])
async def feed(request: pytest.FixtureRequest, lives: Lives) -> AsyncIterator[FeedServer]:
    async with feed_of(lives.public, Pace(linger_s=request.param)) as served:
        yield served


async def told_of_it(reader: Reader) -> list[str]:
    """Return the ids of the five events that come after the word that their stream was made anew."""
    missed = await reader.next()
    assert (missed.event, json.loads(missed.data), missed.place) == ("leaseway.missed", MISSED, "0-0-1")
    told = await reader.take(5)
    assert (kinds(told), [each.place for each in told]) == (["queue.finished"] * 5, AFTER_IT)
    return [missed.id, *(each.id for each in told)]


@pytest.mark.parametrize("how", ["last_id", "since"])
async def test_who_comes_back_to_a_stream_that_was_made_anew_is_told_so_and_gets_all_of_it(
    feed: FeedServer, lives: Lives, how: str
):
    async with feed.reading(since="0") as reader:
        last = (await reader.take(4))[-1].id
    before = await lives.lives()
    assert last == f"3-0-1@{before}"
    await lives.make_anew()
    async with feed.reading(**{how: last}) as reader:
        async with asyncio.timeout(20):
            ids = await told_of_it(reader)
    now = await lives.lives()
    assert (now[:6] != before[:6], now[6:]) == (True, before[6:])
    assert {each.partition("@")[2] for each in ids} == {now}
    async with feed.reading(last_id=ids[0]) as reader:  # it was cut off right after it had been told
        assert [each.id for each in await reader.take(5)] == ids[1:]


async def test_who_follows_as_a_stream_is_made_anew_is_told_so_and_gets_all_of_it(lives: Lives):
    async with feed_of(lives.public) as feed, feed.reading(since="now") as reader:
        await lives.make_anew()
        async with asyncio.timeout(20):
            await told_of_it(reader)


async def test_an_id_of_a_release_that_named_no_streams_is_a_place_in_those_that_are_there(lives: Lives):
    async with feed_of(lives.public) as feed, feed.reading(last_id="2-0-1") as reader:
        assert (await reader.next()).id == f"3-0-1@{await lives.lives()}"


@pytest.mark.parametrize("said", ["3-0-1@", "3-0-1@9f3a1c", "3-0-1@9f3a1c0b22d177aa1g", "3-0@9f3a1c0b22d177aa10"])
async def test_what_is_no_id_is_refused(lives: Lives, said: str):
    async with feed_of(lives.public) as feed, asyncio.timeout(5):
        answer = await feed.session.get(feed.url, headers={"Last-Event-ID": said})
        assert answer.status == 400, said
        assert (await answer.json())["error"]["code"] == "bad_query"


async def test_a_webhook_that_begins_at_an_id_misses_nothing_of_a_stream_that_was_made_anew(lives: Lives):
    said = f"3-0-1@{await lives.lives()}"
    streams, clock = lives.public.streams, lives.public.clock
    assert str(await place_of(streams, clock, said)) == "3-0-1"
    await lives.make_anew()
    assert str(await place_of(streams, clock, said)) == "0-0-1"

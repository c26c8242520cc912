"""What a projector measures of its webhooks, as whoever scrapes it sees it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from adapters.http.errors import ApiError
from adapters.http.server import Call, HttpServer
from adapters.keys import Signer, new_nkey
from adapters.memory.stream import MemoryStream
from domain.subjects import EVENTS, LEDGER
from services.projector.metrics import ProjectorMetrics
from services.projector.webhooks import Hook
from tests.support.facts import finished, granted, held
from tests.support.hooks import Endpoint, config, posting, serving
from tests.support.public import Public
from tests.support.waiting import until

Scrape = Callable[[], Awaitable[dict[tuple[str, ...], float]]]


@pytest.fixture
def public() -> Public:
    made = Public()
    made.streams[LEDGER] = MemoryStream(LEDGER, made.clock)
    return made


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with serving() as served:
        yield served


@asynccontextmanager
async def scraped(public: Public, hooks: Sequence[Hook]) -> AsyncIterator[Scrape]:
    """Serve /metrics; yield what reads it: {(name without leaseway_, label values...): value}."""

    async def nothing(_: Call) -> web.StreamResponse:
        raise ApiError("not_found", "nothing else is here")

    measured = ProjectorMetrics(public.desk().projector, lambda: True, hooks, public.told)
    server = HttpServer(measured.beside(nothing), connections_max=8)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}/metrics"
    async with aiohttp.ClientSession() as session:

        async def scrape() -> dict[tuple[str, ...], float]:
            async with session.get(url) as answer:
                text = await answer.text()
            samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            return {
                (sample.name.removeprefix("leaseway_"), *sample.labels.values()): sample.value for sample in samples
            }

        yield scrape
    await server.stop()


async def test_posts_retries_and_what_waits_are_measured_of_each_hook(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answers = [web.Response(status=500), web.Response(status=307)]
    dead = config("http://127.0.0.1:9", name="dead")
    async with posting(public, tmp_path, config(endpoint.url), dead) as hooks, scraped(public, hooks.hooks) as scrape:
        await public.tell(held(1), held(2))
        await public.decide(granted())
        await until("all three", endpoint.has(3))
        await until("some failures", lambda: hooks.hooks[1].retries > 2)
        seen = await scrape()
        assert seen["webhook_posts_total", "tickets", "taken"] == 3
        assert seen["webhook_posts_total", "tickets", "refused"] == 2
        assert seen["webhook_retries_total", "tickets"] == 2
        assert seen["webhook_lag_messages", "tickets"] == seen["webhook_oldest_age", "tickets"] == 0
        assert seen["webhook_state", "tickets", "ok"] == seen["webhook_state", "dead", "retrying"] == 1
        assert seen["webhook_state", "dead", "ok"] == 0
        assert seen["webhook_posts_total", "dead", "no_answer"] == seen["webhook_retries_total", "dead"] + 1 > 3
        assert seen["webhook_lag_messages", "dead"] == 3
        assert 0 < seen["webhook_oldest_age", "dead"] < 10
        later = await scrape()
        assert later["webhook_oldest_age", "dead"] > seen["webhook_oldest_age", "dead"]


async def test_what_no_hook_could_read_and_what_nobody_is_told_are_measured(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    await public.tell(held(1), held(2), finished(1))
    public.streams[EVENTS].expire(3)
    await public.decide(granted(), signer=Signer(new_nkey()[0]))
    async with posting(public, tmp_path, config(endpoint.url)) as hooks, scraped(public, hooks.hooks) as scrape:
        await until("the place", lambda: str(hooks.hooks[0].place) == "3-0-1")
        seen = await scrape()
    assert seen["webhook_missed_total", "tickets"] == 2
    assert seen["told_refused_total",] == 1

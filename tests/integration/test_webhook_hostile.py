"""Endpoints that answer oddly, a full disk and a wrong clock: for these no event is posted twice, and none is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.clock import SystemClock
from adapters.memory.stream import MemoryStream
from domain.errors import HistoryGapError, NotAllowedError
from domain.ports import StoredMessage
from domain.subjects import EVENTS
from services.projector.hook_book import HookBook
from services.projector.webhooks import Supply, Webhooks
from tests.support.facts import finished, granted, held
from tests.support.hooks import QUICK, Endpoint, config, posting, serving, stated
from tests.support.public import Public
from tests.support.waiting import until

HOUR_US = 3_600_000_000
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with serving() as served:
        yield served


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve HTTP by hand: yield (url, ids of the posts that came whole)."""
    ids: list[str] = []
    serving_: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(take(reader, writer))
        serving_.add(task)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await take_one(reader, writer)
        finally:
            writer.close()

    async def take_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        said = dict(line.split(": ", 1) for line in head[1:] if line)
        await reader.readexactly(int(said["content-length"]))
        ids.append(said["webhook-id"])
        await answer(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", ids
    finally:
        server.close()
        for task in serving_:
            task.cancel()
        await asyncio.gather(*serving_, return_exceptions=True)


async def promises_a_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    await asyncio.Event().wait()


async def hangs_up_within_its_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\n")


async def never_ends_its_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize("answer", [promises_a_body, hangs_up_within_its_body, never_ends_its_body])
async def test_an_event_that_was_taken_is_not_posted_again_whatever_becomes_of_the_body(
    tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.http.webhook._ANSWER_S", 0.1)
    public = Public()
    await public.tell(held(1), held(2), held(3))
    async with answering(answer) as (url, ids), posting(public, tmp_path, config(url)) as hooks:
        await until("all three", lambda: stated(hooks)["delivered"] == 3)
    assert len(ids) == len(set(ids)) == 3


async def test_an_event_that_was_taken_is_not_posted_again_because_the_disk_is_full(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("services.projector.webhooks._BUS_PAUSE_S", 0.02)
    public = Public()
    await public.tell(held(1))
    book = HookBook(tmp_path, "tickets")
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("the first", lambda: stated(hooks)["delivered"] == 1)
        book.path.with_suffix(".tmp").mkdir()  # nothing can be written there now
        await public.tell(held(2), held(3))
        await until("some tries", lambda: [each.message for each in caplog.records].count("webhook_waits") > 5)
        assert len(endpoint.attempts) == 2
        book.path.with_suffix(".tmp").rmdir()
        await until("the rest", lambda: stated(hooks)["delivered"] == 3)
    assert len(endpoint.attempts) == 3
    standing = book.read()
    assert standing is not None
    assert standing.place.events == 3


async def test_a_new_hook_whose_place_cannot_be_kept_yet_misses_nothing_that_comes_meanwhile(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.projector.webhooks._BUS_PAUSE_S", 0.02)
    public = Public()
    await public.tell(held(1))
    draft = HookBook(tmp_path, "tickets").path.with_suffix(".tmp")
    draft.mkdir(parents=True)
    async with posting(public, tmp_path, config(endpoint.url, since="")) as hooks:
        await until("a word on it", lambda: stated(hooks)["state"] == "waiting")
        await public.tell(finished(1))
        draft.rmdir()
        await until("the event", endpoint.has(1))
    assert endpoint.kinds() == ["queue.finished"]


@pytest.mark.parametrize("away", [True, False])
async def test_of_a_stream_that_was_made_anew_a_hook_misses_nothing_however_far_that_has_come(
    endpoint: Endpoint, tmp_path: Path, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.projector.webhooks._BUS_PAUSE_S", 0.02)
    public = Public()
    await public.tell(held(1), held(2))
    await public.decide(granted())
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("all three", lambda: stated(hooks)["place"] == "2-0-1")
        if not away:
            await made_anew(public, endpoint, monkeypatch)
            await until("all of the new one", lambda: stated(hooks)["delivered"] == 8)
    if away:
        await made_anew(public, endpoint, monkeypatch)
        async with posting(public, tmp_path, config(endpoint.url)) as hooks:
            await until("all of the new one", lambda: stated(hooks)["delivered"] == 8)
    assert endpoint.kinds() == ["queue.finished"] * 5
    async with posting(public, tmp_path, config(endpoint.url)):  # and none of it again
        await public.tell(held(3))
        await until("the next", endpoint.has(6))
    assert endpoint.kinds() == ["queue.finished"] * 5 + ["queue.held"]


async def test_of_a_stream_that_was_made_anew_as_it_was_read_nothing_is_posted_again_after_a_restart(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = Public()
    await public.tell(held(1), held(2))
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("both", lambda: stated(hooks)["place"] == "2-0-0")
        await made_anew(public, endpoint, monkeypatch, facts=1, error=HistoryGapError(EVENTS, "3 is not there"))
        await until("that of the new one", lambda: stated(hooks)["place"] == "1-0-0")
    async with posting(public, tmp_path, config(endpoint.url)):
        await public.tell(held(3))
        await until("the next", endpoint.has(2))
    assert endpoint.kinds() == ["queue.finished", "queue.held"]


async def made_anew(
    public: Public,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    *,
    facts: int = 5,
    error: Exception | None = None,
) -> None:
    """Have another stream in the place of the facts', which holds some of them already; who reads the old one is told."""

    def gone(after: int, until: int | None) -> list[StoredMessage]:
        raise error or NotAllowedError("it is gone")

    endpoint.taken.clear()
    old = public.streams[EVENTS]
    public.streams[EVENTS] = MemoryStream(EVENTS, public.clock, batch_max=50)
    await public.tell(*(finished(number) for number in range(facts)))
    monkeypatch.setattr(old, "_batch", gone)
    await old.publish("lw.local.node.n1.queue.x.held", b"{}")


class OffClock(SystemClock):
    """Its wall clock is wrong by `off_us`."""

    def __init__(self, off_us: int) -> None:
        self.off_us = off_us

    def wall_us(self) -> int:
        return super().wall_us() + self.off_us


@pytest.mark.parametrize("off_us", [-HOUR_US, HOUR_US])
async def test_the_age_of_what_waits_goes_by_the_clock_that_stamped_it(tmp_path: Path, off_us: int) -> None:
    public = Public()
    await public.tell(held(1))
    supply = Supply(public.streams, OffClock(off_us), public.told)
    hooks = Webhooks([config("http://127.0.0.1:9")], supply, tmp_path, QUICK)
    posting_ = asyncio.create_task(hooks.run())
    await until("a failure", lambda: stated(hooks)["failures"] > 1)
    assert 0 < hooks.hooks[0].oldest_s() < 60
    posting_.cancel()
    await asyncio.wait({posting_})

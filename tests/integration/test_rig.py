"""The rig's own promises: a judge that errs is worse than none."""

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.support.engines import tiny_engine
from tests.support.stub import stub_engine
from tests.support.tap import most_at_once, read_journal, starts, tap
from tests.support.waiting import until

pytestmark = pytest.mark.real
CHAT = "/v1/chat/completions"


def chat(mark: str, *, tokens: int = 8, stream: bool = False) -> dict[str, object]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"[[{mark}]] hello"}],
        "max_tokens": tokens,
        "stream": stream,
        "temperature": 0,
        "seed": 1,
    }


async def written(journal: Path, what: str) -> None:
    """Return once the journal has a line of this kind."""
    await until(f"{what} in the journal", lambda: any(line.what == what for line in read_journal(journal)))


async def test_the_tap_writes_start_first_and_end_of_each_request_under_its_mark(tmp_path: Path):
    async with tiny_engine(slots=2) as engine, tap(engine.url, tmp_path / "j") as front:
        async with aiohttp.ClientSession(front.url) as client:
            for mark in ("one", "two"):
                async with client.post(CHAT, json=chat(mark)) as answer:
                    assert (await answer.json())["usage"]["completion_tokens"] == 8
            async with client.get("/health") as answer:
                assert answer.status == 200
        lines = front.lines()
        assert [(line.what, line.key) for line in lines] == [
            (what, mark) for mark in ("one", "two") for what in ("START", "FIRST", "END")
        ]
        assert lines == sorted(lines, key=lambda line: line.at_us)
        assert starts(lines) == {"one": 1, "two": 1}


async def test_a_stream_passes_the_tap_byte_for_byte(tmp_path: Path):
    async def events(url: str) -> list[object]:
        async with aiohttp.ClientSession(url) as client, client.post(CHAT, json=chat("s", stream=True)) as answer:
            raw = (await answer.read()).decode()
        assert raw.endswith("data: [DONE]\n\n")
        parts = [json.loads(row[6:]) for row in raw.split("\n\n") if row.startswith("data: {")]
        return [part["choices"][0]["delta"] for part in parts]

    async with tiny_engine() as engine, tap(engine.url, tmp_path / "j") as front:
        assert await events(front.url) == await events(engine.url)


async def test_a_caller_who_hangs_up_is_a_cancel_and_frees_the_engine(tmp_path: Path):
    async with tiny_engine(ctx=8192) as engine, tap(engine.url, tmp_path / "j") as front:
        async with aiohttp.ClientSession(front.url) as client:
            call = asyncio.ensure_future(client.post(CHAT, json=chat("gone", tokens=8000)))
            await written(front.journal, "START")
            call.cancel()
            await written(front.journal, "CANCEL")
            async with client.post(CHAT, json=chat("next"), timeout=aiohttp.ClientTimeout(5)) as answer:
                assert answer.status == 200
        assert [line.what for line in front.lines() if line.key == "gone"] == ["START", "CANCEL"]


async def test_an_engine_killed_at_work_is_broken_and_a_dead_one_is_refused_before_the_tap(tmp_path: Path):
    async with tiny_engine(ctx=8192) as engine, tap(engine.url, tmp_path / "j") as front:
        async with aiohttp.ClientSession(front.url) as client:
            call = asyncio.ensure_future(client.post(CHAT, json=chat("broken", tokens=8000)))
            await written(front.journal, "START")
            engine.signal(signal.SIGKILL)
            with pytest.raises(aiohttp.ClientConnectionError):
                await call
        assert [line.what for line in front.lines()] == ["START", "BROKEN"]
        port = int(front.url.rsplit(":", 1)[1])
        await until("the tap to refuse, as the engine does", lambda: refused(port))


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    await writer.wait_closed()
    return False


async def test_what_was_written_stays_written_when_the_tap_is_killed(tmp_path: Path):
    async with tiny_engine(ctx=8192) as engine, tap(engine.url, tmp_path / "j") as front:
        async with aiohttp.ClientSession(front.url) as client:
            call = asyncio.ensure_future(client.post(CHAT, json=chat("kept", tokens=8000)))
            await written(front.journal, "START")
            front.process.kill()
            with pytest.raises(aiohttp.ClientConnectionError):
                await call
        assert starts(front.lines()) == {"kept": 1}


async def test_the_tap_sees_two_at_once_when_two_are_at_once(tmp_path: Path):
    async with stub_engine(slots=4, first_byte_us=100_000) as engine, tap(engine.url, tmp_path / "j") as front:
        async with aiohttp.ClientSession(front.url) as client, asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(asked(client, chat(f"r{number}")))
        assert most_at_once(front.lines()) == 3


async def test_the_stub_engine_works_on_its_slots_and_queues_the_others():
    async with stub_engine(slots=2, first_byte_us=30_000) as engine, aiohttp.ClientSession(engine.url) as client:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(asked(client, chat(f"r{number}")))
        async with client.get("/stub/stats") as answer:
            assert await answer.json(content_type=None) == {"requests": 5, "active": 0, "queued": 0, "max_active": 2}


async def asked(client: aiohttp.ClientSession, body: dict[str, object]) -> None:
    async with client.post(CHAT, json=body) as answer:
        assert answer.status == 200
        await answer.read()

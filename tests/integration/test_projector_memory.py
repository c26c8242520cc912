"""What the embedded engine takes: bounded however long it is busy; where its limit is near, rows wait and it says so."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters.clickhouse.store import MEMORY_BYTES

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SECONDS, RATE = 180, 5000
GROWTH_KIB_MAX = 150 * 1024
"""Between the second and the last third of the time: merges come and go."""
RSS_KIB_MAX = 1536 * 1024
NEAR_BYTES = 64 * 1024 * 1024
"""The engine counts some 58 MiB as its own before anybody asks for anything; a batch of 5000 messages takes ten more."""


async def child(module: str, *arguments: object) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.support.{module}", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 800)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


async def test_three_busy_minutes_take_no_more_memory_at_the_end_than_in_the_middle(tmp_path: Path):
    *seconds, told = await child("soak_child", tmp_path / "clickhouse", SECONDS, RATE)
    middle, end = (
        [each["rss_kib"] for each in seconds if begin <= each["at_s"] < begin + SECONDS / 3]
        for begin in (SECONDS / 3, 2 * SECONDS / 3)
    )
    print(
        f"{4 * told['requests']:,} messages; RSS {max(middle) // 1024} MiB in the middle, {max(end) // 1024} MiB at the end"
    )
    assert max(end) < max(middle) + GROWTH_KIB_MAX
    assert max(end) < RSS_KIB_MAX
    assert max(each["tracked"] for each in seconds) < 0.9 * MEMORY_BYTES
    assert told["events"] == [3 * told["requests"]] * 2
    assert told["commits"] == [told["requests"]] * 2


async def test_an_engine_at_nine_tenths_of_its_limit_answers_and_takes_rows_once_it_may_take_more(
    tmp_path: Path,
):
    directory, requests = tmp_path / "clickhouse", 3000
    [first] = await child("memory_child", directory, MEMORY_BYTES, requests, 120)
    assert (first["causes"], first["lag"]) == ([], 0)
    [near] = await child("memory_child", directory, NEAR_BYTES, requests, 20)
    assert near["tracked"] > 0.7 * NEAR_BYTES
    assert near["lag"] == 0 or near["met"] == ["memory"], near  # by what else the engine does just then
    assert near["rows"][0] == near["rows"][1] >= first["rows"][1], (
        "questions are answered, and what gets in does so once"
    )
    [again] = await child("memory_child", directory, MEMORY_BYTES, requests, 120)
    assert (again["causes"], again["lag"]) == ([], 0)
    assert again["rows"][0] == again["rows"][1] == near["rows"][1] + 3 * requests

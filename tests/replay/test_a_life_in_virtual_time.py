"""A seed gives the same life to the last byte; the checker of kept lives finds what differs."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from adapters.log.bundle import file_digest
from adapters.log.reader import Reader
from domain.errors import HistoryError
from tests.replay import everywhere, one_reading
from tests.replay.everywhere import Row, Surroundings
from tests.replay.million import virtual
from tests.replay.million.keep import HISTORY
from tests.replay.million.plan import Plan
from tests.replay.one_reading import Told
from tests.support.history import CLUSTER, SECRET

PLAN = Plan(events=800, seed=3, nodes=10, job_s=0.01)
MAKE = ("-m", "tests.replay.million", "--virtual", "--events", "800", "--seed", "3", "--nodes", "10", "--job", "0.01")


async def test_a_seed_gives_the_same_history_to_the_last_byte_in_every_process(tmp_path: Path):
    # given: a life here, and the same in a process with another hash seed
    stored, came_of_it = await asyncio.to_thread(virtual.live, PLAN, lambda done, words: None)
    here = await virtual.keep(tmp_path / "here", stored)
    await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *MAKE, "--out", str(tmp_path / "there")],
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        check=True,
    )
    # then: the copies are one and the same file, and it is decided again to the same bytes
    assert file_digest(here) == file_digest(tmp_path / "there" / HISTORY)
    remade, _ = await one_reading.from_zero(stored.streams(), Reader(CLUSTER, SECRET), 7, 0)
    assert remade.commits == came_of_it.commits > 50
    assert remade.events > 700


async def test_a_changed_fact_makes_a_reading_fail_at_its_commit():
    stored, _ = virtual.live(msgspec.structs.replace(PLAN, events=400), lambda done, words: None)
    changed = stored.facts[200]
    stored.facts[200] = msgspec.structs.replace(changed, stamp_ns=changed.stamp_ns + 1)
    with pytest.raises(HistoryError, match=r"commit \d+: .*digest"):
        await one_reading.from_zero(stored.streams(), Reader(CLUSTER, SECRET), 0, 0)


SAME = Told(python="3.11.7", way="all at once", commits=9, events=99, digest="d", whole="w", state="s", cpu_s=1.0)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, 0),
        ({"digest": "x"}, 1),
        ({"state": "x"}, 1),
        ({"whole": "x"}, 1),
        ({"whole": "x", "commits": 8, "way": "from 3 snapshots"}, 0),  # it does not make the first ones
        ({"wrong": "commit 3: now_us: decided 1, stored 2"}, 1),
    ],
)
def test_readings_that_made_other_commits_or_another_state_are_told(other: dict[str, object], found: int):
    under = Surroundings(interpreter="python3", hash_seed="0")
    rows = [Row(under=under, told=SAME), Row(under=under, told=msgspec.structs.replace(SAME, **other))]
    assert len(everywhere.judged(rows)) == found

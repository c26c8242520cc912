"""A short life of simulated nodes on a real bus is decided again to the same bytes, however it is read; a change is found."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.keys import load_credentials
from adapters.log.bundle import load
from adapters.log.reader import Reader
from tests.replay import everywhere, one_reading
from tests.replay.everywhere import Run, Surroundings
from tests.replay.million.keep import HISTORY, KEY, keep
from tests.replay.million.life import lived, work_folder
from tests.replay.million.plan import Plan

pytestmark = pytest.mark.real
EVENTS = 5_000


@pytest.fixture
def work() -> Iterator[Path]:
    """Where the server's files are: its syncing is not what is tried here."""
    with tempfile.TemporaryDirectory(dir=work_folder()) as folder:
        yield Path(folder)


async def test_what_real_producers_said_and_a_real_master_decided_is_decided_again_in_every_way(work: Path):
    # given: two masters in a row over five thousand events
    plan = Plan(events=EVENTS, seed=7, nodes=10, kills=1, job_s=0.006, end_s=0.2)
    async with lived(work / "data", plan, lambda done, words: None) as (came_of_it, bus, server):
        await keep(work / "kept", bus, server, plan, came_of_it)
    assert came_of_it.events >= EVENTS
    assert {"LeaseGranted", "LeaseCleared", "OwnerPlanned", "LinkPriced"} <= set(came_of_it.decisions)
    # when: it is read in batches and from snapshots, and by another process under another hash seed
    kept, key = work / "kept" / HISTORY, work / "kept" / KEY
    copy = load(kept)
    reader = Reader(copy.header.cluster, load_credentials(key).cluster_mac_secret)
    since = one_reading.first_snapshot(copy)
    here = [await one_reading.from_zero(copy.streams, reader, batch, since) for batch in (0, 7)]
    begun_later = await one_reading.from_snapshots(copy, reader, 100)
    under = Surroundings(interpreter=sys.executable, hash_seed="1", optimised=True)
    asked = one_reading.Asked(history=str(kept), key=str(key), batches=(1,))
    elsewhere = everywhere.read(Run(under=under, asked=asked))
    # then: the same commits and the same state come of it everywhere
    assert len(copy.states) >= 2
    assert here[0][0].commits == came_of_it.commits
    assert not everywhere.judged(elsewhere)
    assert {(made.digests[0], state) for made, state in (*here, begun_later)} == {
        (row.told.digest, row.told.state) for row in elsewhere
    }

"""`audit verify` on a real bus finds nothing, in whatever pieces it reads, from wherever it begins, under any hash seed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from domain.events import LeaseGranted
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
async def lived(nats_server: ServerUnderTest):
    """A cluster with some history and two masters in a row, so that there is a snapshot in the middle."""
    async with cluster_on(nats_server) as cluster:
        await cluster.master("master-one")
        await cluster.state("n1", registered(), finished("req_fit"), started("req_s"))
        await cluster.state("n2", registered())
        await cluster.decree(link("n1", "n2"))
        await cluster.state("n1", *(held(f"req_{i}", i + 1) for i in range(30)))
        await cluster.decisions(LeaseGranted)
        await (await cluster.bus("master-one")).close()
        second, _ = await cluster.master("master-two")
        await until("the second decides", lambda: second.mode == "active")
        await cluster.state("n1", *(held(f"req_x{i}", i + 31) for i in range(10)))
        await until("it has decided", lambda: second.state.hi >= 44)
        await (await cluster.bus("master-two")).close()  # else its history grows between two verifications
        await until("what it had sent is stored", _still(cluster), every_s=0.2)
        yield cluster


def _still(cluster: ClusterUnderTest) -> Callable[[], Awaitable[bool]]:
    """Return what tells whether the ledger has as many commits as when it was asked before, and they cover all facts."""
    seen = -1

    async def look() -> bool:
        nonlocal seen
        commits = await cluster.commits()
        before, seen = seen, len(commits)
        return before == seen and commits[-1].hi >= 44

    return look


async def test_it_finds_nothing_in_any_batch_and_from_the_newest_snapshot(lived: ClusterUnderTest):
    reports = [await lived.verify(fold_max=batch) for batch in (1, 7, 1000)]
    assert {report.line() for report in reports} == {f"audit verify: {reports[0].commits} commits, 0 differences"}
    snapshot = await lived.snapshot()
    report = await lived.verify(snapshot=snapshot)
    assert report.clean
    assert 0 < report.commits < reports[0].commits
    broken = await lived.verify(snapshot=(snapshot[0], snapshot[1] + b"x"))
    assert [difference.place for difference in broken.differences] == ["snapshot"]


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
async def test_it_finds_nothing_under_hash_seed(lived: ClusterUnderTest, hash_seed: str, tmp_path: Path):
    copy = tmp_path / "history.zip"
    await lived.export(copy)
    code = (
        "import asyncio, sys; from pathlib import Path; from adapters.log import bundle; from adapters.log.reader import Reader\n"
        "from adapters.log.verify import verify; copy = bundle.load(Path(sys.argv[1]))\n"
        "print(asyncio.run(verify(copy.streams, Reader(copy.header.cluster, sys.argv[2]))).line())"
    )
    secret = lived.server.credentials("master").cluster_mac_secret
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, str(copy), secret],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == (await lived.verify()).line()
    assert "0 differences" in run.stdout

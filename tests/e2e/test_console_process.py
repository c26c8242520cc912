"""`leaseway console` as a process: what it needs, what it refuses, how it ends."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from services.console.peers import STATE
from services.data_directory import Endpoints, held_data, holder_of, write_endpoints
from tests.support.console_pages import look
from tests.support.console_peers import NOBODY, Peer, serving, state, well
from tests.support.processes import leaseway
from tests.support.waiting import until

pytestmark = pytest.mark.real
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}


@asynccontextmanager
async def started(folder: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run `leaseway console` in `folder` until the block ends; yield it with its URL once it is ready."""
    process = await asyncio.create_subprocess_exec(
        *leaseway("console", "--port", "0", *flags),
        cwd=folder,
        env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line, (await process.stderr.read()).decode()
        told = json.loads(line)
        assert told["ready"] == "console"
        yield process, told["url"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def states(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["process"]: row["state"] for row in rows}


async def test_with_the_urls_of_a_cluster_it_needs_nothing_else_and_ends_at_once_though_somebody_waits(tmp_path: Path):
    """No data directory is made or held; a projector that does not answer holds nobody up."""
    silent = Peer({"/health": {"status": "ok"}})
    async with serving(Peer({"/health": well(), STATE: state()})) as master, serving(silent) as other:
        text = f'[urls]\nmaster = "{master.url}"\nprojector = "{other.url}"\ngateway = "{other.url}"\n'
        (tmp_path / "cluster.toml").write_text(text)
        async with (
            started(tmp_path, "--config", "cluster.toml", "--data", "data") as (process, url),
            aiohttp.ClientSession() as client,
        ):
            seen = await look(client, url)
            assert states(seen.rows("process")) == {"master": "active", "projector": "ok", "gateway": "ok"}
            assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.toml"]
            silent.open.clear()
            waiting = asyncio.create_task(look(client, f"{url}/decisions"))
            await until("somebody to wait for the projector", lambda: any("decisions" in path for path in silent.asked))
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 10) == 0
            assert process.stderr is not None
            assert "Traceback" not in (await process.stderr.read()).decode()
            await asyncio.wait({waiting})
            waiting.exception()


async def test_beside_leaseway_up_it_asks_those_that_the_data_directory_names_wherever_they_have_moved(tmp_path: Path):
    data = tmp_path / "data"
    peers = [Peer({"/health": well(), STATE: state(version=version)}) for version in (7, 8)]
    async with serving(peers[0]) as first, serving(peers[1]) as second, aiohttp.ClientSession() as client:
        with held_data(data):
            write_endpoints(data, Endpoints(master=first.url, projector=NOBODY, gateway=NOBODY))
            before = sorted(path.name for path in data.iterdir())
            async with started(tmp_path, "--data", "data") as (_, url):
                assert "/why?of=7" in (await look(client, url)).links()
                write_endpoints(data, Endpoints(master=second.url, projector=NOBODY, gateway=NOBODY))
                assert "/why?of=8" in (await look(client, url)).links()
                assert holder_of(data) == os.getpid()
                assert sorted(path.name for path in data.iterdir()) == before

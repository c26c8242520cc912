"""A cluster of real processes for a scenario: `leaseway up`, and a stub engine before each node."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec

from adapters.ports import free_port
from tests.real.layout import CONTEXT, SCALE, Layout, Place
from tests.support.processes import ROOT, Cluster, Node, _up
from tests.support.stub import listening
from tests.support.waiting import until

START_S = 60
_LINK_FLAGS = ("--load-if-unloaded", "--restore-after-borrow", "--different-weights")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine did: `run`, `load`, `failed`, `cancelled`, or `not_loaded`. Times are of the machine's clock, in seconds."""

    what: str
    key: str
    arrived: float
    began: float
    ended: float


class RealCluster:
    """Handles to the processes of one run."""

    def __init__(self, directory: Path, layout: Layout, stack: contextlib.AsyncExitStack) -> None:
        self.directory, self.layout = directory, layout
        self.parts = Cluster(directory, [Node(id=place.id) for place in layout.places], stack)
        self.engines: dict[int, asyncio.subprocess.Process] = {}
        self.ports = {place.number: free_port() for place in layout.places}
        (directory / "times.json").write_text(json.dumps(layout.times()))

    # -- engines

    async def start_engine(self, place: Place, *, first_load_s: float = 0.0) -> None:
        """Start the stub engine of a node at its port; it has loaded its first model after `first_load_s`."""
        flags = {
            "--port": self.ports[place.number],
            "--models": ",".join(model.local for model in place.models),
            "--loaded": place.models[0].local,
            "--first-load-s": first_load_s,
            "--load-s": place.load_s,
            "--speed": place.speed,
            "--times": self.directory / "times.json",
            "--journal": self._journal(place),
        }
        words = [text for flag, value in flags.items() for text in (flag, str(value))]
        self.engines[place.number] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.real.engine",
            *words,
            *(["--fails"] if place.fails else []),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
        )
        await listening(self.ports[place.number], timeout_s=START_S)

    async def kill_engine(self, place: Place) -> None:
        """Kill -9 the engine of a node."""
        process = self.engines[place.number]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    def _journal(self, place: Place) -> Path:
        return self.directory / f"engine-{place.id}.jsonl"

    def journal(self, place: Place) -> list[Line]:
        """Return what the engine of a node did, in order."""
        path = self._journal(place)
        rows = path.read_text().splitlines() if path.exists() else []
        return [msgspec.json.decode(row, type=Line) for row in rows]

    # -- nodes

    def config(self) -> str:
        """Return the text of `leaseway.toml`. Delays of a policy about work are scaled as the work is."""
        scenario = self.layout.scenario
        restore_us = round(scenario.restore_after_s / SCALE * 1e6)
        rows = ["[cluster.settings]", f'offload_restore_delay = "{restore_us}us"', 'offload_probe_idle = "500ms"']
        for place in self.layout.places:
            rows += ["[[nodes]]", f'id = "{place.id}"', f"depth = {scenario.depth}", *self._models(place)]
        return "\n".join(rows) + "\n"

    def _models(self, place: Place) -> Iterator[str]:
        url = f"http://127.0.0.1:{self.ports[place.number]}"
        for model in place.models:
            yield from ("[[nodes.models]]", f'id = "{model.id}"', f'local_id = "{model.local}"', f'url = "{url}"')
            yield from ('engine = "openai"', "slots = 1", f"context = {CONTEXT}")
            if len(place.models) > 1:
                yield from ('runtime = "engine"', f'load_url = "{url}/load"')
                yield from ["startup = true"] if model is place.models[0] else []

    async def ready(self) -> None:
        """Return once every process answers and the master sees every node with its first model ready."""
        missing = [""]

        async def is_ready() -> bool:
            missing[0] = await self._missing()
            return not missing[0]

        try:
            await until("a ready cluster", is_ready, timeout_s=START_S, every_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; {missing[0]}\n{self.parts.words()}") from None

    async def _missing(self) -> str:
        """Return what is not ready yet; empty if everything is."""
        code = self.parts.up.returncode
        assert code is None, f"`leaseway up` ended with code {code}"
        at = self.parts.endpoints
        for url in (at.gateway, at.master):
            status, body = await self.parts.get(f"{url}/health")
            if status != 200:
                return f"{url}/health says {status} {body}"
        state = await self.parts.state()
        nodes = {node["node"]: node for node in state.get("nodes", ()) if node["health"] == "healthy"}
        for place in self.layout.places:
            models = nodes.get(place.id, {}).get("models", ())
            if not any(model["id"] == place.models[0].id and model["ready"] for model in models):
                return f"{place.id} is not ready: {nodes.get(place.id)}"
        return ""

    async def link(self) -> None:
        """Make every link of the scenario at the command line, and return once the master knows them."""
        links = list(self.layout.links())
        for owner, helper in links:
            told = await self.parts.cli("links", "add", owner, helper, *_LINK_FLAGS)
            assert told.code == 0, told.err

        async def known() -> bool:
            return len((await self.parts.state()).get("links", ())) == len(links)

        await until("the links at the master", known, timeout_s=START_S)


@contextlib.asynccontextmanager
async def real_cluster(directory: Path, layout: Layout) -> AsyncIterator[RealCluster]:
    """Run a cluster while the block runs; when that fails, the last lines of its logs go along with the error."""
    async with contextlib.AsyncExitStack() as stack:
        running = RealCluster(directory, layout, stack)
        running.parts.http = await stack.enter_async_context(aiohttp.ClientSession())
        stack.push_async_callback(_kill_all, running)
        for place in layout.places:
            await running.start_engine(place)
        (directory / "leaseway.toml").write_text(running.config())
        running.parts.up = await stack.enter_async_context(_up(running.parts))
        try:
            await running.ready()
            yield running
        except BaseException as error:
            error.add_note(running.parts.words())
            raise


async def _kill_all(running: RealCluster) -> None:
    for place in running.layout.places:
        if place.number in running.engines:
            await running.kill_engine(place)

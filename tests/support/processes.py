"""A whole cluster of real processes in a folder of its own: `leaseway up` with engines and a journalling tap before each.

    nodes = [Node("studio"), Node("attic")]
    async with cluster(tmp_path, nodes) as running:
        await running.link("studio", "attic")
        outcomes = await burst(running, 10)
        running.kill("node:attic")

Parts have names: `nats-server`, `projector`, `master`, `gateway`, `node:<id>` (children of `leaseway up`, which restarts them),
and `engine:<id>` and `tap:<id>` (children of the test; `start_engine` brings one back at its port).
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from adapters.ports import free_port
from services.data_directory import Endpoints, read_endpoints
from tests.support.engines import Engine, tiny_engine
from tests.support.family import children, command_of
from tests.support.stub import stub_engine
from tests.support.tap import Line, Tap, read_journal, tap
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
UP_S = 60
CLI_S = 60
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node with one model and one engine. Its model's public id is `<id>-chat`, the engine's own name `local-<id>`."""

    id: str
    depth: int = 2
    slots: int = 1
    ctx: int = 8192
    layers: int = 2
    """More make its engine slower."""
    stub: bool = False
    """A canned engine instead of llama.cpp: only where its time must be stated."""
    first_byte_us: int = 0
    """Of a stub: how long it works on a request."""

    @property
    def model(self) -> str:
        """Its model's public id."""
        return f"{self.id}-chat"


class Told(msgspec.Struct, frozen=True):
    """What a command line said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


class Cluster:
    """Handles to a running cluster."""

    def __init__(self, directory: Path, nodes: Sequence[Node], stack: contextlib.AsyncExitStack) -> None:
        self.directory, self.nodes = directory, {node.id: node for node in nodes}
        self.data = directory / "data"
        self.engines: dict[str, Engine] = {}
        self.taps: dict[str, Tap] = {}
        self.http: aiohttp.ClientSession
        self.up: asyncio.subprocess.Process
        self._stack = stack
        self._ports: dict[str, int] = {}

    @property
    def endpoints(self) -> Endpoints:
        """Where its processes listen."""
        return read_endpoints(self.data)

    # -- parts

    async def start_engine(self, node: str) -> None:
        """Start the engine of `node`, at the port it had before."""
        plan = self.nodes[node]
        port = self._ports.setdefault(node, free_port())
        if plan.stub:
            context = stub_engine(port=port, model=f"local-{node}", slots=plan.slots, first_byte_us=plan.first_byte_us)
        else:
            context = tiny_engine(
                port=port, alias=f"local-{node}", slots=plan.slots, ctx=plan.ctx * plan.slots, layers=plan.layers
            )
        self.engines[node] = await self._stack.enter_async_context(context)

    async def start_tap(self, node: str) -> None:
        """Start the tap before the engine of `node`."""
        context = tap(self.engines[node].url, self.directory / f"tap-{node}")
        self.taps[node] = await self._stack.enter_async_context(context)

    def pid(self, part: str) -> int | None:
        """Return the process id of a part; None while it does not run."""
        kind, _, name = part.partition(":")
        if kind in {"engine", "tap"}:
            process = (self.engines if kind == "engine" else self.taps)[name].process
            return process.pid if process.returncode is None else None
        return next((pid for pid, command in children(self.up.pid) if part_of(command) == part), None)

    def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a part (by default kill -9) and return its process id."""
        pid = self.pid(part)
        assert pid is not None, f"{part} does not run; running: {sorted(self.parts())}"
        os.kill(pid, number)
        return pid

    def parts(self) -> Iterator[str]:
        """Yield the supervised parts that run."""
        yield from (part for _, command in children(self.up.pid) if (part := part_of(command)))

    async def replaced(self, part: str, pid: int, *, timeout_s: float = 30) -> None:
        """Return once `part` runs again as another process than `pid`, and everything is ready."""
        await until(f"a new {part}", lambda: self.pid(part) not in {None, pid}, timeout_s=timeout_s)
        await self.ready(timeout_s=timeout_s)

    async def ready(self, *, timeout_s: float = UP_S) -> None:
        """Return once gateway, master and projector are well and the master sees every node serve its model."""
        missing = ["nothing was asked yet"]

        async def is_ready() -> bool:
            missing[0] = await self._missing()
            return not missing[0]

        try:
            await until("a ready cluster", is_ready, timeout_s=timeout_s, every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; {missing[0]}\n{self.words()}") from None

    async def _missing(self) -> str:
        """Return what keeps the cluster from being ready; empty if nothing does."""
        assert self.up.returncode is None, f"`leaseway up` ended with code {self.up.returncode}:\n{self.words()}"
        at = self.endpoints
        for url in (at.gateway, at.projector, at.master, *at.nodes.values()):
            status, body = await self.get(f"{url}/health")
            if status != 200:
                return f"{url}/health says {status} {body}"
        state = await self.state()
        serving = {
            node["node"]
            for node in state.get("nodes", ())
            if node["health"] == "healthy" and all(model["ready"] for model in node["models"])
        }
        return "" if serving >= set(self.nodes) else f"the master's state is {state}"

    # -- questions

    async def get(self, url: str) -> tuple[int, Any]:
        """Return (status, JSON body) of a GET; (0, None) if nobody answers."""
        try:
            async with self.http.get(url, timeout=aiohttp.ClientTimeout(5)) as answer:
                return answer.status, await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, None

    async def state(self) -> dict[str, Any]:
        """Return the master's state; empty while it does not answer."""
        return (await self.get(f"{self.endpoints.master}/admin/v1/state"))[1] or {}

    def journals(self) -> list[Line]:
        """Return the lines of every tap, in order of time."""
        lines = [line for node in self.nodes for line in read_journal(self.directory / f"tap-{node}")]
        return sorted(lines, key=lambda line: line.at_us)

    async def cli(self, *arguments: str, timeout_s: float = CLI_S) -> Told:
        """Return what `leaseway <arguments> --data <data>` said."""
        process = await asyncio.create_subprocess_exec(
            *leaseway(*arguments, "--data", str(self.data)),
            cwd=ROOT,
            env=_ENVIRONMENT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        return Told(process.returncode or 0, out.decode(), err.decode())

    async def link(self, owner: str, helper: str) -> None:
        """Let `owner` lend to `helper`, and return once the master knows."""
        ends = [f"{node}/{self.nodes[node].model}" for node in (owner, helper)]
        told = await self.cli("links", "add", *ends, "--different-weights")
        assert told.code == 0, told.err
        await until("the link at the master", self._knows_link(owner, helper))

    def _knows_link(self, owner: str, helper: str) -> Any:
        async def knows() -> bool:
            links = (await self.state()).get("links", ())
            return any((link["owner"], link["helper"]) == (owner, helper) for link in links)

        return knows

    async def events(self) -> list[dict[str, Any]]:
        """Return every stored fact, as `leaseway events tail` prints it."""
        told = await self.cli("events", "tail", "--since", "1", "--no-follow", "--json")
        assert told.code == 0, told.err
        return told.rows

    def words(self, lines: int = 15) -> str:
        """Return the last lines of every log, for a failure's report."""
        logs = sorted([*self.data.glob("logs/*.log"), self.directory / "up.log"])
        tails = ((path, path.read_text(errors="replace").splitlines()[-lines:]) for path in logs if path.exists())
        return "\n".join("\n".join([f"-- {path.name}", *tail]) for path, tail in tails)


def leaseway(*arguments: str) -> tuple[str, ...]:
    """Return the command line of our own program, in this interpreter."""
    return (sys.executable, "-m", "services.cli", *arguments)


def part_of(command: Sequence[str]) -> str:
    """Return the part's name by its command line; empty if it is none of ours."""
    if command and Path(command[0]).name == "nats-server":
        return "nats-server"
    if "services.cli" not in command:
        return ""
    words = command[command.index("services.cli") + 1 :]
    if words[:1] == ["node"]:
        return "node:" + next((b for a, b in itertools.pairwise(words) if a == "--node"), "")
    return words[0] if words else ""


def written_config(nodes: Sequence[Node], urls: Mapping[str, str], settings: Mapping[str, int], extra: str) -> str:
    """Return the text of `leaseway.toml`."""
    tables = ["[cluster.settings]", *(f"{name} = {value}" for name, value in settings.items()), extra]
    for node in nodes:
        tables += ["[[nodes]]", f'id = "{node.id}"', f"depth = {node.depth}", "[[nodes.models]]"]
        tables += [f'id = "{node.model}"', f'local_id = "local-{node.id}"', f'url = "{urls[node.id]}"']
        tables += [f'engine = "{"openai" if node.stub else "llama.cpp"}"', f"slots = {node.slots}"]
        tables += [f"context = {node.ctx}"]
    return "\n".join(tables) + "\n"


@contextlib.asynccontextmanager
async def cluster(
    directory: Path, nodes: Sequence[Node], *, settings: Mapping[str, int] | None = None, config: str = ""
) -> AsyncIterator[Cluster]:
    """Run a cluster while the block runs. `config`: more lines of leaseway.toml, before the nodes.

    When the block fails, the last log lines of every part go along with the error.
    """
    async with contextlib.AsyncExitStack() as stack:
        running = Cluster(directory, nodes, stack)
        running.http = await stack.enter_async_context(aiohttp.ClientSession())
        for node in nodes:
            await running.start_engine(node.id)
            await running.start_tap(node.id)
        urls = {node: front.url for node, front in running.taps.items()}
        (directory / "leaseway.toml").write_text(written_config(nodes, urls, settings or {}, config))
        running.up = await stack.enter_async_context(_up(running))
        try:
            await running.ready()
            yield running
        except BaseException as error:
            error.add_note(running.words())
            raise


@contextlib.asynccontextmanager
async def cluster_of(directory: Path, config: str) -> AsyncIterator[Cluster]:
    """Run a cluster whose nodes start their engines themselves, as the text of `leaseway.toml` says, while the block runs."""
    async with contextlib.AsyncExitStack() as stack:
        running = Cluster(directory, [], stack)
        running.http = await stack.enter_async_context(aiohttp.ClientSession())
        (directory / "leaseway.toml").write_text(config)
        running.up = await stack.enter_async_context(_up(running))
        try:
            await running.ready()
            yield running
        except BaseException as error:
            error.add_note(running.words())
            raise


@contextlib.asynccontextmanager
async def _up(running: Cluster) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `leaseway up`; at the end ask it to stop, and kill what is left of its family."""
    flags = ("--config", str(running.directory / "leaseway.toml"), "--data", str(running.data), "--port-base", "0")
    with (running.directory / "up.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *leaseway("up", *flags),
            cwd=ROOT,
            env=_ENVIRONMENT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        family = children(process.pid)
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 20)
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pid, command in family:
            if command_of(pid) == command:
                os.kill(pid, signal.SIGKILL)

"""What a node costs a request, against a bare aiohttp proxy in the same run: requests/s, latency, processor time.

python -m tests.bench.bench_proxy [--seconds 2] [--telemetry]

An engine stub in C and a load generator in C stand at both ends; the node is a whole one, with its facts on a real bus.
Machine and load matter: compare columns of one run, never of two.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from adapters.ports import free_port
from services.config import BusConfig, Config, HttpConfig, NodeConfig, NodeModel, TelemetryConfig
from services.gateway.main import run as run_gateway
from services.node.main import run as run_node
from services.telemetry.instruments import Instruments
from tests.bench.arguments import parser_of
from tests.support.collector import collector
from tests.support.nats import provisioned_server
from tests.support.stub import compiled, listening, stub_engine
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LOAD = Path(__file__).parent / "load.c"
PATH = "/v1/chat/completions"
MODEL = "stub"
SLOTS = 64
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * 900}], "max_tokens": 64})
STREAM = json.dumps({**json.loads(BODY), "stream": True})


async def serve_bare(engine: str, port: int) -> None:
    """Be the least proxy that aiohttp can be: nothing read, nothing checked, nothing rewritten."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def forward(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with session.post(engine + request.rel_url.raw_path, data=body, headers=headers) as answer:
            if answer.content_type != "text/event-stream":
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    runner = web.ServerRunner(web.Server(forward), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def serve(options: argparse.Namespace) -> None:
    """Be one of the parts."""
    if options.serve == "bare":
        await serve_bare(options.engine, options.port)
    model = NodeModel(id=MODEL, url=options.engine, slots=SLOTS)
    if options.serve == "node unmeasured":
        for name in ("add", "observe"):
            setattr(Instruments, name, lambda *_words, **_more: None)
    config = Config(
        telemetry=TelemetryConfig(otlp_url=options.otlp),
        bus=BusConfig(url=options.bus),
        http=HttpConfig(port=options.port),
        node=NodeConfig(id="n1", models=(model,)),
        data=Path(options.data),
    )
    run = run_gateway if options.serve == "gateway" else run_node
    await run(config, lambda _: None, asyncio.Event())


@contextlib.asynccontextmanager
async def part(kind: str, **options: str) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """Run one part as a process of its own; give its port."""
    port = free_port()
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = (sys.executable, "-m", "tests.bench.bench_proxy", "--serve", kind, "--port", str(port), *flags)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        await listening(port)
        await until_served(port)
        yield port, process
    finally:
        process.kill()
        await process.wait()


async def until_served(port: int) -> None:
    """Return once the part answers a request."""

    async def served() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            headers = {"Content-Type": "application/json"}
            async with client.post(f"http://127.0.0.1:{port}{PATH}", data=BODY, headers=headers) as got:
                return got.status == 200
        return False

    async with aiohttp.ClientSession() as client:
        await until("the part to serve", served, timeout_s=30)


def cpu_us(pid: int | None) -> int:
    """Return the processor time of a process until now."""
    if pid is None:
        return 0
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * 1_000_000 // os.sysconf("SC_CLK_TCK")


async def load(port: int, clients: int, seconds: float, body: Path, *flags: str) -> dict[str, Any]:
    """Return what the load generator measured."""
    words = ["-p", port, "-c", clients, "-t", seconds, "-u", PATH, "-b", body, *flags]
    process = await asyncio.create_subprocess_exec(
        str(compiled(LOAD)), *map(str, words), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    measured: dict[str, Any] = json.loads(out)
    return measured


async def measure(name: str, port: int, pid: int | None, folder: Path, seconds: float) -> None:
    """Print one row."""
    whole, streamed = folder / "whole.json", folder / "stream.json"
    whole.write_text(BODY)
    streamed.write_text(STREAM)
    one = await load(port, 1, seconds, whole)
    before = cpu_us(pid)
    many = await load(port, 32, seconds, whole)
    spent_us = cpu_us(pid) - before
    stream = await load(port, 8, seconds, streamed, "-s")
    one_us, many_us = one["lat_us"], many["lat_us"]
    latencies = f"{one_us['p50']:>9}{one_us['p99']:>9}{many['rps']:>9.0f}{many_us['p50']:>9}{many_us['p99']:>9}"
    spent = f"{spent_us / max(1, many['ok']):>9.0f}{stream['chunks_per_s']:>11.0f}"
    failed = sum(each["non2xx"] + each["errors"] for each in (one, many, stream))
    print(f"{name:<14}{latencies}{spent}{failed:>8}", flush=True)


async def main(seconds: float) -> None:
    """Measure every part against the same stub. Times in microseconds; processor time is that of the part named first."""
    print(
        f"{'':<14}{'c1 p50':>9}{'c1 p99':>9}{'rps c32':>9}{'p50':>9}{'p99':>9}{'CPU/req':>9}{'chunks/s':>11}{'failed':>8}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            stub_engine(model=MODEL, slots=SLOTS) as engine,
            provisioned_server(folder / "data", durability="relaxed") as bus,
        ):
            port = int(engine.url.rsplit(":", 1)[1])
            await measure("direct", port, None, folder, seconds)
            async with part("bare", engine=engine.url) as (port, process):
                await measure("bare aiohttp", port, process.pid, folder, seconds)
            wires = {"bus": bus.url, "data": str(bus.data)}
            async with part("node", engine=engine.url, **wires) as (port, process):
                await measure("node", port, process.pid, folder, seconds)
                async with part("gateway", **wires) as (front, gateway):
                    await measure("gateway, node", front, gateway.pid, folder, seconds)


async def telemetry(seconds: float, rounds: int = 7) -> None:
    """Print the processor time of a request at a node that measures nothing, one that measures, and one that traces all.

    They take turns, so that what else the machine does meets each of them; the median of the rounds counts.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "whole.json"
        body.write_text(BODY)
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(stub_engine(model=MODEL, slots=SLOTS))
            got = await stack.enter_async_context(collector())
            sinks = {"node unmeasured": "", "node": "", "node traced": got.url}
            parts = {}
            for kind, otlp in sinks.items():
                bus = await stack.enter_async_context(provisioned_server(folder / kind, durability="relaxed"))
                wires = {"bus": bus.url, "data": str(bus.data), "otlp": otlp, "engine": engine.url}
                parts[kind] = await stack.enter_async_context(part(kind, **wires))
            spent: dict[str, list[float]] = {kind: [] for kind in parts}
            for _ in range(rounds):
                for kind, (port, process) in parts.items():
                    before = cpu_us(process.pid)
                    done = await load(port, 16, seconds, body)
                    spent[kind].append((cpu_us(process.pid) - before) / max(1, done["ok"]))
    least = statistics.median(spent["node unmeasured"])
    for kind, each in spent.items():
        told = statistics.median(each)
        print(
            f"{kind:<16}{told:>8.0f} us/request{told / least:>8.3f} of unmeasured   rounds {sorted(map(round, each))}"
        )


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--serve", default="")
    parser.add_argument("--telemetry", action="store_true", help="compare a node with and without metrics and traces")
    for flag in ("--engine", "--bus", "--data", "--otlp"):
        parser.add_argument(flag, default="")
    parser.add_argument("--port", type=int, default=0)
    parsed = parser.parse_args()
    measured = telemetry if parsed.telemetry else main
    asyncio.run(serve(parsed) if parsed.serve else measured(parsed.seconds))

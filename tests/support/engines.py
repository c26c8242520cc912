"""A real llama.cpp server on a free port, with the tiny model: `async with tiny_engine(slots=2) as engine: ...`."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from tests.support.tiny_model import tiny_model

ROOT = Path(__file__).parents[2]
READY_S = 30


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine process."""

    url: str
    """`http://127.0.0.1:<port>`, without /v1."""
    alias: str
    """The engine's own name for its model."""
    process: asyncio.subprocess.Process
    slots: int

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the process: SIGKILL, SIGSTOP, SIGCONT, SIGTERM."""
        self.process.send_signal(number)


def engine_command(
    *, slots: int = 1, ctx: int = 4096, alias: str = "tiny", layers: int = 2, port: int | str = 0
) -> tuple[str, ...]:
    """Return the command of an engine with the tiny model; `port` may be a placeholder such as `{port}`."""
    options: dict[str, object] = {"model": tiny_model(layers=layers), "alias": alias, "port": port}
    options |= {"parallel": slots, "ctx": max(ctx, 64 * slots), "threads": 1}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return (sys.executable, "-m", "adapters.engines.llama_server", *flags, "--die-with-parent")


@contextlib.asynccontextmanager
async def tiny_engine(
    *, slots: int = 1, ctx: int = 4096, alias: str = "tiny", layers: int = 2, port: int = 0
) -> AsyncIterator[Engine]:
    """Run a real engine while the block runs. `ctx` tokens are shared by all slots; more `layers` make it slower."""
    command = engine_command(slots=slots, ctx=ctx, alias=alias, layers=layers, port=port)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        yield Engine(url=await _ready_url(process), alias=alias, process=process, slots=slots)
    finally:
        await _end(process)


async def _ready_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), READY_S)).decode()
    assert line.startswith("engine ready "), f"the engine said {line!r} and did not start"
    return line.split()[2]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process, stopped or not, and close its pipe, so that no transport outlives the loop."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.stdout is not None:
        await process.stdout.read()
    await process.wait()

"""A script of the documentation as a process of its own, without our code on its path."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Script:
    """A running script and the lines that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode().rstrip("\n"))

    def has(self, count: int) -> bool:
        """Tell whether it has printed so many lines; raise if it ended first."""
        assert self.process.returncode is None or len(self.lines) >= count, self.lines
        return len(self.lines) >= count

    async def ended(self) -> list[str]:
        """Return its lines once it has ended, well."""
        async with asyncio.timeout(20):
            assert await self.process.wait() == 0
            await self._reading
        return self.lines

    async def stop(self) -> None:
        """End it at once."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._reading


@asynccontextmanager
async def running(path: Path | str, *arguments: str, program: str = "") -> AsyncIterator[Script]:
    """Run a Python script (isolated: no working directory, no PYTHONPATH), or `program`, for the length of the block."""
    command = [program, str(path)] if program else [sys.executable, "-I", str(path)]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=asyncio.subprocess.PIPE, env=environment, limit=1 << 22
    )
    script = Script(process)
    try:
        yield script
    finally:
        await script.stop()

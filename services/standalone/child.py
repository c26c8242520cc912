"""One supervised process: started, waited for until it is ready, stopped; its log in a file."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from domain.errors import BadConfigError, ChildFailedError
from services.lifecycle import EXIT_CALLER

READY_S: Final = 60.0
KILL_S: Final = 5.0
"""Time that a process has after it was asked to end at once."""
_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
_LINE_BYTES_MAX: Final = 1024 * 1024


class Child(Protocol):
    """What the supervisor needs of a process, whatever starts it."""

    name: str

    async def start(self) -> str:
        """Start it and return its url once it is ready; raise ChildFailedError or BadConfigError if it never is."""
        ...

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End it: in order within `grace_s`, then at once. It may be stopped twice, or before it started."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        ...


class ProcessChild:
    """A `leaseway <command> --supervised`.

    Its standard input stays open as long as this process lives, so that it drains when we are killed; its first line on
    standard output says that it is ready.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, extra_environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._command, self._log = tuple(command), log
        self._environment = {**os.environ, **(extra_environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._rest: asyncio.Task[None] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> str:
        """Start it and return its url once it is ready."""
        self._roll_log()
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            # its own session: Ctrl-C at the terminal reaches it through us, in order
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
        try:
            async with asyncio.timeout(READY_S):
                url = await self._ready()
        except TimeoutError:
            await self.stop(0)
            raise ChildFailedError(f"{self.name}: not ready within {READY_S:.0f} s: {self.last_words()}") from None

        self._rest = asyncio.create_task(self._discard(self._process), name=f"output of {self.name}")
        return url

    @staticmethod
    async def _discard(process: asyncio.subprocess.Process) -> None:
        """Read what else comes on standard output: a full pipe would hold up the process, or an engine that it started."""
        assert process.stdout is not None
        while await process.stdout.read(65536):
            pass

    async def _ready(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict) and "ready" in said:
                    return str(said.get("url", ""))
        code = await self._process.wait()
        words = self.last_words()
        raise (BadConfigError if code == EXIT_CALLER else ChildFailedError)(
            words or f"{self.name}: ended with code {code}"
        )

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        assert self._process is not None, "nothing was started"
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Ask it to drain; after `grace_s` ask again, which is fast; then kill it, with all that it started."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        for patience_s in (grace_s, KILL_S):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await process.wait()
                    return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def last_words(self) -> str:
        """Return the last line that says something to people, without its `leaseway <command>: ` in front."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read()[-65536:].decode(errors="replace").splitlines()
        plain = [line for line in lines if line.strip() and not line.startswith("{")]
        return plain[-1].removeprefix("leaseway ") if plain else (lines[-1] if lines else "")

    def _roll_log(self) -> None:
        """Keep one old log of a process, so that no log grows for ever over restarts."""
        self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES_MAX:
            self._log.replace(self._log.with_suffix(".1.log"))

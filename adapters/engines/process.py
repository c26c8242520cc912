"""An engine as a child process: started on a free port with a key of its own, ended without leaving anything behind."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from adapters.clock import random_token
from domain.errors import BadConfigError

HOST: Final = "127.0.0.1"
KEY_VARIABLES: Final = ("LEASEWAY_ENGINE_KEY", "LLAMA_API_KEY")
"""Environment variables in which an engine finds the key that it is to ask for: never on a command line that `ps` shows."""
_PORT_MARK: Final = "{port}"
_TERMINATE_S: Final = 5.0
_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG of Linux."""


class EngineProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A started engine process; whether it is ready its health says."""

    url: str
    key: str
    process: asyncio.subprocess.Process

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        return await self.process.wait()

    async def stop(self) -> None:
        """End it: SIGTERM, and after a while SIGKILL; and at once what it has left behind, also if it has ended by itself."""
        if self.process.returncode is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TERMINATE_S):
                    await self.process.wait()
        # a worker that outlives its launcher would hold memory and port for nobody
        self._signal(signal.SIGKILL)
        await self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Signal its process group: what it has started ends too. Nothing happens if nobody of it is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


async def start(command: Sequence[str], *, port: int = 0) -> EngineProcess:
    """Start `command`, in which `{port}` is replaced by `port` (0: a free one).

    Raises:
        BadConfigError: the program is not there or may not be started.
    """
    chosen, key = port or _free_port(), random_token(32)
    words = [word.replace(_PORT_MARK, str(chosen)) for word in command]
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(KEY_VARIABLES, key)},
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        raise BadConfigError(f"engine command {words[0]!r}: {error.strerror or error}") from None
    return EngineProcess(url=f"http://{HOST}:{chosen}", key=key, process=process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the node is killed: an engine without a node would hold memory for nobody."""
    if _LIBC is not None:
        _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)

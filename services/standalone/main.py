"""`leaseway up`: every process on one machine, started in order, kept running, stopped in reverse order."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from adapters.clickhouse.pages import BadQueryError
from adapters.clock import SystemClock, random_fraction
from adapters.http.webhook import key_of
from adapters.nats.server import check_version, find_binary
from adapters.ports import HOST
from domain.errors import BadConfigError, LeasewayError
from services.config import Config
from services.config_file import OWN_COMMAND, OWN_NAME, stated_nodes
from services.config_rules import missing_programs
from services.data_directory import Endpoints, check_data, require_unheld, write_endpoints
from services.projector.since import since_of
from services.projector.webhooks import secret_of
from services.standalone.bus import BusChild, end_leftover, leftover
from services.standalone.child import KILL_S, Child, ProcessChild
from services.standalone.ports import Ports, endpoints, require_free
from services.standalone.provisioning import provision_all

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 10.0
HEALTHY_S: Final = 30.0
"""A process that lived this long starts its back-off anew."""
_LEFTOVER_S: Final = 10.0

Progress = Callable[[str], None]
_LOG = logging.getLogger(__name__)


class Standalone:
    """All processes of one machine. `start`, then `keep` as long as they should run, then `stop`."""

    def __init__(self, config: Config, ports: Ports, *, config_path: Path | None = None) -> None:
        self.config, self.ports = config, ports
        self.nodes = stated_nodes(config)
        self.endpoints = endpoints(ports, self.nodes)
        self._config_path = config_path
        self._started: list[tuple[Child, ...]] = []

    def check(self) -> None:
        """Return if everything can be started; nothing has been changed. The data directory must not be held yet.

        Raises:
            BadConfigError: no node is stated, a webhook cannot be signed or begun as stated, a program is missing or too old, or
                the data directory is of another version.
            DataInUseError, PortInUseError: another process has the data directory or a port.
        """
        if not self.nodes:
            raise BadConfigError(
                "nodes: at least one must be stated as [node] or [[nodes]], got none; "
                "see docs/start.md, or try `leaseway demo`"
            )
        if self.config.http.public_url:
            raise BadConfigError(
                "http.public_url: must not be stated for `leaseway up`, where each node has a URL of its own at loopback and all "
                f"would state this one, got {self.config.http.public_url!r}"
            )
        for node in self.nodes:
            if not node.models:
                raise BadConfigError(f"node {node.id}: models: must hold at least one, got none; see docs/start.md")
            for problem in missing_programs(node):
                if problem.value != OWN_NAME:
                    raise BadConfigError(f"{problem.key}: {problem.rule}, got {problem.value!r}")
        _check_webhooks(self.config)
        check_version(find_binary())
        check_data(self.config.data)
        require_unheld(self.config.data)
        if leftover(self.config.data) is None:
            require_free(self.ports)

    async def start(self, progress: Progress) -> None:
        """Start everything in order; `progress` is told what is being waited for.

        Raises:
            LeasewayError: something did not start; what had started has been stopped again.
        """
        await self._make_room()
        try:
            for what, children in self._stages():
                progress(f"starting {what}")
                self._started.append(children)
                async with asyncio.TaskGroup() as group:
                    for child in children:
                        group.create_task(self._start_one(child))
                if what == "nats-server":
                    progress("provisioning")
                    await provision_all(self.config, self.endpoints, from_file=self._config_path is not None)
                    write_endpoints(self.config.data, self.endpoints)  # the master looks there for the archive
        except BaseException:
            await self.stop(grace_s=KILL_S)
            raise

    async def keep(self) -> None:
        """Start again whatever ends, with back-off, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for children in self._started:
                for child in children:
                    group.create_task(self._keep_one(child))

    async def stop(self, *, grace_s: float) -> None:
        """Stop everything in reverse order of start; each stage has `grace_s` to drain. May be called again if cancelled."""
        while self._started:
            await asyncio.gather(*(child.stop(grace_s) for child in self._started[-1]))
            self._started.pop()

    def pids(self) -> dict[str, int]:
        """Return the process id of every child that runs, by name."""
        return {child.name: child.pid for children in self._started for child in children if child.pid is not None}

    async def _make_room(self) -> None:
        """End what a killed supervisor left behind, then see that every port is free."""
        pid = leftover(self.config.data)
        if pid is None:
            return require_free(self.ports)
        _LOG.warning("leftover_ended", extra={"pid": pid})
        end_leftover(pid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEFTOVER_S):
                while not _are_free(self.ports):  # noqa: ASYNC110  # the kernel tells nobody when a port is free
                    await asyncio.sleep(0.05)
        return require_free(self.ports)

    def _stages(self) -> Sequence[tuple[str, tuple[Child, ...]]]:
        ports = self.ports
        bus = BusChild(self.config.data, cluster=self.config.cluster.name, port=ports.nats, monitor_port=ports.monitor)
        return (
            ("nats-server", (bus,)),
            ("projector", (self._service("projector", ports.projector),)),
            ("master", (self._service("master", ports.master),)),
            ("nodes", tuple(self._node(at) for at in range(len(self.nodes)))),
            (
                "gateway and console",
                (
                    self._service("gateway", ports.gateway, host=self.config.http.host),
                    self._service("console", ports.console),
                ),
            ),
        )

    def _node(self, at: int) -> ProcessChild:
        node, engines = self.nodes[at].id, self.ports.engines[at]
        extra = ["--node", node, *(["--engine-ports", str(engines[0])] if engines else [])]
        return self._service("node", self.ports.nodes[at], *extra, name=f"node-{node}")

    def _service(self, kind: str, port: int, *extra: str, host: str = HOST, name: str = "") -> ProcessChild:
        config = ["--config", str(self._config_path)] if self._config_path is not None else []
        where = ["--data", str(self.config.data), "--host", host, "--port", str(port)]
        where += ["--bus", self.endpoints.nats] if kind != "console" else []
        command = [*OWN_COMMAND, kind, "--supervised", *config, *where, *extra]
        log = self.config.data / "logs" / f"{name or kind}.log"
        resolved = {"LEASEWAY_BUS_DURABILITY": self.config.bus.durability}  # our default is not that of a process alone
        return ProcessChild(name or kind, command, log, extra_environment=resolved)

    async def _start_one(self, child: Child) -> None:
        clock = SystemClock()
        began_us = clock.monotonic_us()
        url = await child.start()
        took_ms = (clock.monotonic_us() - began_us) // 1000
        _LOG.info("child_ready", extra={"child": child.name, "pid": child.pid, "url": url, "took_ms": took_ms})

    async def _keep_one(self, child: Child) -> None:
        clock, delay_s = SystemClock(), BACKOFF_FIRST_S
        while True:
            began_us = clock.monotonic_us()
            code = await child.ended()
            if clock.monotonic_us() - began_us > HEALTHY_S * 1e6:
                delay_s = BACKOFF_FIRST_S
            _LOG.warning("child_ended", extra={"child": child.name, "code": code, "again_in_s": round(delay_s, 2)})
            await asyncio.sleep(delay_s * (0.5 + random_fraction()))
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
            try:
                await self._start_one(child)
            except (LeasewayError, OSError) as error:
                # a machine that has no room or no process for it now may have it later
                _LOG.error("child_not_ready", extra={"child": child.name, "why": str(error)})


def _check_webhooks(config: Config) -> None:
    """Return if the projector can work with every webhook: not each process of a cluster has the files of their secrets."""
    for hook in config.webhooks:
        try:
            key_of(secret_of(hook))
            since_of(hook.since)
        except (BadConfigError, BadQueryError) as error:
            raise BadConfigError(f"webhooks: {hook.name}: {error}") from None


def _are_free(ports: Ports) -> bool:
    try:
        require_free(ports)
    except LeasewayError:
        return False
    return True


class StoppedEarlyError(Exception):
    """Asked to stop before everything had started; all of it is stopped again."""


@asynccontextmanager
async def running(
    standalone: Standalone, progress: Progress, stop: asyncio.Event | None = None
) -> AsyncIterator[Endpoints]:
    """Have everything run and kept running as long as the block lasts.

    A cancelled block stops everything at once, any other end drains. `stop` ends the start.

    Raises:
        StoppedEarlyError: `stop` was set while everything was being started.
        LeasewayError: something did not start.
    """
    await _start_or_stop(standalone, progress, stop or asyncio.Event())
    keeper = asyncio.ensure_future(standalone.keep())
    grace_s = standalone.config.http.limits.drain_s + KILL_S
    try:
        yield standalone.endpoints
    except asyncio.CancelledError:
        grace_s = 0.0
        raise
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        progress("stopping")
        try:
            await standalone.stop(grace_s=grace_s)
        except asyncio.CancelledError:  # asked again, while it drained
            await standalone.stop(grace_s=0)
            raise


async def _start_or_stop(standalone: Standalone, progress: Progress, stop: asyncio.Event) -> None:
    starting, asked = asyncio.ensure_future(standalone.start(progress)), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    if starting.cancelled():
        raise StoppedEarlyError
    await starting

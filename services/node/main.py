"""The node process: engines, surfaces, bus; in that order, and each without waiting for the next."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from adapters.clock import SystemClock
from adapters.keys import Credentials, load_credentials
from adapters.nats.connection import connect
from adapters.profiles import FileProfiles
from domain.errors import BadConfigError, PortInUseError
from domain.events import Draining, Stopped
from services.config import Config
from services.node.node import Node
from services.node.profiles import Profiles
from services.node.wires import Wires
from services.telemetry.tracing import tracing_of

_LOG: Final = logging.getLogger("leaseway.node")
ENGINES_S: Final = 30.0
"""How long `registered` waits for engines, so that it can tell their context and that they are ready."""
_BUS_S: Final = 1.0
_SAY_S: Final = 5.0


async def run(config: Config, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Be the node `config.node.id` until `stop` is set, then drain; `ready` is called with the URL once it serves.

    Raises:
        BadConfigError: the configuration cannot be that of a node.
        PortInUseError: the port is taken.
    """
    credentials = _credentials(config)
    clock = SystemClock()
    tracing = tracing_of(config, "node", config.node.id)
    node = Node(config, credentials, clock, tracing=tracing)
    bus = await connect(config.bus.url, credentials, name=node.id, wait_s=_BUS_S, required=False)
    try:
        wires = Wires(node, bus, config, credentials, clock)
        await wires.load_witness()
        profiles = Profiles(FileProfiles(config.data / "spool" / f"{node.id}.profiles.json"), node.models)
        await profiles.load()
        async with asyncio.TaskGroup() as group:
            tasks = _start(group, node.engines())
            url = await _listen(config, node)
            await _first_of(node.engines_settled(ENGINES_S), stop)
            node.register(wires.producer.state, config.http.public_url or url)
            tasks += _start(group, [*wires.tasks(), profiles.run()])
            ready(url)
            await stop.wait()
            await _end(config, node, wires)
            await profiles.keep()
            for task in tasks:
                task.cancel()
    finally:
        await node.close()
        await bus.close()
        await tracing.close()


def _credentials(config: Config) -> Credentials:
    node = config.node.id
    if not node:
        raise BadConfigError("node.id: must be stated, got nothing")
    if not config.node.models:
        raise BadConfigError(f"node {node}: models: must hold at least one, got none")
    credentials = load_credentials(config.bus.credentials or config.data / "keys" / f"{node}.json")
    if credentials.role != "node" or credentials.name != node:
        raise BadConfigError(f"credentials of node {node}: are those of {credentials.role} {credentials.name}")
    return credentials


async def _listen(config: Config, node: Node) -> str:
    host, port = config.http.host, config.http.port
    try:
        port = await node.server.start(host, port)
    except OSError as error:
        raise PortInUseError(f"node {node.id}: port {port} on {host}: {error.strerror or error}") from None
    return f"http://{host}:{port}"


async def _first_of(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    tasks = {asyncio.create_task(work), asyncio.create_task(stop.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end(config: Config, node: Node, wires: Wires) -> None:
    """Drain: take nothing new, let end what is here, say so."""
    node.state(Draining())
    await node.server.stop_listening()
    whole = await node.drain(config.http.limits.drain_s)
    node.state(Stopped())
    said = await wires.producer.drained(_SAY_S if wires.producer.bus_ok else 0.1)
    _LOG.info("drained", extra={"node": node.id, "whole": whole, "all_said": said})


def _start(group: asyncio.TaskGroup, work: list[Coroutine[Any, Any, None]]) -> list["asyncio.Task[None]"]:
    return [group.create_task(each) for each in work]

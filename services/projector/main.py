"""`leaseway projector`: carries facts, control events and commits into ClickHouse, and answers questions about them."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from adapters.clickhouse.store import open_store
from adapters.clock import SystemClock
from adapters.decisions import DecisionReader
from adapters.http.server import HttpServer
from adapters.keys import load_credentials
from adapters.nats.connection import Bus, connect
from adapters.nats.enrolment import key_path
from domain.subjects import DECISIONS, SNAPSHOTS
from projections.project import STREAMS
from services.config import Config
from services.hosts import of_operators
from services.projector.api import Api
from services.projector.api_feed import CLIENTS_MAX
from services.projector.health import Health
from services.projector.metrics import ProjectorMetrics
from services.projector.projector import Projector, Setup
from services.projector.routes import READERS
from services.projector.told import Told
from services.projector.webhooks import Supply, Webhooks

_LOG: Final = logging.getLogger("leaseway.projector")
NAME: Final = "projector"
_CONNECTIONS_MAX: Final = CLIENTS_MAX + 128
_CLIENTS: Final = READERS + 1 + 2
"""Of ClickHouse that read: for questions, for /health, and for the projector's own looks, which wait for nobody's question."""


async def run(config: Config, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Carry streams into ClickHouse and serve the read API until `stop` is set.

    `ready` is called once the API listens and ClickHouse is open, or known to be away: then rows wait in the streams.

    Raises:
        BadConfigError, DataInUseError, BrokenSetupError: ClickHouse, the bus or the credentials can never do as configured.
        OSError: the API's port is taken.
    """
    clock = SystemClock()
    credentials = load_credentials(config.bus.credentials or key_path(config.data, NAME))
    bus = await connect(config.bus.url, credentials, name=NAME, required=False, wait_s=1.0)
    projector = Projector(setup_of(config, bus, clock))
    told = Told(DecisionReader(credentials.cluster, credentials.master_public))
    hooks = Webhooks(config.webhooks, Supply(projector.streams, clock, told), config.data)
    api = Api(projector, Health(projector, router_version(), hooks), clock, told)
    api.routes.add("/v1/webhooks", hooks.answer)
    metrics = ProjectorMetrics(projector, lambda: bus.connected, hooks.hooks, told)
    server = HttpServer(
        metrics.beside(api.handle), connections_max=_CONNECTIONS_MAX, served_by=NAME, hosts=of_operators(config)
    )
    posting = asyncio.create_task(hooks.run(), name="webhooks")
    try:
        port = await server.start(config.http.host, config.http.port)
        await _run_until(projector, stop, lambda: ready(f"http://{config.http.host}:{port}"))
    finally:
        posting.cancel()
        await asyncio.gather(posting, return_exceptions=True)
        await server.stop()
        await bus.close()


def setup_of(config: Config, bus: Bus, clock: SystemClock) -> Setup:
    """Return what the projector of `config` is made of."""
    return Setup(
        cluster=config.cluster.name,
        router=router_version(),
        streams={name: bus.stream(name) for name in (*STREAMS, SNAPSHOTS, DECISIONS)},
        open_store=partial(open_store, dsn_of(config), readers=_CLIENTS, cluster=config.clickhouse.cluster),
        clock=clock,
        host=socket.gethostname(),
    )


def dsn_of(config: Config) -> str:
    """Return where ClickHouse is: as configured, else embedded in the data directory."""
    return config.clickhouse.dsn or f"chdb://{(config.data / 'clickhouse').resolve()}"


def router_version() -> str:
    """Return the version of the installed Leaseway; rows are stamped with it."""
    try:
        return version("leaseway")
    except PackageNotFoundError:
        return "unknown"


async def _run_until(projector: Projector, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Run `projector` until `stop` is set or it fails for good."""
    running = asyncio.ensure_future(projector.run())
    stopping = asyncio.ensure_future(stop.wait())
    tried = asyncio.ensure_future(projector.tried.wait())
    try:
        await asyncio.wait({running, stopping, tried}, return_when=asyncio.FIRST_COMPLETED)
        if tried.done():
            ready()
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopping, tried):
            task.cancel()
        if not running.done():
            running.cancel()
        await asyncio.wait({running, stopping, tried})
    if not running.cancelled():
        running.result()

"""The master process: connect, check, live the loop, answer over HTTP."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from adapters.clock import SystemClock, new_generation, new_incarnation
from adapters.keys import Credentials, Signer, load_credentials
from adapters.log.checkpoints import CheckpointBook
from adapters.log.feed import Feed
from adapters.log.history import Streams
from adapters.log.ledger import Ledger
from adapters.log.reader import Reader
from adapters.log.scan import Ages
from adapters.log.snapshots import Snapshots
from adapters.log.witness import FileWitnessBook
from adapters.nats.connection import Bus, connect
from adapters.nats.layout import EVENTS_AGE_S, LEDGER_AGE_S
from domain.errors import BadConfigError
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS, ledger_subject
from services.config import Config, preflight_file
from services.data_directory import known_endpoints
from services.hosts import of_operators
from services.master.checkpoints import Checkpoints
from services.master.http import application
from services.master.loop import NO_OPERATOR, Parts
from services.master.metrics import MeasuredLoop
from services.master.observer import Observer
from services.master.witnesses import clickhouse_at
from services.telemetry import answer as metrics

LOG = logging.getLogger("leaseway.master")
READY_LATEST_S = 30.0


async def run(config: Config, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Be a master until `stop` is set; `ready` is called with the URL once it follows, decides, or is in safe mode."""
    credentials = load_credentials(config.bus.credentials or config.data / "keys" / "master.json")
    if credentials.role != "master":
        raise BadConfigError(f"credentials of {credentials.name}: role must be master, it is {credentials.role}")
    if not credentials.operator_public:
        LOG.warning("operator_not_known", extra={"credentials": credentials.name, "why": NO_OPERATOR})
    bus = await connect(config.bus.url, credentials, name="master")
    try:
        await _serve(config, credentials, bus, ready, stop)
    finally:
        await bus.close()


async def _serve(
    config: Config, credentials: Credentials, bus: Bus, ready: Callable[[str], None], stop: asyncio.Event
) -> None:
    loop = MeasuredLoop(_parts(config, credentials, bus), lambda: bus.connected)
    app = application(loop, preflight_file(config.data), of_operators(config), connected=lambda: bus.connected)
    app.router.add_get(metrics.PATH, loop.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, config.http.host, config.http.port)
    await site.start()
    host, port = runner.addresses[0][:2]
    tasks = [asyncio.create_task(loop.run()), asyncio.create_task(loop.parts.observer.listen())]
    stopping, served = asyncio.create_task(stop.wait()), asyncio.create_task(loop.ready.wait())
    try:
        await asyncio.wait([served, stopping, *tasks], timeout=READY_LATEST_S, return_when="FIRST_COMPLETED")
        # not ready so late: a long history is still being checked; /health says starting, and everybody else may begin
        if not any(task.done() for task in (stopping, *tasks)):
            ready(f"http://{host}:{port}")
        done, _ = await asyncio.wait([stopping, *tasks], return_when="FIRST_COMPLETED")
        for task in done:
            task.result()
    finally:
        for task in (*tasks, stopping, served):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await loop.sign_off()
        await runner.cleanup()


def _parts(config: Config, credentials: Credentials, bus: Bus) -> Parts:
    clock, cluster = SystemClock(), credentials.cluster
    events = bus.stream(EVENTS)
    ledger = bus.stream(LEDGER)
    return Parts(
        streams=Streams(events, bus.stream(CONTROL), ledger),
        ledger=Ledger(ledger, ledger_subject(cluster)),
        feed=Feed(bus.stream(DECISIONS), cluster=cluster, signer=Signer(credentials.master_seed), clock=clock),
        snapshots=Snapshots(bus.stream(SNAPSHOTS), cluster=cluster),
        witness=FileWitnessBook(config.data / "checkpoint.json"),
        reader=Reader(cluster, credentials.cluster_mac_secret),
        observer=Observer(bus, events, cluster, credentials.cluster_mac_secret, new_incarnation(), clock),
        clock=clock,
        new_generation=new_generation(1),
        signer=Signer(credentials.master_seed),
        operator_public=credentials.operator_public,
        relaxed=config.bus.durability == "relaxed",
        ask_clickhouse=clickhouse_at(known_endpoints(config).projector),
        checkpoints=Checkpoints(
            CheckpointBook(config.data / "checkpoints"), Signer(credentials.master_seed), cluster, clock
        ),
        ages=Ages(events_ns=int(EVENTS_AGE_S * 1e9), ledger_ns=int(LEDGER_AGE_S * 1e9)),
    )

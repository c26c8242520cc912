"""The gateway process: a catalogue from the bus or from disk, and the API over it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from adapters.clock import SystemClock
from adapters.decisions import DecisionReader
from adapters.http.server import HttpServer
from adapters.keys import Credentials, load_credentials
from adapters.nats.connection import Bus, connect
from domain.control.view import ControlView
from domain.errors import BadConfigError, BusError, PortInUseError
from domain.events import Event, NodeHealthChanged, NodeRetired, codec
from domain.ids import Incarnation, NodeId
from domain.ports import StoredMessage
from domain.subjects import CONTROL, DECISIONS, EVENTS, speaker
from services.config import Config
from services.following import Taken
from services.gateway.catalogue import Catalogue
from services.gateway.forwarding import Forwarder
from services.gateway.surface import Surface
from services.hosts import of_clients
from services.lend_check import LendCheck
from services.relaying import Relay
from services.telemetry.tracing import tracing_of

_LOG: Final = logging.getLogger("leaseway.gateway")
NAME: Final = "gateway-main"
_BUS_S: Final = 1.0
_CATCH_UP_S: Final = 2.0
_SAVE_S: Final = 1.0
_AGAIN_S: Final = 1.0
_LOOK_S: Final = 0.02


async def run(config: Config, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Be the gateway until `stop` is set; `ready` is called with the URL once it serves what it knows.

    Raises:
        BadConfigError: the credentials are not a gateway's.
        PortInUseError: the port is taken.
    """
    credentials = load_credentials(config.bus.credentials or config.data / "keys" / f"{NAME}.json")
    if credentials.role != "gateway":
        raise BadConfigError(f"credentials of {credentials.name}: role must be gateway, it is {credentials.role}")
    catalogue = Catalogue(config.data / "cluster" / "catalogue.json")
    limits = config.http.limits
    view = ControlView()
    forwarder = Forwarder(credentials.name, catalogue, limits, SystemClock())
    check = LendCheck(view, DecisionReader(credentials.cluster, credentials.master_public), limits.body_bytes)
    relay = Relay(credentials.name, check, lambda _: False, connect_s=limits.upstream_connect_s)
    surface = Surface(forwarder, relay)
    server = HttpServer(
        surface.serve, connections_max=limits.connections, served_by=credentials.name, hosts=of_clients(config)
    )
    bus = await connect(config.bus.url, credentials, name=credentials.name, wait_s=_BUS_S, required=False)
    follower = _Follower(bus, credentials, catalogue, view)
    remembered = bool(catalogue.models())
    forwarder.started, forwarder.knows_all = False, lambda: remembered or follower.heard_all
    forwarder.measure(lambda: relay.in_progress)
    forwarder.tracing = tracing = tracing_of(config, "gateway", credentials.name)
    forwarder.metrics.instruments.state("leaseway_bus_connected", lambda: bus.connected)
    try:
        url = await _listen(config, server)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (follower.facts(), follower.decisions(), follower.control())]
            tasks.append(group.create_task(_keep(catalogue, forwarder, bus)))
            if bus.connected:
                await follower.caught_up(_CATCH_UP_S)
            forwarder.started = True
            ready(url)
            await stop.wait()
            await _drain(server, surface, limits.drain_s)
            for task in tasks:
                task.cancel()
    finally:
        await server.stop()
        await forwarder.close()
        await relay.close()
        await bus.close()
        await tracing.close()


async def _listen(config: Config, server: HttpServer) -> str:
    host, port = config.http.host, config.http.port
    try:
        port = await server.start(host, port)
    except OSError as error:
        raise PortInUseError(f"gateway: port {port} on {host}: {error.strerror or error}") from None
    return f"http://{host}:{port}"


async def _keep(catalogue: Catalogue, forwarder: Forwarder, bus: Bus) -> None:
    while True:
        forwarder.state = {"bus": {"connected": bus.connected}}
        if catalogue.changed:
            await catalogue.save()
        await asyncio.sleep(_SAVE_S)


async def _drain(server: HttpServer, surface: Surface, timeout_s: float) -> None:
    """Take no new connection, and let end what is being served."""
    await server.stop_listening()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while surface.in_progress:  # noqa: ASYNC110  # a drain may look, it need not be told
                await asyncio.sleep(_LOOK_S)


class _Follower:
    """Folds what the bus says into the catalogue.

    Only what the streams hold is believed (a node can put bytes of others on core subjects), and each life of the gateway reads
    all of it again: it is little, and the fold needs the last word of every node.
    """

    def __init__(self, bus: Bus, credentials: Credentials, catalogue: Catalogue, view: ControlView) -> None:
        self._bus, self._catalogue, self._view = bus, catalogue, view
        self._name = credentials.name
        self._reader = DecisionReader(credentials.cluster, credentials.master_public)
        self._facts_read = asyncio.Event()

    @property
    def heard_all(self) -> bool:
        """Tell whether all facts that were there at its start are folded."""
        return self._facts_read.is_set()

    async def caught_up(self, timeout_s: float) -> None:
        """Return once all facts so far are folded, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._facts_read.wait()

    async def facts(self) -> None:
        """Follow the nodes."""
        await self._follow(EVENTS, self._fact, self._facts_read)

    async def decisions(self) -> None:
        """Follow the master's word on nodes' health."""
        await self._follow(DECISIONS, self._decision)

    async def control(self) -> None:
        """Follow the operators: nodes that they enrolled or retired."""
        await self._follow(CONTROL, self._control)

    async def _follow(
        self, stream: str, take: Callable[[StoredMessage], None], caught_up: asyncio.Event | None = None
    ) -> None:
        taken = Taken()
        while True:
            try:
                follower = self._bus.follower(stream, [], self._name, from_start=True)
                noting = asyncio.create_task(_note(follower.caught_up, caught_up))
                try:
                    async for message in follower.messages():
                        if message.seq and taken.is_new(message):
                            self._take(message, take)
                finally:
                    noting.cancel()
            except BusError as error:
                _LOG.warning("not_followed", extra={"stream": stream, "why": str(error)})
            await asyncio.sleep(_AGAIN_S)

    def _take(self, message: StoredMessage, take: Callable[[StoredMessage], None]) -> None:
        try:
            take(message)
        except msgspec.DecodeError as error:
            _LOG.warning("message_unreadable", extra={"seq": message.seq, "why": str(error)})

    def _fact(self, message: StoredMessage) -> None:
        envelope = codec.decode_envelope(message.body)
        kind, name = speaker(message.subject)
        if kind == "node" and name == envelope.producer:
            self._apply(message, NodeId(name), envelope.incarnation, codec.decode_input(envelope.data))

    def _decision(self, message: StoredMessage) -> None:
        signed = self._reader.read(message.body)
        if signed is not None and isinstance(signed.decision, NodeHealthChanged):
            self._apply(message, signed.decision.node, Incarnation(""), signed.decision)

    def _control(self, message: StoredMessage) -> None:
        event = codec.decode_control(codec.decode_envelope(message.body).data)
        self._view.apply(event)
        if isinstance(event, NodeRetired):
            self._apply(message, event.node, Incarnation(""), event)

    def _apply(self, message: StoredMessage, node: NodeId, incarnation: Incarnation, event: Event) -> None:
        self._catalogue.apply(node, incarnation, event, at_ns=message.stamp_ns)


async def _note(follower_is: asyncio.Event, event: asyncio.Event | None) -> None:
    await follower_is.wait()
    if event is not None:
        event.set()

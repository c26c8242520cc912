"""Provisioning as `leaseway up` and `leaseway provision` do it: the bus made ready, then its nodes enrolled in the history."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from adapters.clock import new_generation
from adapters.keys import load_credentials
from adapters.log.history import Streams, begin_generation, last_commit
from adapters.log.witness import FileWitnessBook
from adapters.nats.connection import connect
from adapters.nats.control import ControlDesk
from adapters.nats.layout import IRREPLACEABLE
from adapters.nats.preflight import preflight, require_sound
from adapters.nats.provision import Provisioned, provision
from domain.errors import HistoryError, HistoryLostError
from domain.events.commit import Commit
from domain.ids import NodeId
from domain.subjects import CONTROL, EVENTS, LEDGER, ledger_subject
from services.config import Config, preflight_file
from services.data_directory import Endpoints
from services.standalone.bus import BusChild

GATEWAY: Final = "main"
"""Id of the one gateway of a standalone cluster."""
_STOP_S: Final = 10.0


async def provision_all(config: Config, endpoints: Endpoints) -> Provisioned:
    """Make the bus of a standalone cluster what it must be, and enrol its nodes."""
    return await provision_bus(config, endpoints.nats, endpoints.nodes, {GATEWAY: endpoints.gateway})


async def provision_bus(
    config: Config, url: str, nodes: Mapping[str, str], gateways: Mapping[str, str], *, recreate: Collection[str] = ()
) -> Provisioned:
    """Make keys, streams and consumers, look whether the bus is sound, and state who is enrolled (id -> url).

    `recreate`: streams that may be made anew although they have been there before.

    Raises:
        HistoryLostError: a stream that has been there is gone.
        LeasewayError: the bus cannot be reached, or is not what it must be.
    """
    durability: Literal["strict", "relaxed"] = "relaxed" if config.bus.durability == "relaxed" else "strict"
    witnessed = await FileWitnessBook(checkpoint(config.data)).read() is not None
    try:
        done = await provision(
            config.data,
            url,
            config.cluster.name,
            durability,
            nodes,
            gateways=gateways,
            witnessed=witnessed,
            recreate=recreate,
        )
    except HistoryLostError as error:
        hint = "look for a copy; else `leaseway provision --new-generation --reason TEXT` begins a new history"
        raise HistoryError(f"{error}; {hint}") from None
    report = await preflight(config.data, url, config.cluster.name, durability)
    preflight_file(config.data).write_bytes(msgspec.json.encode(report))  # the master shows it on /health
    require_sound(report)
    await asyncio.to_thread(_enrol, config, url, done)
    return done


def _enrol(config: Config, url: str, done: Provisioned) -> None:
    """State every node that is new, or has another key or url than before."""
    with ControlDesk(url, load_credentials(config.data / "keys" / "operator.json"), config.cluster.name) as desk:
        for member in done.nodes:
            desk.enroll_node(NodeId(member.name), member.public_key, member.url)


def checkpoint(data: Path) -> Path:
    """Return where the data directory keeps the newest commit that was seen."""
    return data / "checkpoint.json"


async def renew(config: Config, url: str, reason: str) -> Commit:
    """Begin a new generation of the ledger for `reason`, whatever is missing made anew; return its first commit.

    Raises:
        LeasewayError: the bus cannot be reached, or a master committed meanwhile.
    """
    await provision_bus(config, url, {}, {}, recreate=IRREPLACEABLE)
    bus = await connect(url, load_credentials(config.data / "keys" / "master.json"), name="provision")
    try:
        streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))
        head, seen = await last_commit(streams.ledger), await FileWitnessBook(checkpoint(config.data)).read()
        known = [each.generation for each in (head, seen) if each is not None]
        count = max((int(generation[:4], 16) for generation in known), default=0) + 1
        subject = ledger_subject(config.cluster.name)
        return await begin_generation(streams, new_generation(count), reason, publish_to=subject)
    finally:
        await bus.close()


@asynccontextmanager
async def bus_alone(config: Config) -> AsyncIterator[str]:
    """Run the nats-server of a standalone data directory, whose lock the caller holds, while the block runs; yield its url."""
    bus = BusChild(config.data, cluster=config.cluster.name, port=0, monitor_port=0)
    try:
        yield await bus.start()
    finally:
        await bus.stop(_STOP_S)

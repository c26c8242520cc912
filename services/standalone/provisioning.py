"""Provisioning as `leaseway up` and `leaseway provision` do it: the bus made ready, then its nodes enrolled in the history."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from adapters.decisions import DecisionReader
from adapters.keys import Credentials, Signer, load_credentials
from adapters.log.begun import newest_begun
from adapters.log.checkpoints import CheckpointBook, signed_by
from adapters.log.feed import newest_signed
from adapters.log.generations import Beginners
from adapters.log.history import Streams
from adapters.log.renewal import begin_generation, later_than, newest_readable
from adapters.log.witness import FileWitnessBook
from adapters.nats.connection import connect
from adapters.nats.control import ControlDesk
from adapters.nats.enrolment import Roster, enrol
from adapters.nats.layout import IRREPLACEABLE
from adapters.nats.preflight import preflight, require_sound
from adapters.nats.provision import Provisioned, provision
from domain.control.settings import parse_values
from domain.errors import HistoryError, HistoryLostError, WrongLastSequenceError
from domain.events.commit import Commit
from domain.events.control import SettingStated
from domain.ids import Generation, NodeId
from domain.ports import Stream
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER
from services.config import Config, preflight_file
from services.data_directory import Endpoints, known_endpoints
from services.master.witnesses import clickhouse_at, doubted_by
from services.standalone.bus import BusChild

_LOG: Final = logging.getLogger("leaseway.provision")
GATEWAY: Final = "main"
"""Id of the one gateway of a standalone cluster."""
REPLICAS: Final = 3
_STOP_S: Final = 10.0


async def provision_all(config: Config, endpoints: Endpoints, *, from_file: bool) -> Provisioned:
    """Make the bus of a standalone cluster what it must be, enrol its nodes and state the file's settings, if there is a file."""
    gateways = {GATEWAY: endpoints.gateway}
    return await provision_bus(config, endpoints.nats, endpoints.nodes, gateways, from_file=from_file)


async def provision_bus(
    config: Config,
    url: str,
    nodes: Mapping[str, str],
    gateways: Mapping[str, str],
    *,
    from_file: bool,
    recreate: Collection[str] = (),
) -> Provisioned:
    """Make keys, streams and consumers, look whether the bus is sound, and state who is enrolled (id -> url).

    `from_file`: `config` was read from a file, whose `[cluster.settings]` are stated to the whole cluster; without a file
    what was stated before stays. `recreate`: streams that may be made anew although they have been there before.

    Raises:
        HistoryLostError: a stream that has been there is gone.
        LeasewayError: the bus cannot be reached, or is not what it must be.
    """
    durability: Literal["strict", "relaxed"] = "relaxed" if config.bus.durability == "relaxed" else "strict"
    witnessed = await _is_witness(config.data)
    try:
        done = await provision(
            config.data,
            url,
            config.cluster.name,
            durability,
            nodes,
            gateways=gateways,
            replicas=replicas_of(url),
            witnessed=witnessed,
            recreate=recreate,
        )
    except HistoryLostError as error:
        hint = "look for a copy; else `leaseway provision --new-generation --reason TEXT` begins a new history"
        raise HistoryError(f"{error}; {hint}") from None
    report = await preflight(config.data, url, config.cluster.name, durability, replicas=replicas_of(url))
    preflight_file(config.data).write_bytes(msgspec.json.encode(report))  # the master shows it on /health
    require_sound(report)
    await asyncio.to_thread(_state, config, url, done, from_file=from_file)
    return done


async def _is_witness(data: Path) -> bool:
    """Tell whether a data directory has seen any commit; what it has seen may be unreadable, and the master then says so."""
    if CheckpointBook(data / "checkpoints").generations():
        return True
    try:
        return await FileWitnessBook(checkpoint(data)).read() is not None
    except HistoryError:
        return True


def make_keys(config: Config, nodes: Mapping[str, str], gateways: Mapping[str, str]) -> Roster:
    """Make the keys of every member, and the accounts file that NATS servers need before they can start; no bus is asked.

    `leaseway provision` does the rest once the servers run with that file.

    Raises:
        BadConfigError: an id that no node may have.
    """
    return enrol(config.data, config.cluster.name, nodes, gateways)


def replicas_of(url: str) -> int:
    """Return on how many servers each message is kept: on three where `url` names three or more, else on one.

    Two replicas would be worse than one: with either gone nothing could be written.
    """
    return REPLICAS if len(url.split(",")) >= REPLICAS else 1


def _state(config: Config, url: str, done: Provisioned, *, from_file: bool) -> None:
    """State the file's settings and every node, as far as they are new or not what they were before."""
    with ControlDesk(url, load_credentials(config.data / "keys" / "operator.json"), config.cluster.name) as desk:
        if from_file:
            for event in desk.state_file(parse_values(config.cluster.settings)):
                value = event.value if isinstance(event, SettingStated) else None
                _LOG.info("setting_stated", extra={"setting": event.name, "value": value})
        for member in done.nodes:
            desk.enroll_node(NodeId(member.name), member.public_key, member.url)


def checkpoint(data: Path) -> Path:
    """Return where the data directory keeps the newest commit that was seen."""
    return data / "checkpoint.json"


async def renew(config: Config, url: str, reason: str, *, from_file: bool) -> Commit:
    """Begin a new generation of the ledger for `reason`, whatever is missing made anew; return its first commit.

    Raises:
        LeasewayError: the bus cannot be reached, or a master committed meanwhile.
    """
    await provision_bus(config, url, {}, {}, from_file=from_file, recreate=IRREPLACEABLE)
    bus = await connect(url, load_credentials(config.data / "keys" / "master.json"), name="provision")
    try:
        streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))
        operator = load_credentials(config.data / "keys" / "operator.json")
        known, claimed = await _generations(config, streams.ledger, bus.stream(DECISIONS), operator)
        first = await begin_generation(
            streams, later_than(known, claimed), reason, cluster=operator.cluster, signer=Signer(operator.nkey_seed)
        )
    except WrongLastSequenceError as error:
        why = "a master has committed meanwhile, or the server still counts messages that it has lost"
        raise HistoryError(f"{error}: {why}; then start nats-server anew, and run this again") from None
    finally:
        await bus.close()
    # only now: a doubt ends by an operator's word that is stored, not by one that was tried
    try:
        if aside := await FileWitnessBook(checkpoint(config.data)).put_aside():
            _LOG.warning("witness_put_aside", extra={"file": aside})
    except HistoryError as error:  # a master on this directory says so too; what follows is no less due
        _LOG.warning("witness_not_put_aside", extra={"error": str(error)})
    if first.clo:  # what was decided before that is read no more
        try:
            again = await asyncio.to_thread(_restate, url, operator)
        except HistoryError as error:
            begun = f"generation {first.generation} has begun, and nodes, links and settings have to be stated again"
            raise HistoryError(f"{begun}: {error}") from None
        _LOG.warning("control_restated", extra={"not_read": first.clo, "events": again})
    return first


def _restate(url: str, operator: Credentials) -> int:
    with ControlDesk(url, operator, operator.cluster) as desk:
        return desk.restate()


async def _generations(
    config: Config, ledger: Stream, feed: Stream, operator: Credentials
) -> tuple[list[Generation], list[Generation]]:
    """Return the generations that this cluster's keys have signed or this data directory has seen, and what others claim."""
    public, who = operator.master_public, Signer(operator.nkey_seed).public
    archived, behind = await asyncio.gather(
        clickhouse_at(known_endpoints(config).projector)(), doubted_by(known_endpoints(config).master.split(","))
    )
    signed = [each.checkpoint.generation for each in signed_by(archived.signed, public, operator.cluster)]
    fed, _ = await newest_signed(feed, DecisionReader(operator.cluster, public))
    head = await newest_readable(ledger)
    begun = await newest_begun(ledger, head, Beginners(cluster=operator.cluster, operator=who, master=public))
    known = [*await _generations_seen(config.data), *signed, begun, *([fed.generation] if fed is not None else [])]
    return known, [*behind, *([head.generation] if head is not None else [])]


async def _generations_seen(data: Path) -> list[Generation]:
    """Return the generations of which a data directory has seen anything."""
    known = CheckpointBook(data / "checkpoints").generations()
    with suppress(HistoryError):
        seen = await FileWitnessBook(checkpoint(data)).read()
        return [*known, seen.generation] if seen is not None else known
    return known


@asynccontextmanager
async def bus_alone(config: Config) -> AsyncIterator[str]:
    """Run the nats-server of a standalone data directory, whose lock the caller holds, while the block runs; yield its url."""
    bus = BusChild(config.data, cluster=config.cluster.name, port=0, monitor_port=0)
    try:
        yield await bus.start()
    finally:
        await bus.stop(_STOP_S)

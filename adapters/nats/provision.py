"""Makes the bus what it must be, again and again with the same result: keys, accounts, streams, consumers.

It runs in a process of its own with keys that no service has; adding a node later disconnects nobody.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig, StreamConfig, StreamInfo
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ServerError, ServiceUnavailableError

from adapters.keys import load_credentials
from adapters.nats.accounts import Member, inbox_prefix
from adapters.nats.enrolment import (
    Roster,
    enrol,
    enrol_tool,
    ensure_core_members,
    forget_keys,
    key_path,
    retire,
)
from adapters.nats.layout import EVENTS_BYTES, IRREPLACEABLE, Durability, consumer_configs, differences, stream_configs
from adapters.nats.mirrors import ensure_mirrors
from adapters.nats.outside import KEEPER, PREFIX
from domain.errors import BadConfigError, HistoryLostError, NotYetError, UnreachableError
from domain.subjects import EVENTS

_RESETS_MAX: Final = 5
_CONNECT_S: Final = 5
ONE_TRY: Final[dict[str, Any]] = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
"""Options of a connection that is made now or not at all; by itself the client goes on for two minutes."""
_API_S: Final = 5.0
_DEADLINE_S: Final = 30.0
_RETRY_S: Final = 0.1
_NO_GATEWAY: Final[Mapping[str, str]] = {}


class Provisioned(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has found and made."""

    nodes: tuple[Member, ...]
    """Every enrolled node with public key and url; the caller states `NodeEnrolled` for those that are new or changed."""
    roster: Roster
    streams_made: tuple[str, ...]
    streams_changed: tuple[str, ...]
    consumers_made: tuple[str, ...]
    """`<stream>/<name>`."""
    mirrors_made: tuple[str, ...] = ()
    """Of outside tools: `<stream>` for a mirror, `<stream>/<name>` for a tool's consumer on it."""


async def provision(  # noqa: PLR0913  # one argument for each thing that an operator may say
    data: Path,
    url: str,
    cluster: str,
    durability: Durability,
    nodes: Mapping[str, str],
    *,
    gateways: Mapping[str, str] = _NO_GATEWAY,
    retired: Collection[str] = (),
    replicas: int = 1,
    events_bytes: int | None = None,
    witnessed: bool = False,
    recreate: Collection[str] = (),
) -> Provisioned:
    """Make keys, accounts, streams and consumers as they must be, and say what was made.

    `url`: of every server of the bus, comma-separated. `nodes`, `gateways`: id -> public url, added to those enrolled before.
    `events_bytes`: room of LW_EVENTS; None keeps what it has. `witnessed`: somebody outside the bus has seen a commit, so
    streams must be there. `recreate`: streams that an operator says may be made anew.

    Raises:
        BadConfigError: an id, or a stream that cannot become what it must be.
        UnreachableError: no server answers at `url`; the keys are written, a later run goes on.
        HistoryLostError: a stream that must exist does not; nothing was made in its place.
    """
    roster = enrol(data, cluster, nodes, gateways)
    for name in retired:
        roster = retire(data, cluster, name)
    await reload_servers(data, url)
    async with administer(data, url, "provisioner") as client:
        jetstream = client.jetstream(timeout=_API_S)
        found = await _found_streams(jetstream, cluster)
        _require_history(found, witnessed=witnessed, recreate=recreate)
        kept_bytes = found[EVENTS].config.max_bytes if EVENTS in found else None
        configs = stream_configs(
            cluster, durability, replicas=replicas, events_bytes=events_bytes or kept_bytes or EVENTS_BYTES
        )
        made, changed = await _ensure_streams(jetstream, configs, found)
        consumers = await _ensure_consumers(jetstream, cluster, roster)
        mirrors = await _ensure_mirrors(data, url, client, roster, replicas)
    return Provisioned(
        nodes=tuple(member for member in roster.members if member.role == "node"),
        roster=roster,
        streams_made=made,
        streams_changed=changed,
        consumers_made=consumers,
        mirrors_made=mirrors,
    )


async def provision_tools(
    data: Path, url: str, cluster: str, *, added: Collection[str] = (), removed: Collection[str] = ()
) -> Provisioned:
    """Enrol or retire outside tools (by the names that people give them) on a running bus; nobody else is disconnected.

    Raises:
        BadConfigError, BadIdError: a name, or too many of them.
        NotYetError: there are no streams yet.
        UnreachableError: no server answers at `url`; the keys are written, a later run goes on.
    """
    roster = ensure_core_members(data, cluster)
    for tool in added:
        roster = enrol_tool(data, cluster, tool)
    for tool in removed:
        roster = retire(data, cluster, f"{PREFIX}{tool}")
        forget_keys(data, f"{PREFIX}{tool}")
    await reload_servers(data, url)
    async with administer(data, url, "provisioner") as client:
        try:
            info = await client.jetstream(timeout=_API_S).stream_info(EVENTS)
        except NotFoundError:
            raise NotYetError(f"stream {EVENTS}: must exist, is missing; `leaseway provision` makes it") from None
        mirrors = await _ensure_mirrors(data, url, client, roster, info.config.num_replicas or 1)
    return Provisioned(
        nodes=(), roster=roster, streams_made=(), streams_changed=(), consumers_made=(), mirrors_made=mirrors
    )


async def _ensure_mirrors(data: Path, url: str, core: Client, roster: Roster, replicas: int) -> tuple[str, ...]:
    tools = [member.name for member in roster.members if member.role == "observer"]
    try:
        async with administer(data, url, KEEPER) as keeper:
            return tuple(await ensure_mirrors(core, keeper, roster.cluster, tools, replicas=replicas))
    except UnreachableError:
        if tools:
            raise
        return ()  # servers with an accounts file of a release before have no mirrors


async def reload_servers(data: Path, url: str) -> None:
    """Have every server in `url` read its accounts file again; returns once it has.

    Raises:
        UnreachableError: one does not answer.
        BadConfigError: one refuses its configuration; it goes on with the old one.
    """
    for each in url.split(","):
        async with administer(data, each, "system") as client:
            answer = await ask_server(client, "RELOAD")
            if "error" in answer:
                raise BadConfigError(f"nats {each}: refuses its accounts: {answer['error'].get('description', answer)}")


async def ask_server(client: Client, what: str) -> dict[str, Any]:
    """Return the answer of the server that `client`, signed in as system, is connected to."""
    server_id = client._server_info["server_id"]  # noqa: SLF001  # the client tells it nowhere else
    answer: dict[str, Any] = json.loads(
        (await client.request(f"$SYS.REQ.SERVER.{server_id}.{what}", timeout=_API_S)).data
    )
    return answer


async def _administrator(data: Path, url: str, name: str) -> Client:
    attempt = 1
    while True:
        client, refused = Client(), list[str]()
        try:
            await _connect(client, data, url, name, refused)
        except (NatsError, OSError, TimeoutError) as error:
            await client.close()
            # a server that refuses a key closes at once, and what it said of it may be lost on the way
            if isinstance(error, ConnectionResetError) and not refused and attempt < _RESETS_MAX:
                attempt += 1
                continue
            why = refused[-1] if refused else str(error)
            raise UnreachableError(f"nats {url}: cannot be reached as {name}: {why}") from None
        return client


async def _connect(client: Client, data: Path, url: str, name: str, refused: list[str]) -> None:
    async def note(error: Exception) -> None:  # the client wants a coroutine
        refused.append(str(error))

    await client.connect(
        url.split(","),
        name=name,
        nkeys_seed_str=load_credentials(key_path(data, name)).nkey_seed,
        inbox_prefix=inbox_prefix(name),
        connect_timeout=_CONNECT_S,
        **ONE_TRY,
        error_cb=note,
    )


@asynccontextmanager
async def administer(data: Path, url: str, name: str) -> AsyncIterator[Client]:
    """Yield a connection as `name` that ends with the block; it does not reconnect.

    Raises:
        UnreachableError: no server answers, or it refuses the key.
    """
    client = await _administrator(data, url, name)
    try:
        yield client
    finally:
        await client.close()


async def _found_streams(jetstream: JetStreamContext, cluster: str) -> dict[str, StreamInfo]:
    found: dict[str, StreamInfo] = {}
    for config in stream_configs(cluster, "strict"):
        assert config.name is not None, "every stream has a name"
        try:
            found[config.name] = await _patiently(jetstream, "info", config)
        except NotFoundError:
            continue
    return found


def _require_history(found: Mapping[str, StreamInfo], *, witnessed: bool, recreate: Collection[str]) -> None:
    """Return if every missing stream may be made.

    A cluster whose first provisioning was cut short has missing streams too, but no message in any other.
    """
    used = sorted(name for name, info in found.items() if info.state.last_seq > 0)
    evidence = "a commit has been witnessed" if witnessed else f"{', '.join(used)} has messages" if used else ""
    missing = [name for name in IRREPLACEABLE if name not in found and name not in recreate]
    if missing and evidence:
        raise HistoryLostError(missing[0], evidence)


async def _ensure_streams(
    jetstream: JetStreamContext, configs: Collection[StreamConfig], found: Mapping[str, StreamInfo]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    made: list[str] = []
    changed: list[str] = []
    for config in configs:
        assert config.name is not None, "every stream has a name"
        if config.name not in found:
            await _patiently(jetstream, "create", config)
            made.append(config.name)
        elif differ := differences(config, found[config.name].config):
            try:
                await _patiently(jetstream, "update", config)
            except APIError as error:
                told = ", ".join(f"{field} must be {want}, is {have}" for field, (want, have) in differ.items())
                raise BadConfigError(f"stream {config.name}: {told}; nats-server: {error.description}") from None
            changed.append(config.name)
    return tuple(made), tuple(changed)


async def _patiently(jetstream: JetStreamContext, verb: str, config: StreamConfig) -> StreamInfo:
    """Ask again while a cluster has no leader yet; every verb here may be asked twice."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            try:
                match verb:
                    case "info":
                        return await jetstream.stream_info(config.name)
                    case "create":
                        return await jetstream.add_stream(config)
                    case _:
                        return await jetstream.update_stream(config)
            except (ServiceUnavailableError, nats.errors.TimeoutError, nats.errors.NoRespondersError):
                await asyncio.sleep(_RETRY_S)
            except ServerError as error:
                if verb != "info":  # what it does not change is told by whoever wanted it changed
                    raise
                why = f"the server does not serve it: {error.description}; its log says more"
                raise UnreachableError(f"stream {config.name}: {why}") from None


async def _ensure_consumers(jetstream: JetStreamContext, cluster: str, roster: Roster) -> tuple[str, ...]:
    made: list[str] = []
    for member in roster.members:
        for stream, config in consumer_configs(cluster, member).items():
            if await _ensure_consumer(jetstream, stream, config):
                made.append(f"{stream}/{config.durable_name}")
    return tuple(made)


async def _ensure_consumer(jetstream: JetStreamContext, stream: str, config: ConsumerConfig) -> bool:
    """Make or update a durable consumer; tell whether it was not there before."""
    assert config.durable_name is not None, "provisioned consumers are durable"
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            try:
                found = await jetstream.consumer_info(stream, config.durable_name)
                if sorted(_filters(found.config)) != sorted(config.filter_subjects or ()):
                    await jetstream.add_consumer(stream, config)
            except NotFoundError:
                await jetstream.add_consumer(stream, config)
                return True
            except (ServiceUnavailableError, nats.errors.TimeoutError, nats.errors.NoRespondersError):
                await asyncio.sleep(_RETRY_S)
            else:
                return False


def _filters(config: ConsumerConfig) -> Collection[str]:
    """Return the filters of a consumer; the server may hold a single one in either field."""
    return config.filter_subjects or ((config.filter_subject,) if config.filter_subject else ())

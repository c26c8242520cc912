"""`leaseway provision`: keys, streams and consumers; enrolment of a node; a new generation after history was in doubt."""

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from adapters.nats.enrolment import Roster
from adapters.nats.provision import Provisioned
from domain.errors import BadConfigError, UnreachableError
from domain.events.commit import Commit
from domain.ids import node_id
from services.cli.parser import BadUsageError
from services.cli.reach import Here, fetch, here
from services.cli.show import note
from services.config_file import config_path
from services.config_rules import http_url
from services.data_directory import held_data, holder_of, is_standalone, make_data
from services.lifecycle import EXIT_FAILED, EXIT_OK
from services.standalone.provisioning import bus_alone, make_keys, provision_bus, renew

LEAVES_WITHIN_S: Final = 10.0
"""Masters look for the operator's word each half second, and check stored history then."""
_LOOK_EVERY_S: Final = 0.3
_WELL: Final = {"active", "standby"}


def run(parsed: argparse.Namespace) -> int:
    """Make what is missing and say what was made."""
    _check(parsed)
    place = here(parsed)
    data = place.config.data
    if parsed.keys_only:
        make_data(data)
        _tell_keys(make_keys(place.config, _nodes(place, parsed), _gateways(parsed)), data, parsed)
    elif is_standalone(data) and holder_of(data) is None:
        with held_data(data):
            asyncio.run(_with_own_bus(place, parsed))
    else:
        make_data(data)
        asyncio.run(_provision(place, place.bus_url, parsed))
        if parsed.new_generation and not asyncio.run(tell_masters(place)):
            return EXIT_FAILED
    return EXIT_OK


def _check(parsed: argparse.Namespace) -> None:
    if bool(parsed.node) != bool(parsed.url):
        raise BadUsageError("provision: --node and --url must be given together")
    if parsed.new_generation != bool(parsed.reason.strip()):
        raise BadUsageError(
            "provision: --new-generation and --reason must be given together: the reason is kept for ever"
        )
    if parsed.keys_only and parsed.new_generation:
        raise BadUsageError(
            "provision: --keys-only and --new-generation exclude each other: a generation needs the bus"
        )
    if parsed.gateway:
        node_id(parsed.gateway)
    if parsed.node:
        node_id(parsed.node)
        for problem in http_url("--url", parsed.url):
            raise BadConfigError(f"{problem.key}: {problem.rule}, got {problem.value!r}")


async def _with_own_bus(place: Here, parsed: argparse.Namespace) -> None:
    """Provision a standalone directory that nothing runs on: its nats-server runs for as long as this takes."""
    async with bus_alone(place.config) as url:
        await _provision(place, url, parsed)


async def _provision(place: Here, url: str, parsed: argparse.Namespace) -> None:
    from_file = config_path(parsed.config) is not None
    if parsed.new_generation:
        _tell_new(await renew(place.config, url, parsed.reason.strip(), from_file=from_file))
        return
    done = await provision_bus(place.config, url, _nodes(place, parsed), _gateways(parsed), from_file=from_file)
    _tell(done, place.config.data / "keys", parsed)


async def tell_masters(place: Here, *, within_s: float = LEAVES_WITHIN_S) -> bool:
    """Say which masters that answer have not left safe mode; tell whether all have."""
    waiting = await asyncio.gather(*(_stays(place, url, within_s) for url in place.masters))
    for url, why in zip(place.masters, waiting, strict=True):
        if why:
            note(f"the master at {url} {why}")
    return not any(waiting)


async def _stays(place: Here, url: str, within_s: float) -> str:
    """Return what a master says that does not decide or follow in time; empty if it does, or if none answers there."""
    said: dict[str, Any] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while said.get("status") not in _WELL:
                try:
                    _, said = await fetch(place, "master", url, "/health")
                except UnreachableError:
                    return ""
                await asyncio.sleep(_LOOK_EVERY_S)
    if said.get("status") in _WELL:
        return ""
    doubt = str(said.get("doubt", ""))
    return f"has not left safe mode: {doubt}" if doubt else "is still checking stored history"


def _nodes(place: Here, parsed: argparse.Namespace) -> dict[str, str]:
    return {**place.endpoints.nodes, **({parsed.node: parsed.url} if parsed.node else {})}


def _gateways(parsed: argparse.Namespace) -> dict[str, str]:
    return {parsed.gateway: ""} if parsed.gateway else {}


def _tell_new(first: Commit) -> None:
    print(f"generation {first.generation} begins with version {first.version}; the master leaves safe mode by itself")
    if first.clo:
        note(
            f"control events up to {first.clo} are gone or stand before a hole; what can still be read of them was stated again: "
            f"look at `leaseway links list` and `leaseway settings list` for what is missing"
        )


def _tell_keys(roster: Roster, data: Path, parsed: argparse.Namespace) -> None:
    print(f"members: {', '.join(member.name for member in roster.members)}; keys: {data / 'keys'}")
    print(
        f"bring {data / 'nats' / 'accounts.conf'} to every NATS server, which includes it, then run `leaseway provision`"
    )
    _tell_credentials(data / "keys", parsed)


def _tell(done: Provisioned, keys: Path, parsed: argparse.Namespace) -> None:
    for name in done.streams_made:
        print(f"made stream {name}")
    for name in done.streams_changed:
        print(f"changed stream {name}")
    for name in done.consumers_made:
        print(f"made consumer {name}")
    for name in done.mirrors_made:
        print(f"made {'consumer of mirror' if '/' in name else 'mirror'} {name}")
    print(f"nodes: {', '.join(member.name for member in done.nodes) or 'none'}; keys: {keys}")
    _tell_credentials(keys, parsed)


def _tell_credentials(keys: Path, parsed: argparse.Namespace) -> None:
    for name in (parsed.node, parsed.gateway and f"gateway-{parsed.gateway}"):
        if name:
            print(f"bring {keys / (name + '.json')} to the machine of {name} and name it in [bus] credentials there")

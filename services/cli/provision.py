"""`leaseway provision`: keys, streams and consumers; enrolment of a node; a new generation after history was in doubt."""

import argparse
import asyncio
from pathlib import Path

from adapters.nats.provision import Provisioned
from domain.errors import BadConfigError
from domain.events.commit import Commit
from domain.ids import node_id
from services.cli.parser import BadUsageError
from services.cli.reach import Here, here
from services.config_file import config_path
from services.config_rules import http_url
from services.data_directory import held_data, holder_of, is_standalone, make_data
from services.lifecycle import EXIT_OK
from services.standalone.provisioning import bus_alone, provision_bus, renew


def run(parsed: argparse.Namespace) -> int:
    """Make what is missing and say what was made."""
    _check(parsed)
    place = here(parsed)
    data = place.config.data
    if is_standalone(data) and holder_of(data) is None:
        with held_data(data):
            asyncio.run(_with_own_bus(place, parsed))
    else:
        make_data(data)
        asyncio.run(_provision(place, place.bus_url, parsed))
    return EXIT_OK


def _check(parsed: argparse.Namespace) -> None:
    if bool(parsed.node) != bool(parsed.url):
        raise BadUsageError("provision: --node and --url must be given together")
    if parsed.new_generation != bool(parsed.reason.strip()):
        raise BadUsageError(
            "provision: --new-generation and --reason must be given together: the reason is kept for ever"
        )
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
    nodes = {**place.endpoints.nodes, **({parsed.node: parsed.url} if parsed.node else {})}
    done = await provision_bus(place.config, url, nodes, {}, from_file=from_file)
    _tell(done, place.config.data / "keys", parsed.node)


def _tell_new(first: Commit) -> None:
    print(f"generation {first.generation} begins with version {first.version}; the master leaves safe mode by itself")


def _tell(done: Provisioned, keys: Path, node: str) -> None:
    for name in done.streams_made:
        print(f"made stream {name}")
    for name in done.streams_changed:
        print(f"changed stream {name}")
    for name in done.consumers_made:
        print(f"made consumer {name}")
    print(f"nodes: {', '.join(member.name for member in done.nodes) or 'none'}; keys: {keys}")
    if node:
        print(f"bring {keys / (node + '.json')} to the machine of {node} and name it in [bus] credentials there")

"""`leaseway provision`: keys, streams and consumers; enrolment of a node."""

import argparse
import asyncio

from domain.errors import BadConfigError
from domain.ids import node_id
from services.cli.parser import BadUsageError
from services.cli.reach import here
from services.config_file import stated_nodes
from services.config_rules import http_url
from services.data_directory import make_data
from services.lifecycle import EXIT_OK
from services.standalone.provisioning import provision_bus


def run(parsed: argparse.Namespace) -> int:
    """Make what is missing and say what was made."""
    if bool(parsed.node) != bool(parsed.url):
        raise BadUsageError("provision: --node and --url must be given together")
    place = here(parsed)
    if parsed.node:
        node_id(parsed.node)
        for problem in http_url("--url", parsed.url):
            raise BadConfigError(f"{problem.key}: {problem.rule}, got {problem.value!r}")
    make_data(place.config.data)
    nodes = {node.id: place.endpoints.nodes.get(node.id, "") for node in stated_nodes(place.config)}
    nodes |= {parsed.node: parsed.url} if parsed.node else {}
    done = asyncio.run(provision_bus(place.config, place.bus_url, nodes, {}))
    for what, names in (
        ("made stream", done.streams_made), ("changed stream", done.streams_changed), ("made consumer", done.consumers_made),
    ):  # fmt: skip
        for name in names:
            print(f"{what} {name}")
    keys = place.config.data / "keys"
    print(f"nodes: {', '.join(member.name for member in done.nodes) or 'none'}; keys: {keys}")
    if parsed.node:
        print(
            f"bring {keys / (parsed.node + '.json')} to the machine of {parsed.node} and name it in [bus] credentials there"
        )
    return EXIT_OK

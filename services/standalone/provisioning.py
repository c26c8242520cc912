"""Provisioning as `leaseway up` and `leaseway provision` do it: the bus made ready, then its nodes enrolled in the history."""

import asyncio
from collections.abc import Mapping
from typing import Final, Literal

from adapters.keys import load_credentials
from adapters.nats.control import ControlDesk
from adapters.nats.preflight import preflight, require_sound
from adapters.nats.provision import Provisioned, provision
from domain.ids import NodeId
from services.config import Config
from services.data_directory import Endpoints

GATEWAY: Final = "main"
"""Id of the one gateway of a standalone cluster."""


async def provision_all(config: Config, endpoints: Endpoints) -> Provisioned:
    """Make the bus of a standalone cluster what it must be, and enrol its nodes."""
    return await provision_bus(config, endpoints.nats, endpoints.nodes, {GATEWAY: endpoints.gateway})


async def provision_bus(config: Config, url: str, nodes: Mapping[str, str], gateways: Mapping[str, str]) -> Provisioned:
    """Make keys, streams and consumers, look whether the bus is sound, and state who is enrolled (id -> url).

    Raises:
        LeasewayError: the bus cannot be reached, or is not what it must be.
    """
    durability: Literal["strict", "relaxed"] = "relaxed" if config.bus.durability == "relaxed" else "strict"
    done = await provision(config.data, url, config.cluster.name, durability, nodes, gateways=gateways)
    require_sound(await preflight(config.data, url, config.cluster.name, durability))
    await asyncio.to_thread(_enrol, config, url, done)
    return done


def _enrol(config: Config, url: str, done: Provisioned) -> None:
    """State every node that is new, or has another key or url than before."""
    with ControlDesk(url, load_credentials(config.data / "keys" / "operator.json"), config.cluster.name) as desk:
        for member in done.nodes:
            desk.enroll_node(NodeId(member.name), member.public_key, member.url)

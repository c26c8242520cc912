"""Provisioning as `leaseway up` and `leaseway provision` do it: the bus made ready, then its nodes enrolled in the history."""

from typing import Final, Literal

from adapters.nats.provision import Provisioned, provision
from services.config import Config
from services.data_directory import Endpoints

GATEWAY: Final = "main"
"""Id of the one gateway of a standalone cluster."""


async def provision_all(config: Config, endpoints: Endpoints) -> Provisioned:
    """Make the bus of a standalone cluster what it must be, and enrol its nodes."""
    durability: Literal["strict", "relaxed"] = "relaxed" if config.bus.durability == "relaxed" else "strict"
    return await provision(
        config.data,
        endpoints.nats,
        config.cluster.name,
        durability,
        endpoints.nodes,
        gateways={GATEWAY: endpoints.gateway},
    )

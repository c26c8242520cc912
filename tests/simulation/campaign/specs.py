"""How a node of the simulated cluster is configured."""

from collections.abc import Mapping

import msgspec

from adapters.log.spool import BYTES_MAX
from domain.engine_room import EngineRoom
from domain.events import ModelInfo
from domain.ids import ModelId, NodeId
from domain.inputs import RoomConfig, RuntimeConfig
from domain.runtime import ModelRuntime

CONTEXT = 8192


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a node, and how its engine is."""

    id: ModelId
    job_us: int
    """Of a request of mean work."""
    slots: int = 1
    runtime: str = ""
    load_us: int = 0


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node's configuration."""

    name: NodeId
    models: tuple[ModelSpec, ...]
    depth: int = 2
    held_max: int = 10_000
    wait_us_max: int = 600_000_000
    spool_bytes: int = BYTES_MAX


def runtime_config(spec: NodeSpec, model: ModelSpec) -> RuntimeConfig:
    """Return what a model's machines are told; settings come later, by control events."""
    return RuntimeConfig(
        node=spec.name,
        model=model.id,
        slots=model.slots,
        depth=spec.depth,
        held_max=spec.held_max,
        wait_us_max=spec.wait_us_max,
        runtime=model.runtime,
    )


def rooms_of(spec: NodeSpec, runtimes: Mapping[ModelId, ModelRuntime]) -> dict[str, EngineRoom]:
    """Return the rooms that models of a node share, each joined by its models."""
    rooms: dict[str, EngineRoom] = {}
    for model in spec.models:
        if model.runtime:
            config = RoomConfig(node=spec.name, runtime=model.runtime)
            rooms.setdefault(model.runtime, EngineRoom(config)).join(runtimes[model.id])
    for room in rooms.values():
        room.watch(runtimes.values())
    return rooms


def model_info(model: ModelSpec, *, ready: bool) -> ModelInfo:
    """Return what a node says of a model when it registers."""
    return ModelInfo(
        id=model.id, local_id=model.id, slots=model.slots, context=CONTEXT, ready=ready, runtime=model.runtime
    )

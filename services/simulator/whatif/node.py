"""A node as history left it: its models as it registered them, each with an engine, or sharing one."""

from collections.abc import Callable, Sequence
from typing import Final

from domain.control.settings import SETTINGS
from domain.engine_room import EngineRoom
from domain.events import ModelInfo
from domain.ids import ModelId, NodeId
from domain.inputs import RoomConfig, RuntimeConfig
from domain.master.fits import Fit
from domain.master.rooms import room_name
from domain.master.state import Node, State, owner_key
from domain.runtime import ModelRuntime
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.machines import MachineNode
from services.simulator.product.names import NEVER_US

_HELD_MAX: Final = 1_000_000
_DEPTH: Final = 2
MakeEngine = Callable[["HistoricNode", int], VirtualEngine]
"""(node, slots) -> an engine."""


class HistoricNode(MachineNode):
    """Machines of one node, in the middle of its life."""

    def __init__(self, name: NodeId, state: State, make: MakeEngine) -> None:
        super().__init__(name)
        known = state.nodes[name]
        self.known, self.pseq, self.incarnation = known, known.pseq, known.incarnation
        self.own_depth = known.depth or _DEPTH
        self._rooms: dict[str, EngineRoom] = {}
        self.engines: dict[ModelId, VirtualEngine] = {}
        for runtime, infos in sorted(_by_runtime(known).items()):
            engine = make(self, max(info.slots for info in infos))
            for info in infos:
                self.runtimes[info.id] = ModelRuntime(self._config(info))
                self.engines[info.id] = engine
            if infos[0].runtime:
                self._rooms[runtime] = self._room(runtime, infos, state)
        for room in self._rooms.values():
            room.watch(self.runtimes.values())

    def rooms(self) -> Sequence[EngineRoom]:
        """Return the runtimes that its models share."""
        return [*self._rooms.values()]

    def room_of(self, model: ModelId) -> EngineRoom | None:
        """Return the runtime that a model shares."""
        return self._rooms.get(self.known.models[model].runtime)

    def residents(self) -> list[tuple[EngineRoom, ModelId | None]]:
        """Return what each shared runtime holds at the beginning; None where nothing is loaded, or nobody said what."""
        return [(room, self._resident(runtime)) for runtime, room in self._rooms.items()]

    def _resident(self, runtime: str) -> ModelId | None:
        models = [info for info in self.known.models.values() if info.runtime == runtime]
        room = self.known.rooms.get(room_name(models[0]))
        resident = room.resident or room.loading if room is not None else ""
        ready = [info.id for info in models if info.ready]
        return ModelId(resident) if resident else ready[0] if ready and room is None else None

    def _config(self, info: ModelInfo) -> RuntimeConfig:
        return RuntimeConfig(
            node=self.name,
            model=info.id,
            lane=info.lane,
            slots=info.slots,
            depth=self.own_depth,
            wait_us_max=NEVER_US,
            held_max=_HELD_MAX,
            runtime=info.runtime,
        )

    def _room(self, runtime: str, infos: Sequence[ModelInfo], state: State) -> EngineRoom:
        delay_us = SETTINGS["offload_restore_delay"].default
        room = EngineRoom(RoomConfig(node=self.name, runtime=runtime, restore_delay_us=delay_us))
        for info in infos:
            room.join(self.runtimes[info.id])
            fit = state.fits.get(owner_key(self.name, info.id)) or Fit()
            for load_us, at_us in zip(fit.loads_us, fit.loads_at_us, strict=True):
                if at_us >= self.known.since_us:
                    room.remember_load(info.id, load_us)
        return room


def _by_runtime(known: Node) -> dict[str, list[ModelInfo]]:
    """Return a node's models by what they run in: those that share a runtime together, each other one alone."""
    found: dict[str, list[ModelInfo]] = {}
    for _, info in sorted(known.models.items()):
        found.setdefault(info.runtime or f"\x1f{info.id}", []).append(info)
    return found

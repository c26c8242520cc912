"""A simulated node: one engine, and the product's machines for every model that the node may serve."""

from collections.abc import Sequence

from domain.actions import Output
from domain.engine_room import EngineRoom
from domain.events import ModelInfo
from domain.ids import ModelId
from domain.inputs import RoomConfig, RuntimeConfig
from domain.runtime import ModelRuntime
from services.simulator.model.scenario import Fault, Scenario
from services.simulator.product.engine import VirtualEngine
from services.simulator.product.machines import MachineNode
from services.simulator.product.names import NEVER_US, RUNTIME, model_name, name_of, us

_CONTEXT = 1 << 20
"""Tokens of each model's window: requests of a scenario have none, so all fit."""


class VirtualNode(MachineNode):
    """What a node is, and what it has stated. A new life has new machines; the engine and the measures stay."""

    def __init__(self, scenario: Scenario, number: int, engine: VirtualEngine) -> None:
        super().__init__(name_of(number))
        self.scenario, self.number, self.engine = scenario, number, engine
        self.models = _models_of(scenario, number)
        self.loads, self.load_time_s = 0, 0.0
        self.faults: list[Fault] = []
        """What has struck it."""
        self.room: EngineRoom | None = None

    @property
    def shares(self) -> bool:
        """Whether its models share its runtime, one of them loaded at a time."""
        return len(self.models) > 1

    def begin(self, resident: ModelId | None, now_us: int) -> list[Output]:
        """Make new machines, with `resident` in the engine."""
        self.pseq, self.wakes_us, self.slots = 0, NEVER_US, {}
        self.runtimes = {model: ModelRuntime(self._config(model)) for model in self.models}
        if not self.shares:
            self.room = None
            return [] if resident else self.runtimes[self.models[0]].set_engine_up(up=False, now_us=now_us)
        delay_us = us(self.scenario.restore_after_s)
        self.room = EngineRoom(RoomConfig(node=self.name, runtime=RUNTIME, restore_delay_us=delay_us))
        for runtime in self.runtimes.values():
            self.room.join(runtime)
        return self.room.begin(resident, now_us)

    def _config(self, model: ModelId) -> RuntimeConfig:
        return RuntimeConfig(
            node=self.name,
            model=model,
            depth=self.scenario.depth,
            wait_us_max=NEVER_US,
            held_max=1_000_000,
            runtime=RUNTIME if self.shares else "",
        )

    def infos(self, resident: ModelId | None) -> tuple[ModelInfo, ...]:
        """Return its models as it registers them."""
        runtime = RUNTIME if self.shares else ""
        return tuple(
            ModelInfo(id=model, local_id=model, context=_CONTEXT, ready=model == resident, runtime=runtime)
            for model in self.models
        )

    def resident(self) -> ModelId:
        """Return the model that is in when the run begins."""
        return model_name(self.scenario.loaded[self.number])

    def rooms(self) -> Sequence[EngineRoom]:
        """Return the runtime that its models share, if they do."""
        return () if self.room is None else (self.room,)


def _models_of(scenario: Scenario, number: int) -> tuple[ModelId, ...]:
    """Return the models that a node may serve: its own, those of the owners that it helps, and what is in at the beginning."""
    owners = (owner for owner, helpers in scenario.links.items() if number in helpers)
    numbers = {scenario.model_of(number), scenario.loaded[number], *map(scenario.model_of, owners)}
    return tuple(model_name(model) for model in sorted(numbers))

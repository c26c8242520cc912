"""A machine on which nodes live, one process after another: its clock, its disk, its engines."""

from pathlib import Path
from typing import TYPE_CHECKING

from domain.events import Witness
from domain.ids import ModelId
from domain.subjects import CONTROL, DECISIONS
from tests.simulation.campaign.bus import Durable
from tests.simulation.campaign.engine import Engine, Entry
from tests.simulation.campaign.loop import SkewedClock
from tests.simulation.campaign.node import NodeLife
from tests.simulation.campaign.specs import ModelSpec, NodeSpec

if TYPE_CHECKING:
    from tests.simulation.campaign.world import World

RESTART_US = 2_000_000
"""Until a drained process has a successor."""


class NodeMachine:
    """A machine: what outlives the node's process is here."""

    def __init__(self, world: "World", spec: NodeSpec, clock: SkewedClock, data: Path) -> None:
        self.world, self.spec, self.clock, self.data = world, spec, clock, data
        self.name = spec.name
        self.lives = 0
        self.witness: Witness | None = None
        self.durables = {CONTROL: Durable(CONTROL), DECISIONS: Durable(DECISIONS)}
        self.life: NodeLife | None = None
        self.engines: dict[ModelId, Engine] = {}
        groups: dict[str, list[ModelSpec]] = {}
        for model in spec.models:
            groups.setdefault(model.runtime or f"={model.id}", []).append(model)
        for group in groups.values():
            engine = Engine(
                world.loop, spec.name, world.journal, models=tuple(m.id for m in group), slots=group[0].slots
            )
            engine.done, engine.began, engine.violated = self._left, self._began, world.violate
            for model in group:
                self.engines[model.id] = engine

    def model(self, model: ModelId) -> ModelSpec:
        return next(each for each in self.spec.models if each.id == model)

    def start(self) -> None:
        self.lives += 1
        for model in self.spec.models:
            engine = self.engines[model.id]
            if model.runtime and not engine.up:  # a child of the node's process
                engine.start()
        # control events are read from the first on: a new process knows nothing of them
        self.durables[CONTROL].acknowledged = 0
        self.life = NodeLife(self)
        self.world.say(self.name, f"starts, life {self.lives}")
        self.life.process.context.copy().run(self.life.begin)

    def kill(self) -> None:
        """The process is gone at once; the engine notices that its connections are closed."""
        life, self.life = self.life, None
        if life is None:
            return
        life.process.dead = True
        life.port.close()
        life.spool.close()
        for engine in self.engines.values():
            if len(engine.models) > 1:
                engine.crash()
            for request in list(engine.inside):
                engine.cancel(request)
        self.world.wire.machine_died(life)
        self.world.clients.owner_died(life)
        self.world.say(self.name, "is killed")

    def leave(self, life: "NodeLife") -> None:
        """A drained process ends by itself, and a new one takes its place."""
        if self.life is life:
            self.kill()
            self.world.loop.after(RESTART_US, self.start_if_down)

    def start_if_down(self) -> None:
        if self.life is None:
            self.start()

    def _left(self, entry: Entry, whole: bool) -> None:
        if self.life is not None:
            self.world.loop.after(50, self.life.engine_left, entry, whole, process=self.life.process)

    def _began(self, entry: Entry) -> None:
        if self.life is not None:
            self.world.loop.after(50, self.life.engine_began, entry, process=self.life.process)

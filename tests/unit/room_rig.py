"""Three models in one runtime, to be driven in tests."""

from typing import Any

from domain.actions import LoadModel, Output
from domain.engine_room import EngineRoom
from domain.ids import LinkId, ModelId, NodeId
from domain.inputs import RoomConfig, RuntimeConfig
from domain.runtime import ModelRuntime
from tests.unit.machine_rig import OK, SECOND, facts, new, offer, rid

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
LINK_OF = {A: LinkId("aaaa"), B: LinkId("bbbb"), C: LinkId("cccc")}
RIVAL_US = 30 * SECOND
"""How long own work of another model waits at most while the loaded one has work."""


class Rig:
    """One room with models a, b and c, all of them helpers and enrolled, `a` loaded."""

    def __init__(self, resident: ModelId | None = A, **config: Any) -> None:
        self.room = EngineRoom(RoomConfig(node=NodeId("n1"), runtime="gpu0", **config))
        self.models = {
            model: ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=model, runtime="gpu0")) for model in (A, B, C)
        }
        for model, made in self.models.items():
            self.room.join(made)
            made.set_links((), (LINK_OF[model],), 0)
        self.room.begin(resident, 0)

    def submit(self, model: ModelId, number: int, now_us: int) -> list[Output]:
        return self.models[model].submit(new(number), now_us)

    def done(self, model: ModelId, number: int, now_us: int) -> list[Output]:
        return self.models[model].engine_finished(rid(number), OK, now_us)

    def borrow(self, model: ModelId, number: int, now_us: int, **changes: Any) -> list[Output]:
        outputs = self.models[model].borrow(offer(number, link=LINK_OF[model], **changes), now_us)
        return outputs + self.models[model].borrow_body(rid(number), now_us)


def loads(outputs: list[Output]) -> list[tuple[str, str]]:
    """Return which models are to be loaded, and for whom."""
    return [(action.model, action.cause) for action in facts(outputs, LoadModel)]

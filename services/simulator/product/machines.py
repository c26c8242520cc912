"""The product's machines of one simulated node, whatever its engines are."""

from collections.abc import Callable, Sequence
from typing import Any

from domain.actions import Output
from domain.engine_room import EngineRoom
from domain.ids import LinkId, ModelId, NodeId
from domain.runtime import ModelRuntime
from services.simulator.product.names import NEVER_US


class MachineNode:
    """A node's machines and what reaches them. A new life has new machines."""

    def __init__(self, name: NodeId) -> None:
        self.name = name
        self.alive, self.hung, self.life = True, False, 0
        self.pseq = 0
        self.wakes_us = NEVER_US
        self.slots: dict[LinkId, int] = {}
        """Of the leases that it holds, as it stated them."""
        self.kept_for_later: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What reached it while it hung, or its clients want while it is down."""
        self.runtimes: dict[ModelId, ModelRuntime] = {}

    def rooms(self) -> Sequence[EngineRoom]:
        """Return the runtimes that its models share."""
        return ()

    def tick(self, now_us: int) -> list[Output]:
        """Do what is due, the machines in their order."""
        out: list[Output] = []
        for machine in self._machines():
            due_us = machine.next_timer_us()
            if due_us is not None and due_us <= now_us:
                out += machine.tick(now_us)
        return out

    def next_timer_us(self) -> int | None:
        """Return when `tick` is due next; None if nothing waits for time."""
        times = [machine.next_timer_us() for machine in self._machines()]
        return min((time for time in times if time is not None), default=None)

    def _machines(self) -> list[ModelRuntime | EngineRoom]:
        return [*self.runtimes.values(), *self.rooms()]

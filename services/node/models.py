"""The models of a node put together: machines, engines, and who keeps the engines."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from domain.control.view import ControlView
from domain.events import Fact, RuntimeState
from domain.ids import ModelId, NodeId
from domain.inputs import RoomConfig, RuntimeConfig
from domain.ports import Clock
from services.config import Config, NodeModel
from services.node.engine_keeper import EngineKeeper
from services.node.engine_life import EngineLife
from services.node.own_work import Served
from services.node.serving import ModelServing
from services.node.shared_runtime import SharedRuntime
from services.node.sizes import Sizes
from services.telemetry.tracing import OFF, Tracing

DEPTH: Final = "scheduling_backend_depth"
_CONNECTIONS: Final = 64


class Models:
    """Everything that serves, by model."""

    def __init__(
        self, config: Config, view: ControlView, state: Callable[[Fact], None], clock: Clock, tracing: Tracing = OFF
    ) -> None:
        """Prepare what `config.node` states; nothing runs yet."""
        self._tracing = tracing
        self._config, self._view, self._state, self._clock = config, view, state, clock
        self._node = NodeId(config.node.id)
        self._shared: dict[str, SharedRuntime] = {}
        self._keepers: list[EngineKeeper] = []
        self.by_id: dict[ModelId, Served] = {}
        for model in config.node.models:
            self.by_id[ModelId(model.id)] = self._made(model)
        for shared in self._shared.values():
            shared.room.watch(served.serving.runtime for served in self.by_id.values())

    def engines(self) -> list[Coroutine[Any, Any, None]]:
        """Return what keeps the engines, to be run until the node ends."""
        return [*(keeper.run() for keeper in self._keepers), *(shared.run() for shared in self._shared.values())]

    async def settled(self, timeout_s: float) -> None:
        """Return once it is known of every engine that is to be there at the start, or after `timeout_s`."""
        waiting: list[EngineKeeper | SharedRuntime] = [*self._keepers, *self._shared.values()]
        await asyncio.gather(*(each.settled(timeout_s) for each in waiting))

    def stop(self) -> None:
        """Let no timer outlive the node."""
        for served in self.by_id.values():
            served.serving.stop()
        for shared in self._shared.values():
            shared.stop()

    @property
    def depth(self) -> int:
        """Return how many requests a linked model's engine is given: what the cluster states, else the node's own number."""
        return self._config.node.depth if self._view.source(DEPTH) == "default" else self._view.setting(DEPTH)

    def control_changed(self) -> None:
        """Pass on what the view says now of links and settings."""
        for shared in self._shared.values():
            shared.room.set_restore(
                delay_us=self._view.setting("offload_restore_delay"),
                keep_while_likely=bool(self._view.setting("offload_keep_while_likely")),
            )
        for model, served in sorted(self.by_id.items()):
            lent = [link.link for link in self._view.links_lent_by(self._node, model)]
            borrowed = [link.link for link in self._view.links_borrowed_by(self._node, model)]
            served.serving.set_links(lent, borrowed)
            served.serving.set_depth(self.depth)
            served.serving.set_hold(on=bool(self._view.setting("offload_hold_for_faster_helper")))
            served.serving.set_stall(self._view.setting("offload_lent_stall_timeout"))
            served.serving.set_lending(
                ttl_us=self._view.setting("offload_lease_ttl"), streams=bool(self._view.setting("offload_streams"))
            )

    def able(self) -> dict[str, bool]:
        """Return of each model whether it can serve: its engine is up, or it is loaded when it is asked for."""
        servings = [served.serving for _, served in sorted(self.by_id.items())]
        return {str(serving.id): serving.ready or bool(serving.model.runtime) for serving in servings}

    def runtimes(self) -> tuple[RuntimeState, ...]:
        """Return what each shared runtime holds."""
        now_us = self._clock.monotonic_us()
        return tuple(self._shared[name].room.state(now_us) for name in sorted(self._shared))

    def _made(self, model: NodeModel) -> Served:
        shared = self._runtime(model.runtime) if model.runtime else None
        serving = ModelServing(model, self._runtime_config(model), self._state, self._clock, shared)
        life = EngineLife(
            model,
            self._config.http.limits,
            connections=max(_CONNECTIONS, model.slots),
            busy=lambda: serving.runtime.counts().in_engine > 0,
        )
        sizes = Sizes(model.lane, lambda: self._view.setting("scheduling_context_reserve"), self._clock)
        served = Served(serving=serving, life=life, sizes=sizes, tracing=self._tracing)
        if shared is not None:
            shared.join(served)
        else:
            self._keepers.append(EngineKeeper(life, self._clock, self._state, serving.engine_up))
        return served

    def _runtime(self, name: str) -> SharedRuntime:
        if name not in self._shared:
            config = RoomConfig(
                node=self._node,
                runtime=name,
                restore_delay_us=self._view.setting("offload_restore_delay"),
                keep_while_likely=bool(self._view.setting("offload_keep_while_likely")),
            )
            self._shared[name] = SharedRuntime(config, self._clock, self._state)
        return self._shared[name]

    def _runtime_config(self, model: NodeModel) -> RuntimeConfig:
        limits = self._config.http.limits
        return RuntimeConfig(
            node=self._node,
            model=ModelId(model.id),
            lane=model.lane,
            slots=model.slots,
            depth=self.depth,
            held_max=limits.held,
            wait_us_max=limits.queue_wait_s * 1_000_000,
            lease_ttl_us=self._view.setting("offload_lease_ttl"),
            offload_streams=bool(self._view.setting("offload_streams")),
            hold_for_faster_helper=bool(self._view.setting("offload_hold_for_faster_helper")),
            stall_us=self._view.setting("offload_lent_stall_timeout"),
            runtime=model.runtime,
        )

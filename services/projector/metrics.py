"""What a projector measures: how far each stream is in the tables, and each webhook in the streams; read when somebody asks."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import web

from adapters.http.server import Call, Handler
from adapters.log.public import PUBLIC
from domain.errors import BusError
from services.projector.projector import Projector
from services.projector.told import Told
from services.projector.webhooks import STATES, Hook
from services.telemetry import answer
from services.telemetry.instruments import Reading

_BUS_S = 1.0


class ProjectorMetrics:
    """The instruments of one projector."""

    def __init__(
        self,
        projector: Projector,
        bus_connected: Callable[[], bool],
        hooks: Sequence[Hook] = (),
        told: Told | None = None,
    ) -> None:
        """Measure `projector`, its webhooks, and what is told to nobody."""
        self._projector, self._hooks = projector, hooks
        self._last: dict[str, int] = {}
        self.instruments = measured = answer.instruments("projector")
        progress = projector.progress
        measured.state("leaseway_bus_connected", bus_connected)
        measured.state("leaseway_clickhouse_up", self._up)
        measured.read("leaseway_clickhouse_trouble", lambda: [((cause,), 1.0) for cause in sorted(projector.causes)])
        measured.read("leaseway_projector_lag_messages", lambda: [((name,), self._lag(name)) for name in progress])
        for name, field in (
            ("position", "position"),
            ("rows_total", "rows"),
            ("unreadable_total", "unreadable"),
            ("gone_total", "gone"),
            ("halved_total", "halved"),
        ):
            self._read(f"leaseway_projector_{name}", field)
        measured.state("leaseway_projector_void_total", lambda: sum(each.void for each in progress.values()))

        measured.state("leaseway_told_refused_total", lambda: told.refused if told is not None else 0)
        self._measure_hooks()

    def _measure_hooks(self) -> None:
        measured = self.instruments
        for metric, value in (
            ("leaseway_webhook_retries_total", lambda hook: hook.retries),
            ("leaseway_webhook_missed_total", lambda hook: hook.missed),
            ("leaseway_webhook_oldest_age", lambda hook: hook.oldest_s()),
            ("leaseway_webhook_lag_messages", self._hook_lag),
        ):
            measured.read(metric, partial(self._of_hooks, value))
        measured.read("leaseway_webhook_posts_total", self._posts)
        measured.read("leaseway_webhook_state", self._states)

    def _of_hooks(self, value: Callable[[Hook], float]) -> Reading:
        return [((hook.config.name,), float(value(hook))) for hook in self._hooks]

    def _posts(self) -> Reading:
        return [((hook.config.name, result), float(n)) for hook in self._hooks for result, n in hook.posts.items()]

    def _states(self) -> Reading:
        return [((hook.config.name, state), float(hook.state == state)) for hook in self._hooks for state in STATES]

    def _hook_lag(self, hook: Hook) -> float:
        lasts = {name: self._last.get(name, -1) for name in PUBLIC}
        if min(lasts.values()) < 0:
            return -1
        return sum(max(0, last - hook.place.of(name)) for name, last in lasts.items())

    def beside(self, handler: Handler) -> Handler:
        """Return a handler that shows the metrics, and gives everything else to `handler`."""

        async def handle(call: Call) -> web.StreamResponse:
            if call.request.method == "GET" and call.path == answer.PATH:
                return await self.answer(call)
            return await handler(call)

        return handle

    async def answer(self, call: Call) -> web.Response:
        """Return every metric; it asks the bus how long the streams are, and does not wait long for that."""
        names = list(dict.fromkeys((*self._projector.progress, *(PUBLIC if self._hooks else ()))))
        for name, last in zip(names, await asyncio.gather(*map(self._ask, names)), strict=True):
            self._last[name] = last
        return answer.answer(self.instruments, call.request, call)

    def _read(self, metric: str, field: str) -> None:
        progress = self._projector.progress
        self.instruments.read(metric, lambda: [((name,), getattr(each, field)) for name, each in progress.items()])

    def _up(self) -> bool:
        projector = self._projector
        return projector.store is not None and not any(each.error for each in projector.progress.values())

    def _lag(self, stream: str) -> float:
        last = self._last.get(stream, -1)
        return max(0, last - self._projector.progress[stream].position) if last >= 0 else -1

    async def _ask(self, stream: str) -> int:
        try:
            async with asyncio.timeout(_BUS_S):
                return (await self._projector.streams[stream].bounds()).last
        except (BusError, TimeoutError):
            return -1

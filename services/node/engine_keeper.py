"""Keeps one model's engine: starts it if it is the node's to start, watches it, says when it is up and when it is dead."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Protocol

from adapters.clock import random_fraction
from adapters.engines import process
from adapters.engines.llamacpp import LlamaCppEngine
from adapters.engines.openai import OpenAIEngine
from adapters.engines.port import Engine, EngineHealth
from adapters.http.upstream import Upstream
from domain.errors import BadConfigError
from domain.events import Fact, Loaded, LoadFailed, LoadStarted
from domain.ids import ModelId
from domain.ports import Clock
from services.config import Limits, NodeModel

_LOG: Final = logging.getLogger("leaseway.node")
WATCH_S: Final = 1.0
MISSES_MAX: Final = 3
"""An idle engine that does not answer so often in a row is dead; one with work inside is not judged by its silence."""
_LOOK_FIRST_S: Final = 0.05
_LOOK_MAX_S: Final = 0.5
_START_S: Final = 600.0
"""A child that is not ready by then is started anew: a large model loads for minutes."""
_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
HTTP_SILENCE_S: Final = 600.0


class UpChanged(Protocol):
    """Called when the engine came up, or is dead."""

    def __call__(self, *, up: bool) -> None:
        """Take the state."""
        ...


State = Callable[[Fact], None]


class EngineKeeper:
    """The engine of one model, whichever process it is just now."""

    def __init__(
        self,
        model: NodeModel,
        limits: Limits,
        *,
        connections: int,
        clock: Clock,
        state: State,
        up_changed: UpChanged,
        busy: Callable[[], bool],
    ) -> None:
        """Prepare; `run` does the rest. `busy`: whether something runs inside the engine now."""
        self._model, self._clock, self._state = model, clock, state
        self._up_changed, self._busy = up_changed, busy
        self._work = Upstream(connections=connections, connect_s=limits.upstream_connect_s, silent_s=HTTP_SILENCE_S)
        self._questions = Upstream(connections=4, connect_s=limits.upstream_connect_s)
        self._look_now = asyncio.Event()
        self._settled = asyncio.Event()
        self._engine: Engine | None = None
        self._child: process.EngineProcess | None = None
        self.health = EngineHealth(ready=False, reason="not started")

    @property
    def engine(self) -> Engine | None:
        """Return the engine; None while there is none to be asked."""
        return self._engine

    def suspect(self) -> None:
        """Have the engine looked at now: somebody could not reach it."""
        self._look_now.set()

    async def settled(self, timeout_s: float) -> None:
        """Return once it is known whether the engine is there, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()

    async def run(self) -> None:
        """Keep the engine until cancelled."""
        failures = 0
        try:
            while True:
                began_us = self._clock.monotonic_us()
                try:
                    why = await self._one_life()
                except BadConfigError as error:
                    why = str(error)
                self._down(why)
                lived_s = (self._clock.monotonic_us() - began_us) / 1e6
                failures = 0 if lived_s > _BACKOFF_S[-1] else min(failures + 1, len(_BACKOFF_S))
                if self._model.command:
                    await asyncio.sleep(_BACKOFF_S[failures - 1] * (0.5 + random_fraction()))
        finally:
            self._engine = None
            if self._child is not None:
                await self._child.stop()
            await self._work.close()
            await self._questions.close()

    async def _one_life(self) -> str:
        """Start the engine if it is ours, wait until it is ready, watch it until it is dead; return why."""
        began_us = self._clock.monotonic_us()
        url, key, ended = self._model.url, "", None
        if self._model.command:
            self._state(LoadStarted(model=ModelId(self._model.id), cause="own"))
            self._child = await process.start(self._model.command, port=self._model.port)
            url, key = self._child.url, self._child.key
            ended = asyncio.ensure_future(self._child.ended())
        try:
            engine = self._adapter(url, key)
            why = await self._until_ready(engine, ended)
            if why:
                return why
            load_us = self._clock.monotonic_us() - began_us if self._model.command else 0
            self._up(engine, load_us)
            return await self._until_dead(engine, ended)
        finally:
            if ended is not None:
                ended.cancel()
            if self._child is not None:
                await self._child.stop()
                self._child = None

    def _adapter(self, url: str, key: str) -> OpenAIEngine:
        kind = LlamaCppEngine if self._model.engine == "llama.cpp" else OpenAIEngine
        return kind(url, _Both(self._work, self._questions), key=key)

    async def _until_ready(self, engine: Engine, ended: "asyncio.Future[int] | None") -> str:
        pause_s, waited_s = _LOOK_FIRST_S, 0.0
        while waited_s < _START_S or ended is None:
            self.health = await engine.health()
            if self.health.ready:
                return ""
            if ended is None:
                self._settled.set()
            if await self._pause(pause_s, ended):
                return _exit_of(ended)
            waited_s += pause_s
            pause_s = min(pause_s * 1.5, _LOOK_MAX_S)
        return f"not ready within {_START_S:g} s: {self.health.reason}"

    async def _until_dead(self, engine: Engine, ended: "asyncio.Future[int] | None") -> str:
        misses = 0
        while True:
            if await self._pause(WATCH_S, ended):
                return _exit_of(ended)
            self.health = await engine.health()
            if self.health.ready:
                misses = 0
            elif self.health.gone or not self._busy():
                misses += 1
                if self.health.gone or misses >= MISSES_MAX:
                    return self.health.reason

    async def _pause(self, seconds: float, ended: "asyncio.Future[int] | None") -> bool:
        """Wait, shorter if someone suspects; tell whether the child has ended."""
        self._look_now.clear()
        looking = asyncio.ensure_future(self._look_now.wait())
        waiting: set[asyncio.Future[object]] = {looking}  # type: ignore[arg-type]  # what they give is not read
        if ended is not None:
            waiting.add(ended)  # type: ignore[arg-type]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
        return ended is not None and ended.done()

    def _up(self, engine: Engine, load_us: int) -> None:
        self._engine = engine
        self._settled.set()
        _LOG.info("engine_up", extra={"model": self._model.id, "url": engine.url, "load_ms": load_us // 1000})
        self._state(Loaded(model=ModelId(self._model.id), load_us=load_us, cause="own"))
        self._up_changed(up=True)

    def _down(self, why: str) -> None:
        was_up, self._engine = self._engine is not None, None
        self._settled.set()
        if not was_up and not self._model.command:
            return
        _LOG.warning("engine_down", extra={"model": self._model.id, "why": why})
        self._state(LoadFailed(model=ModelId(self._model.id), cause="own", reason=why[:200]))
        self._up_changed(up=False)


class _Both:
    """Work over one set of connections, bounded; questions over another, so that a look at its health never waits for work."""

    def __init__(self, work: Upstream, questions: Upstream) -> None:
        self.post = work.post
        self.get = questions.get


def _exit_of(ended: "asyncio.Future[int] | None") -> str:
    code = ended.result() if ended is not None else 0
    return f"the engine ended with exit code {code}"

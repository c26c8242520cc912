"""Keeps the engine of a model that has its runtime to itself: always up, started anew when it dies, and says so."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Protocol

from adapters.clock import random_fraction
from domain.errors import BadConfigError
from domain.events import Fact, Loaded, LoadFailed, LoadStarted
from domain.ids import ModelId
from domain.ports import Clock
from services.node.engine_life import EngineLife

_LOG: Final = logging.getLogger("leaseway.node")
_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class UpChanged(Protocol):
    """Called when the engine came up, or is dead."""

    def __call__(self, *, up: bool) -> None:
        """Take the state."""
        ...


State = Callable[[Fact], None]


class EngineKeeper:
    """Runs one life of the engine after the other."""

    def __init__(self, life: EngineLife, clock: Clock, state: State, up_changed: UpChanged) -> None:
        """Prepare; `run` does the rest."""
        self._life, self._clock, self._state, self._up_changed = life, clock, state, up_changed
        self._model = ModelId(life.model.id)
        self._ours = bool(life.model.command)
        self._settled = asyncio.Event()

    async def settled(self, timeout_s: float) -> None:
        """Return once it is known whether the engine is there, or after `timeout_s`."""
        # of an engine that others start one look tells; ours is known to be there only once it has started
        known = self._settled if self._ours else self._life.looked
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await known.wait()

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
                was_up = self._life.engine is not None
                await self._life.stop()
                self._down(why, was_up=was_up)
                lived_s = (self._clock.monotonic_us() - began_us) / 1e6
                failures = 1 if lived_s > _BACKOFF_S[-1] else min(failures + 1, len(_BACKOFF_S))
                if self._ours:
                    await asyncio.sleep(_BACKOFF_S[failures - 1] * (0.5 + random_fraction()))
        finally:
            await self._life.close()

    async def _one_life(self) -> str:
        """Start the engine if it is ours, wait until it is ready, watch it until it is dead; return why."""
        began_us = self._clock.monotonic_us()
        if self._ours:
            self._state(LoadStarted(model=self._model, cause="own"))
        why = await self._life.start(patience_s=self._life.model.load_timeout_s if self._ours else None)
        if why:
            return why
        self._up(self._clock.monotonic_us() - began_us if self._ours else 0)
        return await self._life.until_dead()

    def _up(self, load_us: int) -> None:
        _LOG.info("engine_up", extra={"model": self._model, "load_ms": load_us // 1000})
        self._state(Loaded(model=self._model, load_us=load_us, cause="own"))
        self._up_changed(up=True)
        self._settled.set()

    def _down(self, why: str, *, was_up: bool) -> None:
        self._settled.set()
        self._life.looked.set()
        if not was_up and not self._ours:
            return
        _LOG.warning("engine_down", extra={"model": self._model, "why": why})
        self._state(LoadFailed(model=self._model, cause="own", reason=why[:200]))
        self._up_changed(up=False)

"""A runtime that several models of the node share: loads what its engine room asks for, one at a time, and watches it."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from adapters.clock import random_fraction
from domain.actions import LoadModel, Output
from domain.engine_room import EngineRoom
from domain.errors import BadConfigError
from domain.events import Fact, Loaded, LoadFailed, LoadStarted
from domain.ids import ModelId, RequestId
from domain.inputs import RoomConfig
from domain.ports import Clock
from services.node.own_work import Served
from services.node.ticket import Ticket

_LOG: Final = logging.getLogger("leaseway.node")
_AGAIN_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class SharedRuntime:
    """The room of one runtime, and the engines that take turns in it."""

    def __init__(self, config: RoomConfig, clock: Clock, state: Callable[[Fact], None]) -> None:
        """Begin without models; `join` brings them."""
        self.room = EngineRoom(config)
        self._clock, self._state = clock, state
        self._members: dict[ModelId, Served] = {}
        self._order: LoadModel | None = None
        self._called = asyncio.Event()
        self._settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._in_memory: ModelId | None = None
        self._took_us = 0
        """What the load of the model that is in memory took."""

    def join(self, served: Served) -> None:
        """Let a model take part; its machines have joined the room."""
        self._members[served.serving.id] = served

    # -- for its models

    def ticket_of(self, request: RequestId) -> Ticket | None:
        """Return the mailbox of a request of any of the models."""
        found = (served.serving.own_ticket(request) for served in self._members.values())
        return next((ticket for ticket in found if ticket is not None), None)

    def load(self, order: LoadModel) -> None:
        """Take the room's order; `run` answers it with exactly one of `loaded` and `load_failed`."""
        self._order = order
        self._called.set()

    def after_input(self) -> None:
        """Look at what an input of one model changed for all: timers, and drains that wait."""
        for served in self._members.values():
            served.serving.look_after()
        self._arm()

    # -- its life

    async def settled(self, timeout_s: float) -> None:
        """Return once it is known whether the first model is there, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()

    async def run(self) -> None:
        """Load and watch until cancelled."""
        served = self._first()
        self._do(self.room.begin(None, self._clock.monotonic_us(), starting=served.serving.id))
        try:
            await self._start_up(served)
            while True:
                if self._order is None:
                    await self._watch()
                else:
                    await self._obey(self._order)
        finally:
            self.stop()
            for served in self._members.values():
                await served.life.close()

    def stop(self) -> None:
        """Let no timer outlive the node."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _first(self) -> Served:
        """Return the model that is to be there at the start."""
        first = next((served for served in self._members.values() if served.serving.model.startup), None)
        return first or next(iter(self._members.values()))

    async def _start_up(self, served: Served) -> None:
        """Load the first model, again if it fails; an order of the room ends the attempt."""
        model = served.serving.id
        for failures in itertools.count():
            self._state(LoadStarted(model=model, cause="own"))
            why = await self._unless_another_is_asked_for(model, self._load(served, for_ever=True))
            self._settled.set()
            if why is None:
                await served.life.stop()
                return
            if self._called.is_set():
                return
            if not why:
                self._state(Loaded(model=model, load_us=self._took_us, cause="own"))
                served.serving.engine_up(up=True)
                return
            self._state(LoadFailed(model=model, cause="own", reason=why[:200]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)] * (0.5 + random_fraction())):
                    await self._called.wait()
                    return

    async def _unless_another_is_asked_for(self, model: ModelId, load: Coroutine[Any, Any, str]) -> str | None:
        """Return what `load` says; None, and it is broken off, if the room orders another model meanwhile."""
        loading, called = asyncio.ensure_future(load), asyncio.ensure_future(self._called.wait())
        try:
            await asyncio.wait({loading, called}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done() and self._order is not None and self._order.model != model:
                return None
            return await loading
        finally:
            await _cancelled(loading, called)

    async def _watch(self) -> None:
        """Return when the room has an order, or the loaded engine has died, which is told."""
        served = self._loaded()
        called = asyncio.ensure_future(self._called.wait())
        dying = asyncio.ensure_future(served.life.until_dead()) if served is not None else None
        try:
            await asyncio.wait({called, dying} if dying is not None else {called}, return_when=asyncio.FIRST_COMPLETED)
            if served is None or dying is None or not dying.done():
                return
            why = dying.result()
        finally:
            await _cancelled(called, dying)
        _LOG.warning("engine_down", extra={"model": served.serving.id, "why": why})
        self._in_memory = None
        await served.life.stop()
        served.serving.engine_up(up=False)

    def _loaded(self) -> Served | None:
        """Return the model that is in memory and can be asked; not one that was told to leave and did not."""
        served = self._members.get(self._in_memory) if self._in_memory is not None else None
        return served if served is not None and served.life.engine is not None else None

    async def _obey(self, order: LoadModel) -> None:
        """Load what the room asked for, in place of what is in memory, and answer."""
        self._called.clear()
        began_us = self._clock.monotonic_us()
        loaded = self._loaded()
        there = loaded is not None and loaded.serving.id == order.model
        why = "" if there else await self._swap(order.model)
        self._order = None
        now_us = self._clock.monotonic_us()
        if why:
            _LOG.warning("load_failed", extra={"model": order.model, "cause": order.cause, "why": why})
            outputs = self.room.load_failed(order.model, why[:200], now_us)
        else:
            # of one that was being loaded already when it was ordered, the whole time counts
            load_us = max(now_us - began_us, self._took_us)
            _LOG.info("loaded", extra={"model": order.model, "cause": order.cause, "load_ms": load_us // 1000})
            outputs = self.room.loaded(order.model, load_us, now_us)
        self._do(outputs)

    async def _swap(self, model: ModelId) -> str:
        """Unload what is in memory, load `model`; return why that failed, or the empty text."""
        leaving = self._members.get(self._in_memory) if self._in_memory is not None else None
        if leaving is not None and leaving.serving.id != model:
            why = await leaving.life.stop()
            if why:
                return f"model {leaving.serving.id} does not leave: {why}"
            self._in_memory = None
        return await self._load(self._members[model], for_ever=False)

    async def _load(self, served: Served, *, for_ever: bool) -> str:
        """Start the engine of a model and remember it as what is in memory; return why it failed, or the empty text.

        `for_ever`: wait as long as it takes for an engine that others start. Else one that loads by itself when it is asked for
        work is only looked at.
        """
        model, began_us = served.serving.model, self._clock.monotonic_us()
        ordered = bool(model.command or model.load_url)
        patience_s = model.load_timeout_s if ordered else None if for_ever else 0
        try:
            why = await served.life.start(patience_s=patience_s)
        except BadConfigError as error:
            why = str(error)
        if why:
            await served.life.stop()
            return why
        self._in_memory = served.serving.id
        self._took_us = self._clock.monotonic_us() - began_us if ordered else 0
        return ""

    # -- time

    def _arm(self) -> None:
        self.stop()
        due_us = self.room.next_timer_us()
        if due_us is not None:
            delay_s = max(0, due_us - self._clock.monotonic_us()) / 1e6
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self.room.tick(self._clock.monotonic_us()))

    def _do(self, outputs: Sequence[Output]) -> None:
        # whichever model does it, actions find their requests
        next(iter(self._members.values())).serving.do(outputs)


async def _cancelled(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancel what still runs of `tasks`, and return when it has ended."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)

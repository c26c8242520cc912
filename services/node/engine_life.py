"""One model's engine from its start to its end: started or ordered to load, looked at until ready, watched until dead, ended."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from adapters.engines import process
from adapters.engines.llamacpp import LlamaCppEngine
from adapters.engines.openai import OpenAIEngine
from adapters.engines.orders import order
from adapters.engines.port import Engine, EngineHealth
from adapters.http.upstream import Upstream
from services.config import Limits, NodeModel

_LOG: Final = logging.getLogger("leaseway.node")
WATCH_S: Final = 1.0
MISSES_MAX: Final = 3
"""An idle engine that does not answer so often in a row is dead; one with work inside is not judged by its silence."""
_LOOK_FIRST_S: Final = 0.05
_LOOK_MAX_S: Final = 0.5
HTTP_SILENCE_S: Final = 600.0


class EngineLife:
    """The engine of one model, whichever process it is just now. `start`, `until_dead`, `stop`, and again."""

    def __init__(self, model: NodeModel, limits: Limits, *, connections: int, busy: Callable[[], bool]) -> None:
        """Prepare; nothing runs yet. `busy`: whether something runs inside the engine now."""
        self.model, self._busy = model, busy
        self._work = Upstream(connections=connections, connect_s=limits.upstream_connect_s, silent_s=HTTP_SILENCE_S)
        self._questions = Upstream(connections=4, connect_s=limits.upstream_connect_s)
        self._look_now = asyncio.Event()
        self._candidate: Engine | None = None
        self._child: process.EngineProcess | None = None
        self._ended: asyncio.Future[int] | None = None
        self.looked = asyncio.Event()
        """Its health has been asked for at least once."""
        self.engine: Engine | None = None
        """None while there is none to be asked for work."""
        self.health = EngineHealth(ready=False, reason="not started")
        # llama.cpp's server tells what a stream used without being asked
        self.tells_usage = model.engine == "openai"
        """Whether streams may be asked to state what they used; an engine that refuses the question is not asked again."""
        self.context = 0
        """Its window in tokens as it stated it last: it is remembered while there is no engine. 0 if it never did."""

    def suspect(self) -> None:
        """Have the engine looked at now: somebody could not reach it."""
        self._look_now.set()

    async def start(self, *, patience_s: float | None) -> str:
        """Start the engine, or order it to load, and return once it is ready: the empty text, or why it is not.

        `patience_s`: how long it may take; None waits for an engine that others start for as long as it takes.

        Raises:
            BadConfigError: the program is not there, or the URL cannot be an engine's.
        """
        model, url, key = self.model, self.model.url, ""
        if model.command:
            self._child = await process.start(model.command, port=model.port)
            url, key = self._child.url, self._child.key
            self._ended = asyncio.ensure_future(self._child.ended())
        kind = LlamaCppEngine if model.engine == "llama.cpp" else OpenAIEngine
        candidate = kind(url, _Both(self._work, self._questions), key=key)
        if model.load_url and (why := await self._order(model.load_url, model.load_body)):
            return why
        why = await self._until_ready(candidate, patience_s)
        if not why:
            self.engine = candidate
        return why

    async def until_dead(self) -> str:
        """Watch a started engine; return why it is dead."""
        misses = 0
        while True:
            if await self._pause(WATCH_S):
                return self._exit()
            engine = self.engine
            assert engine is not None, f"model {self.model.id}: only a started engine can be watched"
            self._note(await engine.health())
            if self.health.ready:
                misses = 0
            elif self.health.gone or not self._busy():
                misses += 1
                if self.health.gone or misses >= MISSES_MAX:
                    return self.health.reason

    async def stop(self) -> str:
        """End the engine, or order it to unload; return why it may have kept its memory. May be called at any time."""
        self.engine = None
        if self._ended is not None:
            self._ended.cancel()
            self._ended = None
        if self._child is not None:
            await self._child.stop()
            self._child = None
        elif self.model.unload_url:
            return await self._order(self.model.unload_url, self.model.unload_body)
        return ""

    async def close(self) -> None:
        """End the engine if it was started here, and close every connection."""
        self.engine = None
        if self._child is not None:
            await self.stop()
        await self._work.close()
        await self._questions.close()

    async def _order(self, url: str, body: str) -> str:
        posted = body.encode() or msgspec.json.encode({"model": self.model.local_id or self.model.id})
        return await order(self._questions, url, posted, timeout_s=float(self.model.load_timeout_s))

    async def _until_ready(self, engine: Engine, patience_s: float | None) -> str:
        loop, pause_s = asyncio.get_running_loop(), _LOOK_FIRST_S
        began_s = loop.time()
        while True:
            self._note(await engine.health())
            self.looked.set()
            if self.health.ready:
                return ""
            # one that takes connections and says nothing makes each look long
            if patience_s is not None and loop.time() - began_s >= patience_s:
                return f"not ready within {patience_s:g} s: {self.health.reason}"
            if await self._pause(pause_s):
                return self._exit()
            pause_s = min(pause_s * 1.5, _LOOK_MAX_S)

    def _note(self, health: EngineHealth) -> None:
        self.health = health
        self.context = health.context or self.context

    async def _pause(self, seconds: float) -> bool:
        """Wait, shorter if someone suspects; tell whether the child has ended."""
        self._look_now.clear()
        looking = asyncio.ensure_future(self._look_now.wait())
        waiting: set[asyncio.Future[object]] = {looking}  # type: ignore[arg-type]  # what they give is not read
        if self._ended is not None:
            waiting.add(self._ended)  # type: ignore[arg-type]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
        return self._ended is not None and self._ended.done()

    def _exit(self) -> str:
        code = self._ended.result() if self._ended is not None else 0
        return f"the engine ended with exit code {code}"


class _Both:
    """Work over one set of connections, bounded; questions over another, so that a look at its health never waits for work."""

    def __init__(self, work: Upstream, questions: Upstream) -> None:
        self.post = work.post
        self.get = questions.get

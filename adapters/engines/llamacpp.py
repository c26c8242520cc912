"""llama.cpp's server: says when it is ready, how many slots it has, and how long a context."""

import re
from typing import Final

import msgspec

from adapters.engines.openai import OpenAIEngine, not_answering
from adapters.engines.port import EngineHealth, EngineMetrics
from domain.errors import UpstreamError

_COUNTER: Final = re.compile(rb"^llamacpp:requests_(processing|deferred) ([0-9.eE+]+)$", re.MULTILINE)


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    n_ctx: int = 0


class _Props(msgspec.Struct, frozen=True, kw_only=True):
    total_slots: int = 0
    default_generation_settings: _Settings = _Settings()


class LlamaCppEngine(OpenAIEngine):
    """An engine whose own health, props and metrics are read."""

    async def health(self) -> EngineHealth:
        """Return whether it is ready (it answers 503 while it loads), and its slots and their context."""
        try:
            status, _ = await self._get("/health")
            if status != 200:
                return EngineHealth(ready=False, reason=f"/health answers {status}")
            status, body = await self._get("/props")
            props = msgspec.json.decode(body, type=_Props) if status == 200 else _Props()
        except UpstreamError as error:
            return not_answering(error)
        except msgspec.DecodeError:
            props = _Props()
        return EngineHealth(ready=True, slots=props.total_slots, context=props.default_generation_settings.n_ctx)

    async def metrics(self) -> EngineMetrics:
        """Return the requests it works on and those it keeps waiting (it must be started with metrics on)."""
        try:
            status, body = await self._get("/metrics")
        except UpstreamError:
            return EngineMetrics()
        found = {name.decode(): int(float(value)) for name, value in _COUNTER.findall(body)} if status == 200 else {}
        return EngineMetrics(processing=found.get("processing", -1), deferred=found.get("deferred", -1))

"""The processes that the console asks. What one look found is told to all who look within a second: a master has better to do."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from domain.errors import UnreachableError
from domain.ports import Clock
from services.asking import deciding, error_of, fetch
from services.data_directory import Endpoints

STATE: Final = "/admin/v1/state"
FRESH_US: Final = 1_000_000
_PATIENCE_S: Final = 3.0
_KEPT_MAX: Final = 256
"""Answers that are kept at once."""

Key = tuple[str, str, str, tuple[tuple[str, str], ...]]


class Said(NamedTuple):
    """What a process said of itself."""

    name: str
    url: str
    status: int
    """0 of one that does not answer."""
    body: Mapping[str, Any]
    problem: str = ""
    """Why it does not answer, or not as one of ours does."""

    @property
    def state(self) -> str:
        """Return its own word for how it is."""
        word = self.body.get("status")
        if isinstance(word, str):
            return word
        return f"answers {self.status}" if self.status else "silent"


class Peers:
    """Master, projector and gateway, as their addresses are known at the moment: `leaseway up` may move them."""

    def __init__(self, endpoints: Callable[[], Endpoints], clock: Clock) -> None:
        """Ask those at `endpoints`; `clock` says how old an answer is."""
        self._endpoints, self._clock = endpoints, clock
        self._kept: dict[Key, tuple[int, asyncio.Task[tuple[int, Any]]]] = {}

    @property
    def projector(self) -> str:
        """Return the projector's URL."""
        return self._endpoints().projector

    @property
    def masters(self) -> list[str]:
        """Return the URL of every master."""
        return [url.strip() for url in self._endpoints().master.split(",")]

    async def state(self) -> dict[str, Any]:
        """Return the folded state of the master that decides, else of one that follows it.

        Raises:
            UnreachableError: none answers.
        """
        return await deciding(self.masters, self._state)

    async def history(self, path: str, query: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Return (status, JSON) of what the projector answers.

        Raises:
            UnreachableError: it does not answer.
        """
        return await self._get("projector", self.projector, path, query or {})

    async def health(self) -> list[Said]:
        """Return what gateway, projector and each master say of themselves."""
        at = self._endpoints()
        asked = [("gateway", at.gateway), ("projector", at.projector), *(("master", url) for url in self.masters)]
        return list(await asyncio.gather(*(self._health(name, url) for name, url in asked)))

    async def close(self) -> None:
        """Ask nobody any more: what is still asked is given up."""
        for _, asking in self._kept.values():
            asking.cancel()
        await asyncio.gather(*(asking for _, asking in self._kept.values()), return_exceptions=True)
        self._kept.clear()

    async def _health(self, name: str, url: str) -> Said:
        try:
            status, body = await self._soon(name, url, "/health")
        except UnreachableError as error:
            return Said(name, url, 0, {}, str(error))
        if isinstance(body, dict) and isinstance(body.get("status"), str):
            return Said(name, url, status, body)
        return Said(name, url, status, {}, f"{name} {url}: answers {status}: {error_of(body)[1][:300]}")

    async def _state(self, url: str) -> dict[str, Any]:
        status, said = await self._soon("master", url, STATE)
        if status != 200 or not isinstance(said, dict):
            raise UnreachableError(f"master {url}: answers {status}: {error_of(said)[1][:300]}")
        return said

    async def _soon(self, who: str, url: str, path: str) -> tuple[int, Any]:
        """Return an answer that costs its process nothing; one that hangs is not to keep everybody from seeing the others."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._get(who, url, path, {})
        except TimeoutError:
            raise UnreachableError(f"{who} {url}: has not answered for {_PATIENCE_S:g} s; {_hint()}") from None

    async def _get(self, who: str, url: str, path: str, query: Mapping[str, str]) -> tuple[int, Any]:
        key = who, url, path, tuple(sorted(query.items()))
        now_us = self._clock.monotonic_us()
        began_us, asking = self._kept.get(key, (0, None))
        if asking is None or (asking.done() and now_us - began_us > FRESH_US):
            self._forget(now_us)
            asking = asyncio.create_task(fetch(who, url, path, query, hint=_hint), name=f"ask {who}")
            asking.add_done_callback(_looked_at)
            self._kept[key] = now_us, asking
        return await asyncio.shield(asking)

    def _forget(self, now_us: int) -> None:
        """Let go of what is old, and of the oldest where many things are asked at once."""
        old = [key for key, (began_us, asking) in self._kept.items() if asking.done() and now_us - began_us > FRESH_US]
        for key in [*old, *list(self._kept)[: max(0, len(self._kept) - _KEPT_MAX + 1)]]:
            self._kept.pop(key, None)


def _looked_at(asking: "asyncio.Task[tuple[int, Any]]") -> None:
    """Take note of an error that nobody waits for any more: whoever asked may have closed the page."""
    if not asking.cancelled():
        asking.exception()


def _hint() -> str:
    return "`leaseway status` says what runs"

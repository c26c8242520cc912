"""The one way in which a node asks an engine, whatever makes it."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself now."""

    ready: bool
    slots: int = 0
    """Requests it works on at once; 0 if it does not say."""
    context: int = 0
    """Tokens that one request may have, prompt and answer together; 0 if it does not say."""
    reason: str = ""
    """Why it is not ready."""
    gone: bool = False
    """Nobody listens there: it is dead, and not merely slow."""


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine counts; -1 where it does not say."""

    processing: int = -1
    deferred: int = -1


class Reply(Protocol):
    """An answer whose head has come."""

    status: int
    headers: Mapping[str, str]
    content_type: str

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; raise MayHaveRunError if it is cut."""
        ...

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body; raise MayHaveRunError if it is cut or larger than the limit."""
        ...

    def close(self) -> None:
        """Cancel what is still on its way: its connection closes, and the engine stops within a second."""
        ...


class Poster(Protocol):
    """Sends effectful calls."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send once; raise NotStartedError or MayHaveRunError."""
        ...


class Client(Poster, Protocol):
    """What an engine adapter needs of HTTP."""

    async def get(self, url: str, headers: Mapping[str, str], *, timeout_s: float) -> tuple[int, bytes]:
        """Return (status, body) of a harmless question.

        Raises:
            NotStartedError: nobody listens there.
            MayHaveRunError: no answer in time.
        """
        ...


class Engine(Protocol):
    """A running engine."""

    url: str

    @property
    def address(self) -> str:
        """Return its `host:port`, which no client may see."""
        ...

    async def health(self) -> EngineHealth:
        """Return what it says of itself; an engine that does not answer in time is not ready."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Return the ids that it has for its models; empty if it does not say."""
        ...

    async def metrics(self) -> EngineMetrics:
        """Return what it counts."""
        ...

    async def complete(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Start the work that `body` asks for at `path` (`/v1/chat/completions`, ...) and return the head of its answer.

        Raises:
            NotStartedError: it provably did not start.
            MayHaveRunError: no answer came.
        """
        ...

"""Any server with OpenAI's API."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from adapters.engines.port import Client, EngineHealth, EngineMetrics, Reply
from domain.errors import BadConfigError, NotStartedError, UpstreamError

HEALTH_S: Final = 2.0


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class _Models(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[_Model, ...] = ()


class OpenAIEngine:
    """An engine of which nothing is known but its API: it is ready when it lists its models."""

    def __init__(self, url: str, client: Client, *, key: str = "", health_s: float = HEALTH_S) -> None:
        """Speak to the engine at `url`, with or without `/v1` at its end.

        Raises:
            BadConfigError: `url` is not plain http(s)://host[:port][/path].
        """
        self.url = checked_url(url)
        self._client, self._health_s = client, health_s
        self._credentials = {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def address(self) -> str:
        """Return its `host:port`."""
        return urlsplit(self.url).netloc

    async def health(self) -> EngineHealth:
        """Return whether it lists its models."""
        try:
            status, _ = await self._get("/v1/models")
        except UpstreamError as error:
            return not_answering(error)
        return EngineHealth(ready=status == 200, reason="" if status == 200 else f"/v1/models answers {status}")

    async def models(self) -> tuple[str, ...]:
        """Return the ids that it lists."""
        try:
            status, body = await self._get("/v1/models")
            return tuple(model.id for model in msgspec.json.decode(body, type=_Models).data) if status == 200 else ()
        except (UpstreamError, msgspec.DecodeError):
            return ()

    async def metrics(self) -> EngineMetrics:
        """Return nothing: the API has no counters."""
        return EngineMetrics()

    async def complete(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Start work; see the port."""
        return await self._client.post(self.url + path, body, {**headers, **self._credentials})

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await self._client.get(self.url + path, self._credentials, timeout_s=self._health_s)


def not_answering(error: UpstreamError) -> EngineHealth:
    """Return the health of an engine that was asked and did not answer."""
    return EngineHealth(ready=False, reason=str(error), gone=isinstance(error, NotStartedError))


def checked_url(url: str) -> str:
    """Return an engine's URL without `/v1` and slashes at its end.

    Raises:
        BadConfigError: it is not http(s)://host[:port][/path], or carries a user, a query or a backslash.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise BadConfigError(f"engine url {url!r}: not a URL") from None
    if not sound or "@" in parts.netloc or parts.query or parts.fragment or "\\" in url or url != url.strip():
        raise BadConfigError(f"engine url {url!r}: must be http(s)://host[:port][/path], no user, query or fragment")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")

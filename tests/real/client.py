"""A client that costs next to nothing, so that a burst is one: each request has its own connection, its bytes made before."""

import asyncio
import time
from urllib.parse import urlsplit

import msgspec

from tests.real.layout import Request

PATIENCE_S = 300
_PATH = "/v1/chat/completions"
_HEAD_BYTES_MAX = 1 << 16


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a client got. Times are of the machine's clock, in seconds."""

    key: str
    native: bool
    status: int
    """0: no HTTP answer at all."""
    began_s: float
    ended_s: float
    served_by: str = ""
    error: str = ""


class Client:
    """Asks one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host, self._port = parts.hostname, parts.port

    def encoded(self, request: Request) -> bytes:
        """Return the whole request as it goes over the wire."""
        body = request.body()
        head = (
            f"POST {_PATH} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    async def ask(self, request: Request, encoded: bytes | None = None) -> Reply:
        """Ask once; whatever comes is a reply."""
        sent = encoded or self.encoded(request)
        began_s = time.monotonic()
        status, error = 0, ""
        headers: dict[str, str] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, headers, body = await self._exchange(sent)
            error = "" if status == 200 else body[:200].decode(errors="replace")
        except (OSError, EOFError, TimeoutError, ValueError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        return Reply(
            key=request.key,
            native=request.native,
            status=status,
            began_s=began_s,
            ended_s=time.monotonic(),
            served_by=headers.get("leaseway-served-by", ""),
            error=error,
        )

    async def _exchange(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_HEAD_BYTES_MAX)
        try:
            writer.write(sent)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in head[1:])}
            length = headers.get("content-length")
            body = await (reader.readexactly(int(length)) if length is not None else reader.read())
            return int(head[0].split()[1]), headers, body
        finally:
            writer.close()

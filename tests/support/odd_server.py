"""An HTTP server on a bare socket that does whatever a test scripts: dies, stalls, dribbles, lies about its headers.

async with odd_server(stream([b"data: {}\\n\\n"] * 3, die=True)) as engine: ...
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec


class Heard(msgspec.Struct, kw_only=True):
    """One request that the server got whole."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        """Return the body, decoded."""
        decoded: dict[str, object] = json.loads(self.body)
        return decoded


class Reply:
    """How a script answers, byte by byte if it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def raw(self, data: bytes) -> None:
        """Send `data` as it is, now."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int = 200, **headers: str) -> None:
        """Send a chunked answer's head; header names are written with `_` for `-`."""
        rows = {"content-type": "application/json", "transfer-encoding": "chunked"}
        rows |= {name.replace("_", "-"): value for name, value in headers.items()}
        text = "".join(f"{name}: {value}\r\n" for name, value in rows.items())
        await self.raw(f"HTTP/1.1 {status} Odd\r\n{text}\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        """Send one chunk of a body."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """End a chunked body in order."""
        await self.raw(b"0\r\n\r\n")

    async def json(self, document: object, status: int = 200) -> None:
        """Send a whole JSON answer."""
        await self.head(status)
        await self.chunk(json.dumps(document).encode())
        await self.end()

    def die(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Return when the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass


Script = Callable[[Heard, Reply], Awaitable[None]]


class OddServer:
    """A running odd server."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[Heard] = []
        """Every request but the look at its health."""
        self.cancelled = asyncio.Event()
        """A script saw the other side hang up (`hang`)."""
        self.script: Script = answer()
        self.health_status = 200
        self._arrived = asyncio.Condition()
        self._open: set[asyncio.StreamWriter] = set()

    async def arrived(self, count: int = 1, timeout_s: float = 10) -> None:
        """Return when `count` requests have come."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: len(self.heard) >= count)

    def drop_all(self) -> None:
        """Drop every connection, as a killed process does."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._open.add(writer)
        try:
            while heard := await _read(reader):
                reply = Reply(reader, writer)
                if heard.method == "GET":
                    await reply.json({"status": "ok", "object": "list", "data": [{"id": "local"}]}, self.health_status)
                    continue
                async with self._arrived:
                    self.heard.append(heard)
                    self._arrived.notify_all()
                await self.script(heard, reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    def hang(self) -> Script:
        """Return a script that never answers and notes when it is hung up on."""

        async def script(_: Heard, reply: Reply) -> None:
            await reply.gone()
            self.cancelled.set()

        return script


async def _read(reader: asyncio.StreamReader) -> Heard | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *rows = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (row.split(":", 1) for row in rows)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Heard(method=method, path=path, headers=headers, body=body)


@contextlib.asynccontextmanager
async def odd_server(script: Script | None = None, *, port: int = 0) -> AsyncIterator[OddServer]:
    """Run an odd server while the block runs."""
    odd = OddServer()
    if script is not None:
        odd.script = script
    server = await asyncio.start_server(odd.serve, "127.0.0.1", port)
    odd.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield odd
    finally:
        server.close()
        odd.drop_all()
        await server.wait_closed()


COMPLETION = {
    "id": "c1",
    "object": "chat.completion",
    "model": "local",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "I am local"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}


def event(text: str, **more: object) -> bytes:
    """Return one chunk of a chat stream as an engine sends it."""
    document = {"id": "c1", "model": "local", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answer(document: object = COMPLETION, status: int = 200) -> Script:
    """Return a script that answers a JSON document."""

    async def script(_: Heard, reply: Reply) -> None:
        await reply.json(document, status)

    return script


def stream(events: Sequence[bytes], *, die: bool = False, end: bool = True) -> Script:
    """Return a script that streams `events` and then dies, ends, or stays silent until it is hung up on."""

    async def script(_: Heard, reply: Reply) -> None:
        await reply.head(content_type="text/event-stream")
        for part in events:
            await reply.chunk(part)
        if die:
            reply.die()
        elif end:
            await reply.end()
        else:
            await reply.gone()

    return script

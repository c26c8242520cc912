"""A real ClickHouse engine behind ClickHouse's HTTP interface, as a process that can be killed; what the driver needs, no more.

python -m tests.support.clickhouse_http DIRECTORY PORT      (prints "ready")

async with HttpClickhouse(directory) as server: open_store(server.dsn); server.kill(); await server.start()
"""

import asyncio
import base64
import re
import secrets
import signal
import sys
from pathlib import Path
from typing import Any, Self

import chdb
import lz4.frame
from aiohttp import web

from adapters.ports import free_port

ROOT = Path(__file__).parents[2]
_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_INSERT_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)[ \t]*\r?\n", re.IGNORECASE)
_INSERT = re.compile(rb"^\s*INSERT\s+INTO\b", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)\.")
_LASTING = {"readonly", "max_untracked_memory"}
"""What cannot be set back: nothing can be set where nothing may be written, or where no memory is left."""
_TRANSPORT = frozenset(
    {
        "query",
        "database",
        "default_format",
        "session_id",
        "query_id",
        "compress",
        "decompress",
        "wait_end_of_query",
        "client_protocol_version",
        "enable_http_compression",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "buffer_size",
        "role",
        "cancel_http_readonly_queries_on_client_close",
    }
)
"""Parameters that are the interface's own, not settings of the engine."""


class HttpClickhouse:
    """The server as a child process."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self._child: asyncio.subprocess.Process | None = None

    @property
    def dsn(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        """Start it, on the same port and files as before, and return once it answers."""
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            str(self.directory),
            str(self.port),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._child.stdout is not None
        try:
            async with asyncio.timeout(120):
                assert await self._child.stdout.readline() == b"ready\n"
        except BaseException:
            await self.kill()
            raise

    async def kill(self) -> None:
        """kill -9, if it runs."""
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(signal.SIGKILL)
            await self._child.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


class _Shim:
    """One handle of the engine, one statement at a time."""

    def __init__(self, directory: str) -> None:
        self._directory, self._handle = directory, chdb.connect(directory)
        self._turn = asyncio.Lock()
        self.version, self._zone = self._text("SELECT version(), timezone()").strip().split("\t")

    async def answer(self, request: web.Request) -> web.Response:
        said, body = dict(request.query), await request.read()
        user = _user(request)
        if user != "default":  # the one that there is
            message = f"Code: 516. DB::Exception: {user}: Authentication failed: password is incorrect (AUTHENTICATION_FAILED)"
            return _refused(message, {}, status=403)
        if request.headers.get("Content-Encoding") == "lz4":
            body = _inflated(body)
        statement = b"\n".join(filter(None, (said.get("query", "").encode(), body)))
        headers = {
            "X-ClickHouse-Timezone": self._zone,
            "X-ClickHouse-Query-Id": said.get("query_id", ""),
            "X-ClickHouse-Exception-Tag": secrets.token_hex(8),
            "X-ClickHouse-Summary": "{}",
        }
        async with self._turn:
            try:
                result = await asyncio.to_thread(self._run, said, statement)
            except RuntimeError as error:
                return _refused(str(error), headers)
        return web.Response(body=result, headers=headers)

    def _run(self, said: dict[str, str], statement: bytes) -> bytes:
        if not _LASTING & said.keys():
            return self._run_in(self._handle, said, statement)
        handle = chdb.connect(self._directory)
        try:
            return self._run_in(handle, said, statement)
        finally:
            handle.close()

    def _run_in(self, handle: Any, said: dict[str, str], statement: bytes) -> bytes:
        settings = {
            name: value for name, value in said.items() if name not in _TRANSPORT and not name.startswith("param_")
        }
        parameters = {name[6:]: value for name, value in said.items() if name.startswith("param_")}
        handle.query(f"USE `{said.get('database') or 'default'}`", "Null")
        for name, value in sorted(settings.items(), key=lambda setting: setting[0] in _LASTING | {"max_memory_usage"}):
            handle.query(f"SET {name} = '{value}'", "Null")
        try:
            found = _INSERT_FORMAT.search(statement) if _INSERT.match(statement) else None
            return self._insert(handle, statement, found) if found else self._query(handle, said, statement, parameters)
        finally:
            for name in settings if handle is self._handle else ():
                handle.query(f"SET {name} = DEFAULT", "Null")

    def _insert(self, handle: Any, statement: bytes, found: re.Match[bytes]) -> bytes:
        insert = handle.send_insert(statement[: found.start()].decode(), found[1].decode())
        try:
            insert.append(statement[found.end() :])
            insert.finish()
        except BaseException:
            insert.cancel()
            raise
        return b""

    def _query(self, handle: Any, said: dict[str, str], statement: bytes, parameters: dict[str, str]) -> bytes:
        found = _FORMAT.search(statement)
        shape = found[1].decode() if found else said.get("default_format", "TabSeparated")
        result: Any = handle.query(statement.decode(), shape, params=parameters)
        return bytes(result.bytes() or b"")

    def _text(self, statement: str) -> str:
        return str(self._handle.query(statement, "TSV").bytes().decode())


def _user(request: web.Request) -> str:
    said = request.headers.get("Authorization", "")
    return base64.b64decode(said.removeprefix("Basic ")).decode().partition(":")[0] if said else "default"


def _refused(message: str, headers: dict[str, str], *, status: int = 500) -> web.Response:
    found = _CODE.search(message)
    headers["X-ClickHouse-Exception-Code"] = found[1] if found else "1000"
    return web.Response(status=status, text=message[max(0, message.find("Code: ")) :], headers=headers)


def _inflated(body: bytes) -> bytes:
    pieces = []
    while body:  # one frame for each block
        frame = lz4.frame.LZ4FrameDecompressor()
        pieces.append(frame.decompress(body))
        body = frame.unused_data or b""
    return b"".join(pieces)


async def _serve(directory: str, port: int) -> None:
    shim = _Shim(directory)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/ping", lambda _: web.Response(text="Ok.\n"))  # type: ignore[arg-type, return-value]
    app.router.add_route("*", "/", shim.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))

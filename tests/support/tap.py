"""A journalling tap: a reverse proxy before an engine, which writes down every start and end of a request.

It is the judge of "one start a request", so it trusts nobody: it is a process of its own, it knows neither router nor engine, and
a line is in the file (one `write` with O_APPEND) before a byte goes on to the engine, even if the tap is killed right after.
Bytes pass unchanged, as they come; when the caller hangs up, so does the tap, and the other way round. It listens only while
the engine does, so that a dead engine is refused before the tap as it would be without it.

    python -m tests.support.tap --listen 9000 --engine http://127.0.0.1:8400 --journal FILE

A line: `<monotonic us> <what> <exchange> <key> <status>`. The key is the first `[[name]]` in the body (a test writes one into its
prompt: it survives every rewriting of ids), else the x-request-id header, else a hash of the body. The clock is the machine's
monotonic one, the same in every process.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

ROOT = Path(__file__).parents[2]
_HEAD_BYTES_MAX = 64 * 1024
_MARK = re.compile(rb"\[\[([\w.-]{1,80})\]\]")
_LOOK_S = 0.005


class Line(msgspec.Struct, frozen=True):
    """One line of the journal."""

    at_us: int
    """Machine's monotonic clock."""
    what: str
    """START: the request is whole, and its first byte goes to the engine next. FIRST: the head of the answer has come. END: the
    answer is whole. CANCEL: the caller hung up. BROKEN: the engine did. REFUSED: the engine took no connection."""
    exchange: str
    """`<process>-<number>`: tells two of the same key apart, also in the journals of several taps."""
    key: str
    status: int = 0
    """Of END and FIRST."""


class Tap(msgspec.Struct, frozen=True, kw_only=True):
    """A running tap."""

    url: str
    journal: Path
    process: asyncio.subprocess.Process

    def lines(self) -> list[Line]:
        """Return all that was written until now."""
        return read_journal(self.journal)


def read_journal(path: Path) -> list[Line]:
    """Return the journal's lines; a last one that is cut off (the machine's fault, not ours) is left out."""
    text = path.read_text() if path.exists() else ""
    return [_line(row) for row in text.splitlines(keepends=True) if row.endswith("\n")]


def _line(row: str) -> Line:
    at_us, what, exchange, key, status = row.split()
    return Line(int(at_us), what, exchange, key, int(status))


def starts(lines: list[Line]) -> dict[str, int]:
    """Return how often each request was started."""
    counted: dict[str, int] = {}
    for line in lines:
        if line.what == "START":
            counted[line.key] = counted.get(line.key, 0) + 1
    return counted


def most_at_once(lines: list[Line]) -> int:
    """Return the largest number of requests that were open at the same moment."""
    now = most = 0
    for line in lines:
        now += {"START": 1, "END": -1, "CANCEL": -1, "BROKEN": -1}.get(line.what, 0)
        most = max(most, now)
    return most


@contextlib.asynccontextmanager
async def tap(engine_url: str, journal: Path, *, listen: int = 0) -> AsyncIterator[Tap]:
    """Run a tap before `engine_url` while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *tap_command(engine_url, journal, listen=listen), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().split()[-1]
        yield Tap(url=url, journal=journal, process=process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.stdout.read()
        await process.wait()


def tap_command(engine_url: str, journal: Path, *, listen: int | str = 0) -> tuple[str, ...]:
    """Return the tap's command, to be run in the repository."""
    module = (sys.executable, "-m", "tests.support.tap")
    return (*module, "--listen", str(listen), "--engine", engine_url, "--journal", str(journal))


# -- the process ------------------------------------------------------------------------------------------------------------


class Journal:
    """Appends lines; a line is one `write`, so that several taps may share a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._exchanges = 0

    def open(self) -> str:
        """Return the name of a new exchange."""
        self._exchanges += 1
        return f"{os.getpid()}-{self._exchanges}"

    def write(self, what: str, exchange: str, key: str, status: int = 0) -> None:
        """Append one line."""
        at_us = time.monotonic_ns() // 1000
        os.write(self._file, f"{at_us} {what} {exchange} {key} {status}\n".encode())


class _ClosedError(Exception):
    """The peer closed the connection before the message was whole."""


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise _ClosedError from error


def _headers(head: bytes) -> dict[str, str]:
    pairs = (row.partition(b":") for row in head.split(b"\r\n")[1:] if b":" in row)
    return {name.decode("latin-1").strip().lower(): value.decode("latin-1").strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], *, answer: bool) -> AsyncIterator[bytes]:
    """Yield the message's body as it comes, framing and all."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        async for piece in _chunks(reader):
            yield piece
    elif "content-length" in headers:
        left = int(headers["content-length"])
        while left:
            piece = await reader.read(min(left, 65536))
            if not piece:
                raise _ClosedError
            left -= len(piece)
            yield piece
    elif answer:
        while piece := await reader.read(65536):
            yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield a chunked body, whole chunks with their frames."""
    while True:
        try:
            size = await reader.readuntil(b"\r\n")
            length = int(size.split(b";")[0], 16)
            rest = await reader.readexactly(length + 2)
        except asyncio.IncompleteReadError as error:
            raise _ClosedError from error
        yield size + rest
        if length == 0:
            return


class Exchange:
    """One request and its answer."""

    def __init__(self, journal: Journal, key: str, method: str) -> None:
        self.journal, self.key, self.method = journal, key, method
        # only work counts: reading health and metrics starts nothing
        self.counted = method == "POST"
        self.name = journal.open() if self.counted else ""

    def write(self, what: str, status: int = 0) -> None:
        """Write a line if this exchange is work."""
        if self.counted:
            self.journal.write(what, self.name, self.key, status)


class Front:
    """Serves callers; one connection to the engine for each request."""

    def __init__(self, engine: tuple[str, int], journal: Journal) -> None:
        self.engine, self.journal = engine, journal

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one caller's connection, request by request."""
        with contextlib.suppress(_ClosedError, ConnectionError):
            while await self._exchange(reader, writer):
                pass
        writer.transport.abort() if writer.transport.is_closing() else writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass on one request and its answer; tell whether the connection may go on."""
        head = await _read_head(reader)
        headers = _headers(head)
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join([piece async for piece in _body(reader, headers, answer=False)])
        exchange = Exchange(self.journal, _key(headers, body), head.split(b" ", 1)[0].decode())
        try:
            engine_reader, engine_writer = await asyncio.open_connection(*self.engine, limit=_HEAD_BYTES_MAX)
        except OSError:
            exchange.write("REFUSED")
            return False
        exchange.write("START")
        answering = asyncio.ensure_future(_answer(exchange, head + body, engine_reader, engine_writer, writer))
        hanging_up = asyncio.ensure_future(_hang_up(reader))
        try:
            await asyncio.wait((answering, hanging_up), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                exchange.write("CANCEL")
            return answering.done() and answering.result()
        finally:
            for task in (answering, hanging_up):
                task.cancel()
            await asyncio.gather(answering, hanging_up, return_exceptions=True)
            engine_writer.transport.abort()


def _key(headers: dict[str, str], body: bytes) -> str:
    if found := _MARK.search(body):
        return found[1].decode()
    return headers.get("x-request-id") or "body:" + hashlib.blake2b(body, digest_size=8).hexdigest()


async def _hang_up(reader: asyncio.StreamReader) -> None:
    """Return when the caller has closed its connection; what it sends meanwhile stays unread."""
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110  waiting by a read would eat the next request
        await asyncio.sleep(_LOOK_S)


async def _answer(
    exchange: Exchange,
    request: bytes,
    engine_reader: asyncio.StreamReader,
    engine_writer: asyncio.StreamWriter,
    writer: asyncio.StreamWriter,
) -> bool:
    try:
        engine_writer.write(request)
        await engine_writer.drain()
        answer = await _read_head(engine_reader)
        while answer.split(b" ", 2)[1] == b"100":
            answer = await _read_head(engine_reader)
        status, headers = int(answer.split(b" ", 2)[1]), _headers(answer)
        exchange.write("FIRST", status)
        writer.write(answer)
        if exchange.method != "HEAD" and status not in {204, 304}:
            async for piece in _body(engine_reader, headers, answer=True):
                writer.write(piece)
                await writer.drain()
    except (_ClosedError, ConnectionError):
        exchange.write("CANCEL" if writer.transport.is_closing() else "BROKEN")
        return False
    exchange.write("END", status)
    framed = "content-length" in headers or "transfer-encoding" in headers
    return framed and headers.get("connection", "").lower() != "close"


async def main(arguments: argparse.Namespace) -> None:
    """Listen while the engine does, until killed."""
    target = urlsplit(arguments.engine)
    engine = (target.hostname or "127.0.0.1", target.port or 80)
    front = Front(engine, Journal(arguments.journal))
    port, said = arguments.listen, False
    while True:
        watch = await _dial(engine)
        server = await asyncio.start_server(front.serve, "127.0.0.1", port, limit=_HEAD_BYTES_MAX, reuse_address=True)
        port = server.sockets[0].getsockname()[1]
        if not said:
            print("tap ready", f"http://127.0.0.1:{port}", flush=True)
            said = True
        await _engine_gone(engine, watch)
        server.close()


async def _dial(engine: tuple[str, int]) -> asyncio.StreamReader:
    """Return an idle connection to the engine, as soon as it takes one."""
    while True:
        with contextlib.suppress(OSError):
            reader, _ = await asyncio.open_connection(*engine)
            return reader
        await asyncio.sleep(_LOOK_S)


async def _engine_gone(engine: tuple[str, int], watch: asyncio.StreamReader) -> None:
    """Return when the engine no longer takes connections; an engine may close an idle one."""
    while True:
        with contextlib.suppress(ConnectionError):
            await watch.read()
        try:
            watch, _ = await asyncio.open_connection(*engine)
        except OSError:
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int, default=0)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args()))

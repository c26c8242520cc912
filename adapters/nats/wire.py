"""The NATS client protocol on one TCP connection: parse, dispatch to plain functions, write in one go for each loop turn.

nats-py makes a task, a queue entry and a parsed header for each message, and publishes late what it buffered while the
connection was down. Here a message costs about a microsecond, headers stay the bytes that are stored, and nothing that was
not written to a live connection is ever sent. Reconnecting and subscriptions are `adapters.nats.connection`'s.
"""

import asyncio
import base64
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from adapters.keys import Signer

Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Takes (subject, reply subject, header block, body) of one message, in order of arrival; must not block."""

Message = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply subject, header block, body)."""


class Gathered(list[Message]):
    """In the place of a handler: collects what came in one reading of the socket, then gives it all to `take`, in order.

    For who reads a whole stream: what a call costs a message is then paid once for some hundreds.
    """

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[list[Message]], None]) -> None:
        super().__init__()
        self._take = take

    def give(self) -> None:
        """Hand over what was collected."""
        taken = self[:]
        self.clear()
        self._take(taken)


WRITE_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
_CRLF: Final = b"\r\n"
_MSG, _HMSG = b"MH"


class ServerInfo(msgspec.Struct, frozen=True):
    """What the server says first."""

    version: str = ""
    nonce: str = ""
    max_payload: int = 1024 * 1024
    auth_required: bool = False
    tls_required: bool = False
    headers: bool = False


class WireError(Exception):
    """The server refused this connection, or is no NATS server."""


class Wire(asyncio.Protocol):
    """One connection, from `open` to `gone`; it is never opened again.

    Args:
        on_error: takes the text of each `-ERR` of the server (`Permissions Violation for Publish to "x"`, ...).
    """

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self.info = ServerInfo()
        self.error = ""
        """What the server said last with `-ERR`."""
        self.data_count = 0
        """Rises whenever the server sent something: a sign of life."""
        self.gone = asyncio.Event()
        """Set once the connection has ended."""
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[bytes, Handler | Gathered] = {}
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._out: list[bytes] = []
        self._flushing = False
        self._info: asyncio.Future[ServerInfo] = self._loop.create_future()
        self._pongs: list[asyncio.Future[None] | None] = []

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        name: str,
        signer: Signer | None,
        user: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        on_error: Callable[[str], None],
    ) -> "Wire":
        """Return a connection that the server has accepted.

        Raises:
            WireError: the server refused it.
            OSError: nobody listens there.
        """
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: cls(on_error), host, port)
        try:
            await wire._greet(host, name, signer, user, tls)  # noqa: SLF001  # its own class
        except BaseException:
            wire.abort()
            raise
        return wire

    def subscribe(self, sid: bytes, subject: bytes, handler: Handler | Gathered) -> None:
        """Have `handler` called for each message on `subject`."""
        self._handlers[sid] = handler
        self._write(b"SUB %b %b\r\n" % (subject, sid))

    def unsubscribe(self, sid: bytes) -> None:
        """End the subscription `sid`."""
        if self._handlers.pop(sid, None):
            self._write(b"UNSUB %b\r\n" % sid)

    def publish(self, subject: bytes, body: bytes, reply: bytes = b"", headers: bytes = b"") -> None:
        """Send one message with the next flush; all of one loop turn leave together, in order."""
        target = b"%b %b" % (subject, reply) if reply else subject
        if headers:
            size = len(headers) + len(body)
            self._write(b"HPUB %b %d %d\r\n%b%b\r\n" % (target, len(headers), size, headers, body))
        else:
            self._write(b"PUB %b %d\r\n%b\r\n" % (target, len(body), body))

    def beat(self) -> None:
        """Have the server say something, if it is alive."""
        self._pongs.append(None)
        self._write(b"PING\r\n")

    def ping(self) -> asyncio.Future[None]:
        """Return what is done once the server has read all that was written so far; WireError if it never will."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self._write(b"PING\r\n")
        return pong

    @property
    def congested(self) -> bool:
        """Tell whether so much waits to be written that no more should be added."""
        return self._transport is not None and self._transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX

    def close(self) -> None:
        """Write what is left and close."""
        if self._transport is not None and not self.gone.is_set():
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever is left."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio.Protocol)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everyone who waits (asyncio.Protocol)."""
        self.gone.set()
        if not self._info.done():
            self._info.set_exception(WireError(f"the server closed the connection: {exc or 'no reason given'}"))
        for pong in self._pongs:
            if pong is not None and not pong.done():
                pong.set_exception(
                    WireError(f"the server closed the connection: {self.error or exc or 'no reason given'}")
                )

    def data_received(self, data: bytes) -> None:
        """Parse as far as there are whole messages (asyncio.Protocol)."""
        self.data_count += 1
        buffer = self._rest + data if self._rest else data
        position, end, find, handlers = 0, len(buffer), buffer.find, self._handlers
        gathered: Gathered | None = None
        while position < end:
            eol = find(_CRLF, position)
            if eol < 0:
                break
            start = middle = eol + 2
            kind = buffer[position]
            if kind == _HMSG:  # HMSG subject sid [reply] header-size size
                fields = buffer[position + 5 : eol].split()
                middle += int(fields[-2])
                replies = 5
            elif kind == _MSG:  # MSG subject sid [reply] size
                fields = buffer[position + 4 : eol].split()
                replies = 4
            else:
                self._control(buffer[position:eol])
                position = start
                continue
            stop = start + int(fields[-1])
            if stop + 2 > end:
                break
            position = stop + 2
            handler = handlers.get(fields[1])
            if handler is None:
                continue
            reply = fields[2] if len(fields) == replies else b""
            if gathered is not None and handler is not gathered:
                gathered.give()
                gathered = None
            if isinstance(handler, Gathered):
                gathered = handler
                gathered.append((fields[0], reply, buffer[start:middle], buffer[middle:stop]))
            else:
                handler(fields[0], reply, buffer[start:middle], buffer[middle:stop])
        self._rest = buffer[position:] if position < end else b""
        if gathered is not None:
            gathered.give()

    def _control(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            self._write(b"PONG\r\n")
        elif word == b"PONG":
            pong = self._pongs.pop(0) if self._pongs else None
            if pong is not None and not pong.done():
                pong.set_result(None)
        elif word == b"INFO":
            self.info = msgspec.json.decode(line[5:], type=ServerInfo)
            if not self._info.done():
                self._info.set_result(self.info)
        elif word == b"-ERR":
            self.error = line[5:].decode("utf-8", "replace").strip(" '")
            self._on_error(self.error)

    async def _greet(
        self, host: str, name: str, signer: Signer | None, user: tuple[str, str] | None, tls: ssl.SSLContext | None
    ) -> None:
        info = await self._info
        if info.tls_required or tls is not None:
            context = tls or ssl.create_default_context()
            assert self._transport is not None
            secured = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
            assert secured is not None
            self._transport = secured
        options: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python-leaseway",
            "version": "1",
            "name": name,
        }
        if signer is not None and info.nonce:
            signature = bytes.fromhex(signer.sign(info.nonce.encode()))
            options |= {"nkey": signer.public, "sig": base64.b64encode(signature).decode()}
        elif user is not None:
            options |= {"user": user[0], "pass": user[1]}
        self._write(b"CONNECT %b\r\n" % msgspec.json.encode(options))
        await self.ping()

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        out, self._out = self._out, []
        if self._transport is not None and not self.gone.is_set():
            self._transport.write(b"".join(out))

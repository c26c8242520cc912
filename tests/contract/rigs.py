"""The same streams twice: in memory and on a real nats-server, each with ways to make them go wrong.

A test asks for `rig` and runs on both. `nats` is a bare server (no accounts) behind a relay that can swallow its answers.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from adapters.clock import SystemClock
from adapters.memory.stream import MemoryStream
from adapters.nats.api import read_outcome
from adapters.nats.connection import Bus, connect
from adapters.nats.server import find_binary
from adapters.nats.stream import NatsStream
from adapters.ports import HOST, free_port
from tests.support.family import pause

AnyStream = MemoryStream | NatsStream


class Rig(Protocol):
    """Streams, and how to disturb them."""

    kind: str

    async def stream(self, name: str = "LW_LEDGER", **limits: int) -> AnyStream:
        """Return the stream `name` (made at the first call), as its writer and reader sees it; its subjects are `<name>.>`."""
        ...

    async def another(self, name: str = "LW_LEDGER") -> AnyStream:
        """Return the stream as a second process sees it."""
        ...

    async def lose_answers(self) -> None:
        """From now on messages are stored, but no answer comes."""
        ...

    async def freeze(self) -> None:
        """From now on nothing happens to what is published, until `heal`."""
        ...

    async def heal(self) -> None:
        """End every disturbance; return once what was frozen has happened."""
        ...

    async def remove(self, stream: AnyStream, seq: int) -> None:
        """Lose one message for good."""
        ...

    async def restart_history(self, stream: AnyStream) -> None:
        """Lose all messages; sequences begin again."""
        ...


class MemoryRig:
    kind = "memory"

    def __init__(self) -> None:
        self._streams: dict[str, MemoryStream] = {}

    async def stream(self, name: str = "LW_LEDGER", **limits: int) -> MemoryStream:
        if name not in self._streams:
            self._streams[name] = MemoryStream(
                name, SystemClock(), message_bytes_max=limits.get("max_msg_size", 1 << 20)
            )
        return self._streams[name]

    async def another(self, name: str = "LW_LEDGER") -> MemoryStream:
        return self._streams[name]

    async def lose_answers(self) -> None:
        for stream in self._streams.values():
            stream.faults.lose_ack(1_000)

    async def freeze(self) -> None:
        for stream in self._streams.values():
            stream.faults.late(1_000)

    async def heal(self) -> None:
        for stream in self._streams.values():
            stream.faults.clear()
            stream.deliver_late()

    async def remove(self, stream: AnyStream, seq: int) -> None:
        assert isinstance(stream, MemoryStream)
        stream.remove(seq)

    async def restart_history(self, stream: AnyStream) -> None:
        assert isinstance(stream, MemoryStream)
        stream.truncate(0)


class Relay:
    """Passes bytes between clients and one server; `muted` swallows what the server says."""

    def __init__(self, target_port: int) -> None:
        self.muted = False
        self.port = 0
        self._target = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink, answers in ((reader, far_writer, False), (far_reader, writer, True)):
            pump = asyncio.create_task(self._pump(source, sink, answers=answers))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await source.read(65536):
                if not (answers and self.muted):
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.transport.abort()


class BareServer:
    """A nats-server process on one port and one folder, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def start(self) -> None:
        config = self._folder / "nats.conf"
        config.write_text(
            f"listen: {json.dumps(f'{HOST}:{self.port}')}\njetstream {{ store_dir: {json.dumps(str(self._folder))} }}\n"
        )
        with (self._folder / "nats.log").open("ab") as log:
            self._child = subprocess.Popen(
                [find_binary(), "-c", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._child is not None
        os.kill(self._child.pid, number)
        self._child.wait(10)

    def pause(self) -> None:
        assert self._child is not None
        pause(self._child.pid)

    def resume(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGCONT)


class NatsRig:
    kind = "nats"

    def __init__(self, folder: Path) -> None:
        self.server = BareServer(folder)
        self.relay = Relay(self.server.port)
        self._buses: list[Bus] = []

    @property
    def first_bus(self) -> Bus:
        """The connection that `stream` uses."""
        return self._buses[0]

    async def bus(self, *, direct: bool = False) -> Bus:
        """Return a new connection, through the relay unless `direct`."""
        url = self.server.url if direct else f"nats://{HOST}:{self.relay.port}"
        bus = await connect(url, None, name=f"test{len(self._buses)}", wait_s=10)
        self._buses.append(bus)
        return bus

    async def stream(self, name: str = "LW_LEDGER", **limits: int) -> NatsStream:
        bus = self._buses[0]
        config: dict[str, Any] = {
            "name": name,
            "subjects": [f"{name}.>"],
            "storage": "file",
            "discard": "new",
            **limits,
        }
        await bus.ask(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), read_outcome)
        return bus.stream(name)

    async def another(self, name: str = "LW_LEDGER") -> NatsStream:
        return (await self.bus(direct=True)).stream(name)

    async def lose_answers(self) -> None:
        self.relay.muted = True

    async def freeze(self) -> None:
        self.server.pause()

    async def heal(self) -> None:
        self.server.resume()
        if self.relay.muted:
            self.relay.muted = False
            self.relay.cut()  # what was swallowed in part would be nonsense from here on
        await (await self.bus(direct=True)).ask("$JS.API.INFO", b"", read_outcome)

    async def remove(self, stream: AnyStream, seq: int) -> None:
        body = json.dumps({"seq": seq}).encode()
        await self._buses[0].ask(f"$JS.API.STREAM.MSG.DELETE.{stream.name}", body, read_outcome)

    async def restart_history(self, stream: AnyStream) -> None:
        await self._buses[0].ask(f"$JS.API.STREAM.DELETE.{stream.name}", b"", read_outcome)
        await self.stream(stream.name)

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        await self.relay.close()


@asynccontextmanager
async def nats_rig(folder: Path) -> AsyncIterator[NatsRig]:
    """Yield a bare server with its relay; both end with the block."""
    rig = NatsRig(folder)
    rig.server.start()
    try:
        await rig.relay.start()
        await rig.bus()
        yield rig
    finally:
        await rig.close()
        rig.server.resume()
        rig.server.stop()

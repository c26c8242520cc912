"""A real nats-server's store of a history that a real master decided, older copies of it, and what it serves."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import aiohttp
import msgspec

from adapters.log.checkpoints import CheckpointBook, Kept
from adapters.log.witness import FileWitnessBook
from adapters.nats.server import NatsServer
from adapters.ports import HOST
from domain.errors import BusError, ChildFailedError
from domain.events import QueueSnapshot, SettingChanged
from domain.ids import ModelId
from domain.ports import StoredMessage, Stream
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER
from tests.mutations.life import Life
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import CLUSTER, ServerUnderTest, provisioned_server
from tests.support.tools import enrol
from tests.support.waiting import until

HISTORY = (EVENTS, CONTROL, LEDGER)
STREAMS = (*HISTORY, DECISIONS)
BURSTS = 4
ROUNDS = 4
ANSWER_S = 60.0
HEALTHY_S = 10.0
BOOK, WITNESS = "checkpoints-master", "checkpoint-master.json"
_GET_AT_ONCE = 64

Served = dict[str, list[StoredMessage]]


class Backup(msgspec.Struct, frozen=True):
    """A stream as the server's own API backs it up."""

    head: dict[str, object]
    chunks: tuple[bytes, ...]


class Standing(ServerUnderTest):
    """A server whose directory was provisioned in another life of it."""

    def __init__(self, data: Path, server: NatsServer) -> None:
        self.data, self.servers, self.cluster, self._clients = data, [server], CLUSTER, []


class Store:
    """A stopped server's data directory, older copies of it, and what it served."""

    def __init__(self, folder: Path) -> None:
        self.data, self.older = folder / "data", folder / "older"
        self.older.mkdir(parents=True)
        self.served: Served = {}
        self.kept: list[Kept] = []
        self.life: Life
        self.backups: dict[tuple[int, str], Backup] = {}

    async def make(self) -> None:
        """Live through the history once."""
        await live(self.data, self.older)
        async with server_on(self.data) as cluster:
            self.served = await served(cluster)
            master = cluster.server.credentials("master")
        secret, operator = master.cluster_mac_secret, master.operator_public
        self.kept = await CheckpointBook(self.data / BOOK).read()
        witnessed = await FileWitnessBook(self.data / WITNESS).read()
        assert witnessed is not None
        events, control, ledger = (tuple(self.served[name]) for name in HISTORY)
        signed = tuple(each.checkpoint for each in self.kept)
        self.life = Life(events, control, ledger, signed, witnessed, (0, b""), CLUSTER, secret, operator)


@asynccontextmanager
async def server_on(data: Path) -> AsyncIterator[ClusterUnderTest]:
    """Run a server on a data directory."""
    server = NatsServer(data, cluster=CLUSTER, port=0, monitor_port=0)
    under_test = Standing(data, server)
    try:
        await _start(server)
        async with cluster_on(under_test) as cluster:
            yield cluster
    finally:
        await under_test.close()
        await server.stop()


async def _start(server: NatsServer) -> None:
    """Start a server; one that runs but never calls itself healthy is met all the same, as a master that is restarted meets it.

    Raises:
        ChildFailedError: it ends.
    """
    server.launch()

    async def is_up() -> bool:
        if server.pid is None:
            raise ChildFailedError(f"nats-server: ended while starting: {server.last_words()}")
        return await server._healthy(session) or monotonic() > give_up

    give_up = monotonic() + HEALTHY_S
    async with aiohttp.ClientSession() as session:
        await until("the server is healthy, or will not be", is_up, timeout_s=2 * HEALTHY_S)
    try:
        _, writer = await asyncio.open_connection(HOST, server.port)
        writer.close()
    except OSError:
        raise ChildFailedError(f"nats-server: listens to nobody after {HEALTHY_S:g} s") from None


async def live(data: Path, older: Path) -> None:
    """Let a real master decide on a real server in `data`; leave copies of earlier moments in `older`, all of it stopped."""
    async with provisioned_server(data) as server:
        await enrol(server, "tool")
        for burst in range(BURSTS):
            async with cluster_on(server) as cluster:
                await _burst(cluster, burst)
            await server.stop()
            if burst + 1 < BURSTS:
                shutil.copytree(data, older / str(burst))
                await server.restart()


async def _burst(cluster: ClusterUnderTest, number: int) -> None:
    loop, _ = await cluster.master()
    if not number:
        await cluster.state("n1", registered(), finished("req_fit"))
        await cluster.state("n2", registered(), finished("req_fit"))
        await cluster.decree(link("n1", "n2"), link("n2", "n1"))
    else:
        await cluster.state("n1", registered())
        await cluster.state("n2", registered())
    for turn in range(ROUNDS):
        owner = ("n1", "n2")[turn % 2]
        await cluster.decree(SettingChanged(name="cluster.scheduling_backend_depth", value=2 + turn % 3))
        name = f"{number}{turn}"
        await cluster.state(owner, started(f"req_{name}s"), *(held(f"req_{name}_{i}", i + 1) for i in range(8)))
        await until("it leases", lambda: loop.state.leases, timeout_s=ANSWER_S)
        for i in range(8):
            await cluster.state(owner, started(f"req_{name}_{i}"), finished(f"req_{name}_{i}", service_us=400_000))
        await cluster.state(owner, finished(f"req_{name}s"))
        await _folded(cluster, loop)
        await until("it takes the lease back", lambda: not loop.state.leases, timeout_s=ANSWER_S)
    await cluster.state("n2", *(QueueSnapshot(model=ModelId("m"), held=0, in_engine=0, lent=0) for _ in range(6)))
    await _folded(cluster, loop)
    await cluster.end("master")
    await loop.sign_off()


async def _folded(cluster: ClusterUnderTest, loop) -> None:
    last = (await (await cluster.streams()).events.bounds()).last
    await until("all is folded", lambda: loop.state.hi >= last, timeout_s=ANSWER_S)


# ---- what a server serves --------------------------------------------------------------------------------------------


async def streams_of(cluster: ClusterUnderTest) -> list[Stream]:
    """Return the four streams as somebody sees them who may read them all."""
    bus = await cluster.bus("projector")
    return [bus.stream(name) for name in STREAMS]


async def served(cluster: ClusterUnderTest) -> Served:
    """Return every message that can be had of the four streams."""
    return {stream.name: await _all_of(stream) for stream in await streams_of(cluster)}


async def _all_of(stream: Stream) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    try:
        bounds = await stream.bounds()
        for first in range(bounds.first, bounds.last + 1, _GET_AT_ONCE):
            wanted = range(first, min(first + _GET_AT_ONCE, bounds.last + 1))
            answers: Sequence[StoredMessage | None] = await asyncio.gather(*(stream.get(seq) for seq in wanted))
            found += [message for message in answers if message is not None]
    except BusError:  # it is not there, or it cannot be read: what was had so far is what it serves
        return found
    return found


async def last_version(cluster: ClusterUnderTest) -> int:
    """Return how far the ledger reaches; 0 if it is not there."""
    try:
        return (await (await cluster.bus("projector")).stream(LEDGER).bounds()).last
    except BusError:
        return 0

"""Where an audit reads: the bus, the archive in ClickHouse, or a copy. A source says where; each process opens it for itself."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import msgspec

from adapters.keys import load_credentials
from adapters.log.bundle import Bundle, load
from adapters.log.checkpoints import Kept
from adapters.log.history import Streams, stored_commit
from adapters.log.read_only import ReadOnly
from adapters.log.reader import Reader
from adapters.log.segments import FindState
from adapters.log.snapshots import Snapshots
from adapters.log.unkeyed import UnkeyedReader
from adapters.nats.connection import connect
from domain.errors import BusError, HistoryError, UnreachableError
from domain.events import Checkpoint, codec
from domain.ports import Bounds, StoredMessage, Stream
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS
from services.past.stored import gap_in

Kind = Literal["stream", "archive", "copy"]
_WAIT_S: Final = 3.0
_PAGE: Final = 2000
_ANSWER_S: Final = 60.0
SETTLE_S: Final = 10.0
_LOOK_S: Final = 0.2


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where to read, and with what."""

    kind: Kind
    cluster: str
    key: str = ""
    """File of the operator's credentials: the bus lets it in, and MACs are checked with it. Empty: nobody's."""
    bus_url: str = ""
    projector_url: str = ""
    copy: str = ""
    """File."""
    relaxed: bool = False
    """The bus may lose its newest facts, and the master may begin a generation by itself then; a copy says nothing of it."""

    @property
    def told(self) -> str:
        """Return it in words."""
        where = {"stream": self.bus_url, "archive": self.projector_url, "copy": Path(self.copy).name}[self.kind]
        return f"{self.kind} {where}"

    def reader(self) -> Reader:
        """Return who judges the facts: without the cluster's secret it takes the commits' word for forged ones."""
        if not self.key:
            return UnkeyedReader(self.cluster)
        return Reader(self.cluster, load_credentials(Path(self.key)).cluster_mac_secret)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A source, open."""

    streams: Streams
    find: FindState
    """Finds stored states to begin in."""
    feed: Stream | None = None
    """The public feed of decisions, where there is one to compare."""
    copy: Bundle | None = None
    """The copy that is read, if it is one: it knows which of its pieces were read whole."""


@asynccontextmanager
async def opened(source: Source) -> AsyncIterator[Opened]:
    """Yield what can be read there.

    Raises:
        UnreachableError: nobody answers there.
        BadConfigError: the copy, or the key, is none.
    """
    async with AsyncExitStack() as stack:
        if source.kind == "copy":
            copy = load(Path(source.copy))
            yield Opened(streams=copy.streams, find=_states_of(copy), copy=copy)
            return
        if source.kind == "archive":
            session = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S))
            )
            events, control, ledger = (
                ArchivedStream(session, source.projector_url, name) for name in (EVENTS, CONTROL, LEDGER)
            )
            await _settle(Streams(events, control, ledger), ledger)
            yield Opened(streams=Streams(events, control, ledger), find=_none)
            return
        try:
            bus = await connect(source.bus_url, load_credentials(Path(source.key)), name="operator", wait_s=_WAIT_S)
        except BusError:
            raise UnreachableError(f"nats-server {source.bus_url}: cannot be reached") from None
        stack.push_async_callback(bus.close)
        snapshots = Snapshots(bus.stream(SNAPSHOTS), cluster=source.cluster)
        streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))

        async def find(upto: int) -> tuple[int, bytes] | None:
            return await snapshots.newest(not_after=upto)

        yield Opened(streams=streams, find=find, feed=bus.stream(DECISIONS))


async def _settle(streams: Streams, ledger: "ArchivedStream") -> None:
    """End the ledger where it ends now, and wait until the archive has what its last commit folded.

    Each stream comes into ClickHouse by itself: rows of a live cluster's newest facts may be some tenths of a second behind.
    """
    head = await ledger.last()
    if head is None:
        return
    ledger.end_at(head.seq)
    with suppress(HistoryError):  # that it is no commit is for the verification to say
        made, waited_s = stored_commit(head), 0.0
        while waited_s < SETTLE_S and not (
            (await streams.events.bounds()).last >= made.hi and (await streams.control.bounds()).last >= made.chi
        ):
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S


async def _none(_: int) -> tuple[int, bytes] | None:
    return None


def _states_of(copy: Bundle) -> FindState:
    async def find(upto: int) -> tuple[int, bytes] | None:
        older = [(version, member) for version, member in copy.states if version <= upto]
        return (older[-1][0], copy.content(older[-1][1])) if older else None

    return find


class ArchivedStream(ReadOnly):
    """A stream as ClickHouse has kept it (domain.ports.Stream), read through the projector that owns it."""

    what = "the archive"

    def __init__(self, session: aiohttp.ClientSession, url: str, name: str) -> None:
        self.name = name
        self._session, self._url = session, url
        self._end: int | None = None

    def end_at(self, seq: int) -> None:
        """Show nothing of what comes after a sequence."""
        self._end = seq

    async def last(self) -> StoredMessage | None:
        """Return the newest message; None if there is none."""
        return await self.get((await self.bounds()).last)

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, or None."""
        if seq < 1:
            return None
        _, found = await self._ask(seq - 1, 1)
        return found[0] if found and found[0].seq == seq else None

    async def bounds(self) -> Bounds:
        """Return what the archive holds, up to where it ends."""
        held = (await self._ask(0, 0))[0]
        return held if self._end is None else msgspec.structs.replace(held, last=min(held.last, self._end))

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches from `after` + 1 to `until` or the end.

        Raises:
            HistoryGapError: a message in between is not in the archive.
        """
        end = until if until is not None else (await self.bounds()).last
        while after < end:
            _, found = await self._ask(after, min(_PAGE, end - after))
            batch = [message for seq, message in enumerate(found, start=after + 1) if message.seq == seq]
            if not batch:
                raise await gap_in(self, after + 1)
            yield batch
            after = batch[-1].seq

    async def _ask(self, after: int, limit: int) -> tuple[Bounds, list[StoredMessage]]:
        query = {"stream": self.name, "after": str(after), "limit": str(limit)}
        try:
            async with self._session.get(f"{self._url}/admin/v1/archive", params=query) as answer:
                said: dict[str, Any] = msgspec.json.decode(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise UnreachableError(
                f"projector {self._url}: cannot be read: {str(error) or type(error).__name__}"
            ) from None
        if answer.status != 200:
            why = said.get("error", {}).get("message", answer.status)
            raise UnreachableError(f"projector {self._url}: has no archive to read now: {why}")
        return Bounds(said["first"], said["last"], 0), [_message(row) for row in said["messages"]]


async def archived_checkpoints(url: str) -> list[Kept]:
    """Return the signed checkpoints that ClickHouse has kept; what is none is left out.

    Raises:
        UnreachableError: the projector, or ClickHouse behind it, does not answer.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S, connect=_WAIT_S)) as session,
            session.get(f"{url}/admin/v1/archive/checkpoints", params={"unlisted": "true"}) as answer,
        ):
            said: dict[str, Any] = msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        raise UnreachableError(f"projector {url}: cannot be read: {str(error) or type(error).__name__}") from None
    if answer.status != 200:
        raise UnreachableError(f"projector {url}: has no archive to read now")
    found: list[Any] = []
    for body in reversed(said["unlisted"]):
        with suppress(msgspec.DecodeError, ValueError):
            found.append(codec.decode_input(codec.decode_envelope(base64.b64decode(body)).data))
    for row in reversed(said["checkpoints"]):
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(row, Checkpoint))
    return [Kept(checkpoint=each, source="ClickHouse") for each in found if isinstance(each, Checkpoint)]


def _message(row: dict[str, Any]) -> StoredMessage:
    headers, body = base64.b64decode(row["headers"]), base64.b64decode(row["body"])
    return StoredMessage(row["seq"], row["stamp_ns"], row["subject"], headers, body)


def _is_stream(stream: ArchivedStream) -> Stream:
    return stream  # the type checker's proof

"""Makes all rows again beside the live tables, while those are read and written, and lets the new ones take their places.

Messages come from the table `events`, which holds each as it was stored, or from the streams as far back as those reach. Live
rows go on coming; at the end writing waits for as long as it takes to catch up with the last of them and to change places.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from adapters.clickhouse import beside
from adapters.clickhouse.sink import Sink
from adapters.clickhouse.store import Store
from domain.errors import BusError, StoreError
from domain.ports import Clock, StoredMessage, Stream
from domain.subjects import EVENTS, LEDGER
from projections.folds import Runs
from projections.ledger import BEGINNING, Chain
from projections.project import LAST_TABLE, STREAMS, Context, project
from projections.rollups import ROLLUPS
from projections.tables import RETAINED
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
SOURCES: Final = ("archive", "stream")
_PAGE: Final = 2000
_NEAR: Final = 2000
"""So many messages may be left when writing is made to wait."""


class Rebuilt(msgspec.Struct, kw_only=True):
    """How far a rebuild is."""

    state: str = "never"
    """never, asked, running, changing_places, done or failed."""
    source: str = ""
    messages: int = 0
    """Messages made into rows so far."""
    of: int = 0
    """Messages that there were when it began."""
    began_us: int = 0
    took_us: int = 0
    waited_us: int = 0
    """How long writing waited while the tables changed places."""
    error: str = ""

    @property
    def busy(self) -> bool:
        """Tell whether one is asked for or under way."""
        return self.state in {"asked", "running", "changing_places"}


class TablesChangedError(Exception):
    """Other tables stand in the place of those that were written: positions are to be found again."""


class _Thread(msgspec.Struct):
    """One life of one stream, as far as it is made into rows."""

    stream: str
    epoch: int
    after: int = 0
    chain: Chain = BEGINNING
    runs: Runs = {}


class Rebuilder:
    """Rebuilds when it is asked to, one at a time."""

    def __init__(self, rebuilt: Rebuilt, clock: Clock, router: str) -> None:
        self.rebuilt, self._clock, self._router = rebuilt, clock, router
        self._asked = asyncio.Event()

    def ask(self, source: str) -> bool:
        """Begin soon; False if one is under way."""
        if self.rebuilt.busy:
            return False
        self.rebuilt.state, self.rebuilt.source, self.rebuilt.error = "asked", source, ""
        self._asked.set()
        return True

    async def serve(self, store: Store, writing: asyncio.Lock, streams: Mapping[str, Stream]) -> None:
        """Wait to be asked, and rebuild.

        Raises:
            TablesChangedError: it is done.
            StoreError: it failed while tables changed places: they are to be opened anew.
        """
        while True:
            await self._asked.wait()
            self._asked.clear()
            began_us = self._clock.monotonic_us()
            try:
                await _Rebuild(self, store, writing, streams).run()
            except (StoreError, BusError) as error:
                changing = self.rebuilt.state == "changing_places"
                self._failed(str(error))
                if changing:  # some new tables stand in their places, whole as the old ones, and views may be missing
                    raise
                await _drop_new(store, writing)
                continue
            except asyncio.CancelledError:
                self._failed("it was cut off: the tables had to be opened anew")
                raise
            self.rebuilt.took_us = self._clock.monotonic_us() - began_us
            self.rebuilt.state = "done"
            _LOG.info("rebuild_done", extra={"messages": self.rebuilt.messages, "took_us": self.rebuilt.took_us})
            raise TablesChangedError

    def _failed(self, why: str) -> None:
        self.rebuilt.state, self.rebuilt.error = "failed", why
        _LOG.warning("rebuild_failed", extra={"why": why})

    def begin(self, messages: int) -> None:
        """Say that it runs."""
        self.rebuilt.state, self.rebuilt.messages, self.rebuilt.of = "running", 0, messages
        self.rebuilt.began_us = self._clock.wall_us()

    def now_us(self) -> int:
        """Return a time to measure by."""
        return self._clock.monotonic_us()

    @property
    def router(self) -> str:
        """Return the version that rows are stamped with."""
        return self._router


class _Rebuild:
    """One rebuild."""

    def __init__(self, by: Rebuilder, store: Store, writing: asyncio.Lock, streams: Mapping[str, Stream]) -> None:
        self._by, self._store, self._writing, self._streams = by, store, writing, streams
        self._from_stream = by.rebuilt.source == "stream"
        # the table that the messages are taken from is not made again
        self._tables = [table for table in RETAINED if table != LAST_TABLE or self._from_stream]
        self._sink = Sink(store, self._tables, last_table=self._tables[-1], suffix=beside.SUFFIX)
        self._threads: dict[tuple[str, int], _Thread] = {}

    async def run(self) -> None:
        """Rebuild; the new tables stand in their places afterwards."""
        self._by.begin(await in_thread(beside.kept_count, self._store))
        await in_thread(beside.make_beside, self._store, self._tables, ROLLUPS)
        if self._from_stream:
            await self._take_streams()
        left = await self._take_kept()
        while left > _NEAR:
            before, left = left, await self._take_kept()
            if left >= before:  # rows come in as fast as they are made here: only waiting ends it
                break
        async with self._writing:
            waiting_us = self._by.now_us()
            self._by.rebuilt.state = "changing_places"
            await self._take_kept()
            await in_thread(beside.keep_older_counts, self._store, ROLLUPS)
            messages = LAST_TABLE + (beside.SUFFIX if self._from_stream else "")
            for table in self._tables:
                if table != LAST_TABLE:
                    await in_thread(beside.keep_older_rows, self._store, table, messages)
            await in_thread(beside.take_places, self._store, self._tables, ROLLUPS)
            self._by.rebuilt.waited_us = self._by.now_us() - waiting_us

    async def _take_kept(self) -> int:
        """Take what is kept in `events` and not taken yet, and return how many messages that was."""
        taken = 0
        for stream in STREAMS:
            for epoch in await in_thread(beside.epochs, self._store, stream):
                thread = await self._thread(stream, epoch)
                while page := await in_thread(beside.kept, self._store, stream, epoch, thread.after, _PAGE):
                    await self._take(thread, page)
                    taken += len(page)
                    if len(page) < _PAGE:  # what has come meanwhile is for the next round, else it might never end
                        break
        return taken

    async def _take_streams(self) -> None:
        """Take the newest life of each stream from the stream itself; what that has no longer, and older lives, from `events`."""
        for name in STREAMS:
            lives = await in_thread(beside.epochs, self._store, name)
            if not lives:
                continue
            thread, stream = await self._thread(name, lives[-1]), self._streams[name]
            for epoch in lives[:-1]:
                await self._take_all_kept(await self._thread(name, epoch), until=None)
            bounds = await stream.bounds()
            await self._take_all_kept(thread, until=bounds.first)
            end = await in_thread(_newest, self._store, name, lives[-1])
            # between what is kept and what the stream has yet there may be nothing
            async for page in _read(stream, max(thread.after, bounds.first - 1), min(bounds.last, end)):
                await self._take(thread, page)

    async def _take_all_kept(self, thread: _Thread, until: int | None) -> None:
        """Take what is kept of one life, up to before sequence `until`."""
        while page := await in_thread(beside.kept, self._store, thread.stream, thread.epoch, thread.after, _PAGE):
            wanted = [message for message in page if until is None or message.seq < until]
            if wanted:
                await self._take(thread, wanted)
            if len(wanted) < len(page):
                return

    async def _thread(self, stream: str, epoch: int) -> _Thread:
        if (stream, epoch) not in self._threads:
            self._threads[stream, epoch] = _Thread(stream, epoch)
            await in_thread(self._sink.reached, stream, epoch)
        return self._threads[stream, epoch]

    async def _take(self, thread: _Thread, messages: Sequence[StoredMessage]) -> None:
        events_epoch = await self._events_epoch(thread.epoch, messages[-1].seq) if thread.stream == LEDGER else 0
        context = Context(router=self._by.router, events_epoch=events_epoch, chain=thread.chain, runs=thread.runs)
        projected = await in_thread(project, thread.stream, thread.epoch, messages, context)
        rows = {table: rows for table, rows in projected.rows.items() if table in self._tables}
        await in_thread(self._sink.write, thread.stream, thread.epoch, rows)
        thread.after, thread.chain, thread.runs = messages[-1].seq, projected.chain, projected.runs
        self._by.rebuilt.messages += len(messages)

    async def _events_epoch(self, epoch: int, seq: int) -> int:
        stated = await in_thread(beside.refused_in, self._store, epoch, seq)
        lives = await in_thread(beside.epochs, self._store, EVENTS)
        return stated or (lives[-1] if lives else 1)


async def _drop_new(store: Store, writing: asyncio.Lock) -> None:
    """Drop what a rebuild that failed leaves; where that fails as well, the next rebuild or start does it."""
    with suppress(StoreError):
        async with writing:
            await in_thread(beside.drop_left_behind, store, RETAINED, ROLLUPS)


def _newest(store: Store, stream: str, epoch: int) -> int:
    found = store.query(
        "SELECT max(seq) AS seq FROM events WHERE stream = {stream:String} AND epoch = {epoch:UInt32}",
        {"stream": stream, "epoch": epoch},
    )
    return int(found[0]["seq"])


async def _read(stream: Stream, after: int, until: int) -> AsyncIterator[Sequence[StoredMessage]]:
    if until <= after:
        return
    async with aclosing(stream.read(after=after, until=until)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            yield piece

"""The newest events, read once for all who follow them live.

However many clients come, go and come back at the same time, the bus has one reader of each stream for all of them, and each
event is read and checked once. What is kept for them is bounded. A client that is further behind, or slower than events come,
reads from the streams until it has caught up: piece by piece, and few at once, so that nobody else waits for it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec

from adapters.log.place_ids import made_anew
from adapters.log.public import PUBLIC, Came, Missed, Place, bounds_of, created_of, next_stored, read_public
from domain.ports import Stream
from projections.feed import PublicEvent
from services.projector.told import Told

_KEPT_MAX, _KEPT_BYTES_MAX = 8192, 8 * 1024 * 1024
"""Messages kept for all, and their bytes."""
_BACK: Final = 1000
"""Messages of each stream that are read at the start: clients that come back after a restart find what they missed."""
_AT_ONCE: Final = 4
"""Clients that are given a piece of the past at the same time."""
_PIECE, _PIECE_BYTES = 512, 256 * 1024
"""Messages of such a piece, and their bytes."""
_TURN: Final = 32
"""Messages that are worked on before others have their turn."""
_BATCH_MIN, _ROUND, _BATCH_BYTES = 8, 2048, 64 * 1024
"""Entries that a client gets at once: so many that all clients together get a round of them before others have their turn."""
_WAKE_S: Final = 0.00025
"""Pause between two wakings for each client: what comes meanwhile is told at once, and all take no more than a part of a core."""
_PAUSE_S: Final = 0.1
_SILENCE_S: Final = 3600.0


class Entry(msgspec.Struct, frozen=True, gc=False):  # there are many, and none can stand in a cycle
    """A message as those who follow get it."""

    stream: str
    seq: int
    """Its place in the stream; of missing messages, that of the last one."""
    place: Place
    """After it, for whoever reads as it was read here."""
    event: PublicEvent | None
    """None: it is none of ours, or is missing."""
    missed: Missed | None
    size: int


class Live:
    """Follows the public streams as long as anybody does."""

    def __init__(self, streams: Mapping[str, Stream], told: Told, *, linger_s: float) -> None:
        """Read nothing yet; go on reading for `linger_s` after the last one left, since those who lost a connection come back."""
        self._streams, self._told, self._linger_s = streams, told, linger_s
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._grown = asyncio.Event()
        self._wake_s, self._waking = 0.0, False
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._life = 0
        """Counts how often everything was begun anew: what was kept before is not continued."""
        self._failed: Exception | None = None
        self._kept: deque[Entry] = deque()
        self._bytes = 0
        self._first = 0
        """Number of the oldest entry kept."""
        self._start = self._place = Place()
        """Before the oldest entry, and after the newest message."""
        self.created_ns: tuple[int, ...] = ()
        """When the streams were made that are being read (adapters.log.public.created_of)."""

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be one of those who follow, for the length of the block.

        Raises:
            BusError: the bus does not say where the streams end.
        """
        self._users += 1
        try:
            await self._started()
            yield
        finally:
            self._users -= 1
            if not self._users:
                asyncio.get_running_loop().call_later(self._linger_s, self._end_unless_used)

    async def follow(
        self, place: Place, created_ns: tuple[int, ...], *, silence_s: float
    ) -> AsyncGenerator[list[tuple[Place, Entry]], None]:
        """Yield what comes after `place`, for ever: (place after it, entry) each; nothing if nothing came for `silence_s`.

        `created_ns`: when the streams were made in which it is a place.

        Raises:
            BusError: a stream is not there.
        """
        while True:
            if self._failed is not None:
                raise self._failed
            same = created_ns == self.created_ns
            at = self._number_after(place) if same else None
            if at is None and (piece := await self._past(place, created_ns)):
                place = piece[-1][0]
                for _, entry in piece:
                    if entry.missed is not None and entry.missed.created_ns:
                        created_ns = made_anew(created_ns, entry.missed)
                yield piece
            elif at is not None or (same and (at := self._number_after(place, ahead=True)) is not None):
                async with aclosing(self._newest(place, at, silence_s)) as batches:
                    async for reached, batch in batches:
                        place = reached
                        yield batch
            else:
                await asyncio.sleep(_PAUSE_S)

    async def _newest(
        self, place: Place, at: int, silence_s: float
    ) -> AsyncGenerator[tuple[Place, list[tuple[Place, Entry]]], None]:
        """Yield (place, entries) from entry number `at` on, until what comes next is kept no more."""
        life = self._life
        while self._life == life and at >= self._first:
            batch: list[tuple[Place, Entry]] = []
            size, end = 0, self._first + len(self._kept)
            most = max(_BATCH_MIN, _ROUND // max(self._users, 1))
            while at < end and size < _BATCH_BYTES and len(batch) < most:
                entry = self._kept[at - self._first]
                at += 1
                if entry.seq > place.of(entry.stream):
                    place = place.at(entry.stream, entry.seq)
                    batch.append((place, entry))
                    size += entry.size
            if batch or (at == end and not await self._more(silence_s)):
                yield place, batch
                await asyncio.sleep(0)  # whoever filters all of it out waits for nothing

    async def _more(self, silence_s: float) -> bool:
        """Return whether something has come within `silence_s`."""
        try:
            async with asyncio.timeout(silence_s):
                await self._grown.wait()
        except TimeoutError:
            return False
        return True

    async def _past(self, place: Place, created_ns: tuple[int, ...]) -> list[tuple[Place, Entry]]:
        """Return the next ones that are stored after `place`; none if it is the end of all streams."""
        async with self._turns:
            items = await next_stored(self._streams, place, most=_PIECE, most_bytes=_PIECE_BYTES, created_ns=created_ns)
            entries = []
            for number, item in enumerate(items, 1):
                entries.append((item.place, self._entry(item)))
                if number % _TURN == 0:
                    await asyncio.sleep(0)
            return entries

    def _number_after(self, place: Place, *, ahead: bool = False) -> int | None:
        """Return the number of the entry with which to go on after `place`; None if not all that follows is kept.

        A place beyond what was read here may be beyond the end of a stream, too: `ahead` says that it is not.
        """
        if not self._start <= place or not (ahead or place <= self._place):
            return None
        low, high = 0, len(self._kept)
        while low < high:
            middle = (low + high) // 2
            if self._kept[middle].place <= place:
                low = middle + 1
            else:
                high = middle
        return self._first + low

    # -- reading

    async def _started(self) -> None:
        if self._task is None or self._task.done():
            self._life += 1
            self._failed = None
            self._ready.clear()
            self._task = asyncio.create_task(self._run(), name="public live")
        task, waiting = self._task, asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._failed is not None:
            raise self._failed

    def _end_unless_used(self) -> None:
        if not self._users and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            await self._read()
        except Exception as error:  # noqa: BLE001  # raised to each who follows
            self._failed = error
            self._life += 1
            self._wake()

    async def _read(self) -> None:
        bounds = await bounds_of(self._streams)
        ends = [bounds[name].last for name in PUBLIC]
        begin = Place(*(max(bounds[name].first - 1, bounds[name].last - _BACK) for name in PUBLIC))
        self._begin_at(begin)
        self.created_ns = created_of(bounds)
        end = Place(*ends)
        if end <= begin:
            self._ready.set()
        reading = read_public(self._streams, begin, silence_s=_SILENCE_S, created_ns=self.created_ns)
        async with aclosing(reading) as items:
            taken = 0
            async for item in items:
                if item is None:
                    continue
                self._take(item)
                if not self._ready.is_set() and end <= self._place:
                    self._ready.set()
                taken += 1
                if taken % _TURN == 0:
                    await asyncio.sleep(0)

    def _begin_at(self, place: Place) -> None:
        self._kept.clear()
        self._bytes = self._first = 0
        self._start = self._place = place

    def _take(self, item: Came | Missed) -> None:
        if isinstance(item, Missed) and item.created_ns:
            self.created_ns = made_anew(self.created_ns, item)
            self._life += 1  # a stream was made anew: each who follows finds out what that means for its place
            self._begin_at(item.place)
            self._wake()
            return
        entry = self._entry(item)
        self._kept.append(entry)
        self._bytes += entry.size
        self._place = item.place
        while len(self._kept) > _KEPT_MAX or self._bytes > _KEPT_BYTES_MAX:
            oldest = self._kept.popleft()
            self._bytes -= oldest.size
            self._start = oldest.place
            self._first += 1
        self._wake_soon()

    def _entry(self, item: Came | Missed) -> Entry:
        if isinstance(item, Missed):
            return Entry(item.stream, item.first - 1, item.place, None, item, 0)
        event = self._told.event(item)
        return Entry(
            item.stream, item.message.seq, item.place, event, None, len(event.body) if event is not None else 0
        )

    def _wake_soon(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s >= self._wake_s:
            self._wake()
        elif not self._waking:
            self._waking = True
            loop.call_at(self._wake_s, self._wake)

    def _wake(self) -> None:
        self._waking = False
        self._wake_s = asyncio.get_running_loop().time() + self._users * _WAKE_S
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

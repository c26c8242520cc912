"""Every stored event in one sequence: facts, control events and published decisions, read on from any place.

A place is how far each of the three streams has been read. What is stored already comes in the order of its stamps; what comes
from then on, in the order in which it arrives. Within a stream the order is always the stream's own, and nothing is left out
without a word: where messages are gone, or a stream was made anew, there is a `Missed` in their place.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec.structs import replace

from domain.errors import HistoryGapError
from domain.ports import Bounds, StoredMessage, Stream
from domain.subjects import CONTROL, DECISIONS, EVENTS

PUBLIC: Final = (EVENTS, CONTROL, DECISIONS)
_WAITING_MAX: Final = 256
"""Messages that wait for the reader besides what the streams' own readers hold."""


_Arrived = tuple[str, StoredMessage] | Exception


class Place(msgspec.Struct, frozen=True):
    """How far LW_EVENTS, LW_CONTROL and LW_DECISIONS have been read: the last sequence taken of each."""

    events: int = 0
    control: int = 0
    decisions: int = 0

    def __str__(self) -> str:
        """Return it as people and programs carry it: `<events>-<control>-<decisions>`."""
        return f"{self.events}-{self.control}-{self.decisions}"

    def of(self, stream: str) -> int:
        """Return how far `stream` has been read."""
        return (self.events, self.control, self.decisions)[PUBLIC.index(stream)]

    def __le__(self, other: "Place") -> bool:
        """Tell whether whoever is at `other` has read everything up to here; of two places neither need be before the other."""
        return self.events <= other.events and self.control <= other.control and self.decisions <= other.decisions

    def at(self, stream: str, seq: int) -> "Place":
        """Return this place with `stream` read up to `seq`."""
        taken = [self.events, self.control, self.decisions]
        taken[PUBLIC.index(stream)] = seq
        return Place(*taken)


class Came(msgspec.Struct, frozen=True):
    """A message, and the place after it."""

    place: Place
    stream: str
    message: StoredMessage


class Missed(msgspec.Struct, frozen=True):
    """Messages that are gone, and the place after them."""

    place: Place
    stream: str
    after: int
    """The last sequence that was read."""
    first: int
    """The first one that the stream still holds (or will hold)."""
    created_ns: int = 0
    """If it is another stream than that which was read, made anew: when it was made; 0: it is the same."""


def parse_place(text: str) -> Place | None:
    """Return the place that `text` says; None if it says none."""
    parts = text.split("-")
    if len(parts) != len(PUBLIC) or not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in parts):
        return None
    place = Place(*(int(part) for part in parts))
    return place if str(place) == text else None  # 2026-01-05 is a day


async def newest(streams: Mapping[str, Stream]) -> Place:
    """Return the place after everything that is stored now."""
    bounds = await bounds_of(streams)
    return Place(*(bounds[name].last for name in PUBLIC))


async def place_at(streams: Mapping[str, Stream], stamp_ns: int) -> Place:
    """Return the place after everything stored before `stamp_ns` (nanoseconds since the epoch)."""
    return Place(*[await _before(streams[name], stamp_ns) for name in PUBLIC])


async def place_before(streams: Mapping[str, Stream], stream: str, seq: int) -> Place:
    """Return the place right before message `seq` of `stream`: of the others, after what was stored before it."""
    message = await streams[stream].get(seq)
    place = await newest(streams) if message is None else await place_at(streams, message.stamp_ns)
    return place.at(stream, max(seq - 1, 0))


async def _before(stream: Stream, stamp_ns: int) -> int:
    """Return the last sequence stored before `stamp_ns`, by bisection over the stored stamps."""
    bounds = await stream.bounds()
    low, high = bounds.first, bounds.last + 1
    while low < high:
        middle = (low + high) // 2
        message = await stream.get(middle)
        if message is None or message.stamp_ns < stamp_ns:
            low = middle + 1
        else:
            high = middle
    return low - 1


async def read_public(
    streams: Mapping[str, Stream], place: Place, *, silence_s: float, created_ns: Sequence[int] = ()
) -> AsyncGenerator[Came | Missed | None, None]:
    """Yield everything after `place`, for ever, and None whenever nothing has arrived for `silence_s`.

    It asks for more only as fast as it is read. `created_ns`: when the streams were made in which it is a place (created_of);
    those that are there now, unless given.

    Raises:
        BusError: a stream is not there.
    """
    while True:
        bounds = await bounds_of(streams)
        for gone in _gone(place, bounds, created_ns):
            place = gone.place
            yield gone
        created_ns = created_of(bounds)
        try:
            async with aclosing(_all_of(streams, place, bounds, silence_s)) as all_of:
                async for came in all_of:
                    place = place if came is None else came.place
                    yield came
        except HistoryGapError as error:
            if (missed := await _hole(streams[error.stream], place)) is not None:
                place = missed.place
                yield missed


async def next_stored(
    streams: Mapping[str, Stream], place: Place, *, most: int, most_bytes: int, created_ns: Sequence[int] = ()
) -> list[Came | Missed]:
    """Return what is stored next after `place`, as `read_public` has it, until a bound is reached; none at the end of all.

    Nothing of it is left open: whoever takes long over them holds up nobody.

    Raises:
        BusError: a stream is not there.
    """
    bounds = await bounds_of(streams)
    found: list[Came | Missed] = [*_gone(place, bounds, created_ns)]
    place = found[-1].place if found else place
    size = 0
    # no stream can give more of them than all together
    ends = {name: replace(bounds[name], last=min(bounds[name].last, place.of(name) + most)) for name in PUBLIC}
    try:
        async with aclosing(_stored(streams, place, ends)) as stored:
            async for came in stored:
                place = came.place
                found.append(came)
                size += len(came.message.body)
                if len(found) >= most or size >= most_bytes:
                    break
    except HistoryGapError as error:
        if (missed := await _hole(streams[error.stream], place)) is not None:
            found.append(missed)
    return found


def _gone(place: Place, bounds: Mapping[str, Bounds], created_ns: Sequence[int]) -> Iterator[Missed]:
    """Yield what a reader at `place` has missed: the streams hold it no more, or were made anew."""
    for name, made_ns in zip(PUBLIC, created_ns or created_of(bounds), strict=True):
        after, held = place.of(name), bounds[name]
        anew = after > held.last or made_ns != held.created_ns
        if anew or after < held.first - 1:
            place = place.at(name, held.first - 1)
            yield Missed(place, name, after, held.first, held.created_ns if anew else 0)


async def _hole(stream: Stream, place: Place) -> Missed | None:
    """Return what is missed where the next message of `stream` is gone and later ones are there; None if it is none such."""
    after, bounds = place.of(stream.name), await stream.bounds()
    if not bounds.first <= after + 1 <= bounds.last or await stream.get(after + 1) is not None:
        return None
    first = after + 2
    while first <= bounds.last and await stream.get(first) is None:
        first += 1
    return Missed(place.at(stream.name, first - 1), stream.name, after, first)


async def _all_of(
    streams: Mapping[str, Stream], place: Place, bounds: Mapping[str, Bounds], silence_s: float
) -> AsyncGenerator[Came | None, None]:
    async with aclosing(_stored(streams, place, bounds)) as stored:
        async for came in stored:
            place = came.place
            yield came
    async with aclosing(_arriving(streams, place, silence_s)) as arriving:
        async for arrived in arriving:
            yield arrived


async def bounds_of(streams: Mapping[str, Stream]) -> dict[str, Bounds]:
    """Return what each of the three streams holds now."""
    found = await asyncio.gather(*(streams[name].bounds() for name in PUBLIC))
    return dict(zip(PUBLIC, found, strict=True))


def created_of(bounds: Mapping[str, Bounds]) -> tuple[int, ...]:
    """Return when the three streams were made, in the order of PUBLIC."""
    return tuple(bounds[name].created_ns for name in PUBLIC)


async def _stored(
    streams: Mapping[str, Stream], place: Place, bounds: Mapping[str, Bounds]
) -> AsyncGenerator[Came, None]:
    """Yield what lies between `place` and the ends in `bounds`, by stamp; a tie goes to the stream that is named first."""
    readers = {name: _singly(streams[name], place.of(name), bounds[name].last) for name in PUBLIC}
    try:
        # all of them to their end: a reader that is running cannot be closed
        firsts = await asyncio.gather(*(anext(each, None) for each in readers.values()), return_exceptions=True)
        heads = {name: _unless_failed(first) for name, first in zip(readers, firsts, strict=True)}
        while waiting := [(head.stamp_ns, PUBLIC.index(name)) for name, head in heads.items() if head is not None]:
            name = PUBLIC[min(waiting)[1]]
            message = heads[name]
            assert message is not None
            place = place.at(name, message.seq)
            yield Came(place, name, message)
            heads[name] = await anext(readers[name], None)
    finally:
        for reader in readers.values():
            await reader.aclose()


def _unless_failed(first: StoredMessage | BaseException | None) -> StoredMessage | None:
    if isinstance(first, BaseException):
        raise first
    return first


async def _singly(stream: Stream, after: int, until: int | None) -> AsyncGenerator[StoredMessage, None]:
    if until is not None and until <= after:
        return
    reading = stream.read(after=after, until=until)
    try:
        async for batch in reading:
            for message in batch:
                yield message
    finally:
        if isinstance(reading, AsyncGenerator):
            await reading.aclose()


async def _arriving(streams: Mapping[str, Stream], place: Place, silence_s: float) -> AsyncGenerator[Came | None, None]:
    """Yield what is stored from `place` on, as it arrives; several readers, one bounded queue. None stands for a silence."""
    arrived: asyncio.Queue[_Arrived] = asyncio.Queue(_WAITING_MAX)

    async def pump(name: str) -> None:
        try:
            async with aclosing(_singly(streams[name], place.of(name), None)) as messages:
                async for message in messages:
                    await arrived.put((name, message))
        except Exception as error:  # noqa: BLE001  # raised to the one who reads, in its turn
            await arrived.put(error)

    pumps = [asyncio.create_task(pump(name), name=f"public {name}") for name in PUBLIC]
    try:
        while True:
            got = None if arrived.empty() else arrived.get_nowait()
            if got is None and (got := await _within(silence_s, arrived)) is None:
                yield None
                continue
            if isinstance(got, Exception):
                raise got
            name, message = got
            place = place.at(name, message.seq)
            yield Came(place, name, message)
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _within(silence_s: float, arrived: asyncio.Queue[_Arrived]) -> _Arrived | None:
    try:
        async with asyncio.timeout(silence_s):
            return await arrived.get()
    except TimeoutError:
        return None

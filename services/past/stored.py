"""The streams as ClickHouse has kept them, for a history that reaches back further than the bus does."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

from adapters.clickhouse import archived
from adapters.log.history import Streams
from adapters.log.holes import next_after
from adapters.log.read_only import ReadOnly
from domain.errors import HistoryGapError
from domain.ports import Bounds, StoredMessage, Stream
from domain.subjects import CONTROL, EVENTS, LEDGER

Ask = Callable[..., Awaitable[Any]]
"""Returns `question(store, ...)`, asked in a thread."""
_PAGE: Final = 2000


class StoredStream(ReadOnly):
    """A stream in the table of messages (domain.ports.Stream), read where the store is open."""

    what = "the archive"

    def __init__(self, ask: Ask, name: str) -> None:
        self.name = name
        self._ask = ask

    async def last(self) -> StoredMessage | None:
        """Return the newest message; None if there is none."""
        return await self.get((await self.bounds()).last)

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, or None."""
        found = await self._messages(seq - 1, 1) if seq > 0 else []
        return found[0] if found else None

    async def bounds(self) -> Bounds:
        """Return what the archive holds."""
        held: archived.Reach = await self._ask(archived.reach, self.name)
        return Bounds(held.first, held.last, 0)

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches from `after` + 1 to `until`, or to where it ends now.

        Raises:
            HistoryGapError: a message in between is not in the archive.
        """
        end = until if until is not None else (await self.bounds()).last
        while after < end:
            found = await self._messages(after, min(_PAGE, end - after))
            batch = [message for seq, message in enumerate(found, start=after + 1) if message.seq == seq]
            if not batch:
                raise await gap_in(self, after + 1)
            yield batch
            after = batch[-1].seq

    async def _messages(self, after: int, limit: int) -> list[StoredMessage]:
        found: list[archived.Message] = await self._ask(archived.messages, self.name, after, limit)
        return [StoredMessage(one.seq, one.stamp_ns, one.subject, one.headers, one.body) for one in found]


async def gap_in(archive: Stream, first: int) -> HistoryGapError:
    """Return the error that names what is missing in an archive from message `first` on."""
    last = (await archive.bounds()).last
    until = await next_after(archive, first, last) - 1 if first < last else first
    if first < until <= last:
        return HistoryGapError(archive.name, f"messages {first} to {until} are not in the archive")
    return HistoryGapError(archive.name, f"message {first} is not in the archive")


def streams_kept(ask: Ask) -> Streams:
    """Return the streams that history stands in, as far as ClickHouse has them."""
    return Streams(StoredStream(ask, EVENTS), StoredStream(ask, CONTROL), StoredStream(ask, LEDGER))


def _is_stream(stream: StoredStream) -> Stream:
    return stream  # the type checker's proof

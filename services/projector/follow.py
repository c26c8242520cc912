"""Carries one stream into the tables, for ever."""

import asyncio
import logging
from contextlib import aclosing
from typing import Final

import msgspec

from adapters.clickhouse.causes import cause_of
from adapters.clickhouse.notes import Notes
from adapters.clickhouse.sink import Sink
from domain.errors import BusError, StoreAwayError, StoreError
from domain.ports import Clock, StoredMessage, Stream
from domain.subjects import EVENTS, LEDGER
from projections.folds import FOLDED_BY, GAP_NS, Runs, runs_of
from projections.ledger import BEGINNING, Chain
from projections.project import Context, Projected, project
from services.projector.backoff import Backoff
from services.projector.batches import BatchLimits, batches
from services.projector.position import Finder, Position
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
_NOTE_EVERY_US: Final = 60_000_000
_GONE: Final = "no_table"
"""Why rows are refused (adapters.clickhouse.causes) where the tables are to be made again."""


class Progress(msgspec.Struct, kw_only=True):
    """What is known of one stream's way into the tables; /health shows it."""

    stream: str
    epoch: int = 0
    position: int = 0
    """Everything up to here is in the tables."""
    at_ns: int = 0
    """Stamp of the newest message that was stored since the start of the process."""
    unreadable: int = 0
    """Messages since the start of the process that this release cannot read; their bytes are kept."""
    void: int = 0
    """Commits since the start of the process that do not continue the ledger."""
    rows: int = 0
    """Rows written since the start of the process."""
    gone: int = 0
    """Messages since the start of the process that the stream no longer had when they were to be read."""
    halved: int = 0
    """Inserts since the start of the process that were too much for ClickHouse's memory and went in as halves."""
    error: str = ""
    """Why it does not go on just now."""
    cause: str = ""
    """The same in a word: one of adapters.clickhouse.causes, or bus_away."""


class Epochs:
    """Which life of each stream is read."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._events = asyncio.Event()

    def set(self, stream: str, epoch: int) -> None:
        """Keep the epoch of `stream`."""
        self._known[stream] = epoch
        if stream == EVENTS:
            self._events.set()

    async def of_events(self) -> int:
        """Return the epoch of LW_EVENTS, once it is known: commits refer to it."""
        await self._events.wait()
        return self._known[EVENTS]


class Deck(msgspec.Struct, frozen=True, kw_only=True):
    """What the followers of all streams share."""

    notes: Notes
    sink: Sink
    clock: Clock
    epochs: Epochs
    router: str
    """Version of Leaseway."""
    limits: BatchLimits
    writing: asyncio.Lock
    """One insert is in flight at a time."""
    ending: asyncio.Event
    """Set once one of those that share this has ended: then all of them end."""


class Follower:
    """Carries one stream."""

    def __init__(self, deck: Deck, stream: Stream, progress: Progress) -> None:
        self._deck, self._stream, self._progress = deck, stream, progress
        self._finder = Finder(deck.notes, deck.sink, deck.clock)
        self._position: Position | None = None
        self._chain: Chain = BEGINNING
        self._runs: Runs = {}
        self._noted_us = deck.clock.monotonic_us()
        self._backoff = Backoff()

    async def run(self) -> None:
        """Carry the stream until cancelled.

        Raises:
            StoreError: the tables are gone and must be made again.
        """
        while True:
            try:
                await self._follow()
            except BusError as error:  # a gap as well: the next position is past it
                self._fail("bus_away", error, "bus_away")
            except StoreError as error:
                if cause_of(error) == _GONE:
                    raise
                self._refused(error)
            if self._deck.ending.is_set():  # who is told to stop while something fails hears of the failure alone
                return
            await self._backoff.wait()

    async def note(self) -> None:
        """Note the position beside the rows."""
        if self._position is not None:
            await self._finder.note(self._stream.name, self._position)
            self._noted_us = self._deck.clock.monotonic_us()

    async def _follow(self) -> None:
        position = await self._finder.find(self._stream)
        self._progress.gone = self._finder.gone
        self._arrive(position)
        self._deck.epochs.set(self._stream.name, position.epoch)
        if self._stream.name == LEDGER:
            self._chain = await self._end_of_ledger(position)
        self._runs = await self._last_runs(position)
        self._recover()
        try:
            await self._carry(position)
        except BaseExceptionGroup as group:  # of one: whatever fails first ends the other
            raise group.exceptions[0] from None

    async def _carry(self, position: Position) -> None:
        """Store one batch while the next one is made into rows; not more is held, however long ClickHouse is away."""
        storing: asyncio.Task[None] | None = None
        async with (
            aclosing(batches(self._stream.read(after=position.after), self._deck.limits)) as pieces,
            asyncio.TaskGroup() as group,
        ):
            async for batch in pieces:
                projected = await self._projected(batch, position)
                self._chain, self._runs = projected.chain, projected.runs
                if storing is not None:
                    await storing
                position = msgspec.structs.replace(position, after=batch[-1].seq)
                storing = group.create_task(self._store(projected, position, batch[-1].stamp_ns))

    async def _store(self, projected: Projected, position: Position, at_ns: int) -> None:
        """Return once all these rows are stored, and everything up to `position` is."""
        while (rows := await self._stored(position.epoch, projected)) is None:
            await self._backoff.wait()
        self._recover()
        self._count(rows, projected)
        self._arrive(position)
        self._progress.at_ns = at_ns
        if self._deck.clock.monotonic_us() - self._noted_us >= _NOTE_EVERY_US:
            await self.note()

    async def _stored(self, epoch: int, projected: Projected) -> int | None:
        """Return how many rows were new; None if ClickHouse did not take all of them."""
        try:
            async with self._deck.writing:
                return await in_thread(self._deck.sink.write, self._stream.name, epoch, projected.rows)
        except StoreError as error:
            if cause_of(error) == _GONE:
                raise
            self._refused(error)
            return None
        finally:
            self._progress.halved += self._deck.sink.halved.pop(self._stream.name, 0)

    async def _projected(self, batch: list[StoredMessage], position: Position) -> Projected:
        events_epoch = await self._deck.epochs.of_events() if self._stream.name == LEDGER else 0
        context = Context(router=self._deck.router, events_epoch=events_epoch, chain=self._chain, runs=self._runs)
        return await in_thread(project, self._stream.name, position.epoch, batch, context)

    async def _end_of_ledger(self, position: Position) -> Chain:
        head = await in_thread(self._deck.notes.head, LEDGER, position.epoch)
        if head is None or head.seq != position.after:
            return BEGINNING
        return Chain(seq=head.seq, digest=head.digest)

    async def _last_runs(self, position: Position) -> Runs:
        """Return the runs of decisions that may go on after `position`, from the tables."""
        place = self._stream.name, position.epoch, position.after
        return runs_of(await in_thread(self._deck.notes.runs, *place, FOLDED_BY, GAP_NS))

    def _arrive(self, position: Position) -> None:
        self._position = position
        self._progress.epoch, self._progress.position = position.epoch, position.after

    def _count(self, rows: int, projected: Projected) -> None:
        self._progress.rows += rows
        self._progress.unreadable += len(projected.unreadable)
        self._progress.void += len(projected.void)
        where = {"stream": self._stream.name, "epoch": self._progress.epoch}
        if projected.unreadable:
            count, first = len(projected.unreadable), projected.unreadable[0]
            _LOG.warning("messages_unreadable", extra={**where, "count": count, "first": first})
        for seq in projected.void:
            _LOG.error("commit_void", extra={**where, "seq": seq})

    def _refused(self, error: StoreError) -> None:
        self._fail(
            "clickhouse_away" if isinstance(error, StoreAwayError) else "clickhouse_refuses", error, cause_of(error)
        )

    def _fail(self, event: str, error: Exception, cause: str) -> None:
        if self._progress.cause != cause:
            _LOG.warning(event, extra={"stream": self._stream.name, "cause": cause, "why": str(error)})
        self._progress.error, self._progress.cause = str(error), cause

    def _recover(self) -> None:
        if self._progress.error:
            _LOG.info("stream_goes_on", extra={"stream": self._stream.name})
        self._progress.error = self._progress.cause = ""
        self._backoff.reset()

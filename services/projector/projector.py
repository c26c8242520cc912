"""Carries every stream into ClickHouse: opens the store, runs a follower for each stream, begins again when tables are gone."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from adapters.clickhouse.beside import drop_left_behind
from adapters.clickhouse.causes import CAUSES, cause_of
from adapters.clickhouse.migrate import make_missing, migrate
from adapters.clickhouse.notes import Notes
from adapters.clickhouse.rollups import ensure_views
from adapters.clickhouse.sink import Sink
from adapters.clickhouse.store import Store
from domain.errors import BusError, StoreError
from domain.ports import Clock, Stream
from domain.subjects import CONTROL
from projections.project import LAST_TABLE, STREAMS
from projections.rollups import ROLLUPS
from projections.tables import MIGRATIONS, OF_WRITERS, RETAINED
from services.projector.alone import Alone
from services.projector.backoff import Backoff
from services.projector.batches import BatchLimits
from services.projector.follow import Deck, Epochs, Follower, Progress
from services.projector.rebuild import Rebuilder, Rebuilt, TablesChangedError
from services.projector.recount import Counted, keep_rollups
from services.projector.retain import keep_retention
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
_STOP_S: Final = 5.0
_LOST_S: Final = 30.0
"""After that whoever has not stopped is told again."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a projector is made of."""

    cluster: str
    router: str
    """Version of Leaseway."""
    streams: Mapping[str, Stream]
    """LW_EVENTS, LW_CONTROL and LW_LEDGER by name; others for those who answer questions."""
    open_store: Callable[[], Store]
    """Opens ClickHouse; it blocks."""
    clock: Clock
    host: str = ""
    """This machine's name, for who else would write to the same server."""
    limits: BatchLimits = BatchLimits()


class Projector:
    """The one writer of ClickHouse. `run` it once; `store` is there for readers while it is open."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.cluster = setup.cluster
        self.store: Store | None = None
        self.notes: Notes | None = None
        self.schema = 0
        """Number of the newest migration, once the store is open."""
        self.away = ""
        """Why the store could not be opened yet."""
        self.away_cause = ""
        """The same in a word (adapters.clickhouse.causes)."""
        self.progress = {name: Progress(stream=name) for name in STREAMS}
        self.counted = Counted()
        """What is known of the counts by minute."""
        self.rebuilt = Rebuilt()
        """The newest rebuild."""
        self._rebuilder = Rebuilder(self.rebuilt, setup.clock, setup.router)
        self._alone = Alone(setup.host, setup.clock)
        self.streams = setup.streams
        self._stopping = False
        self._ending = asyncio.Event()
        self.tried = asyncio.Event()
        """Set once the store was opened, or the first attempt to has failed."""

    async def run(self) -> None:
        """Open the store and carry all streams until cancelled.

        Raises:
            BadConfigError, DataInUseError, BrokenSetupError: the store can never be opened like this.
        """
        working = asyncio.create_task(self._work(), name="projector")
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            # where one of a group of tasks fails in that moment, the group says so and not that it was told to stop
            self._stopping = True
            self._ending.set()
            while not working.done():
                working.cancel()
                await asyncio.wait({working}, timeout=_LOST_S)
            if not working.cancelled():
                working.exception()  # it stops all the same
            raise
        working.result()

    async def _work(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            try:
                await self._open()
                backoff.reset()
                while await self._carry_all() and not self._stopping:
                    pass
            except* StoreError as group:
                self._say_away(_first(group))
            finally:
                await self._close()
            if not self._stopping:
                await backoff.wait()

    def rebuild(self, source: str) -> bool:
        """Make all rows again from `source`, beside the live ones; False if that is under way."""
        return self._rebuilder.ask(source)

    async def _open(self) -> None:
        store = await in_thread(self._setup.open_store)
        try:
            notes = Notes(store, self._setup.cluster)
            await in_thread(notes.check_cluster)  # before anything of somebody else's is touched
            self.schema = await in_thread(migrate, store, MIGRATIONS)
            await in_thread(make_missing, store, OF_WRITERS)
            await self._alone.begin(store)
            await self._make_missing(store, notes)  # by the one that writes: another one would leave them empty
            await in_thread(drop_left_behind, store, RETAINED, ROLLUPS)
            await in_thread(ensure_views, store, ROLLUPS)
        except BaseException:
            await in_thread(store.close)
            raise
        self.store, self.notes, self.away, self.away_cause = store, notes, "", ""
        _LOG.info("clickhouse_open", extra={"dsn": store.shown, "server": store.server_version, "schema": self.schema})
        self.tried.set()

    async def _make_missing(self, store: Store, notes: Notes) -> None:
        """Make tables again that somebody has dropped, and see to it that they are filled."""
        missing = await in_thread(make_missing, store, MIGRATIONS)
        if not missing:
            return
        _LOG.error("tables_made_again", extra={"tables": ",".join(missing)})
        if LAST_TABLE in missing:  # the messages themselves: from the streams, as far back as those reach
            for name in STREAMS:
                await in_thread(notes.begin_again, name, now_ns=self._setup.clock.wall_us() * 1000)
        if {*RETAINED, *(rollup.table for rollup in ROLLUPS)} & set(missing) - {LAST_TABLE}:
            self.rebuild("archive")

    async def _close(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            if not self.causes:  # else it would be waited for
                await self._alone.leave(store)
            await in_thread(store.close)

    async def _carry_all(self) -> bool:
        """Carry until cancelled, or until other tables stand in the place of those that are written: then return True."""
        assert self.store is not None
        assert self.notes is not None
        self._ending = asyncio.Event()
        if self._stopping:
            return False
        deck = Deck(
            notes=self.notes,
            sink=Sink(self.store, RETAINED, last_table=LAST_TABLE),
            clock=self._setup.clock,
            epochs=Epochs(),
            router=self._setup.router,
            limits=self._setup.limits,
            writing=asyncio.Lock(),
            ending=self._ending,
        )
        followers = [Follower(deck, self._setup.streams[name], self.progress[name]) for name in STREAMS]
        changed = False
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    for each in (
                        *(follower.run() for follower in followers),
                        *([self._alone.keep(self.store)] if self.store.is_shared else ()),
                        keep_retention(self.store, self._setup.streams[CONTROL]),
                        keep_rollups(self.store, deck.writing, self.counted),
                        self._rebuilder.serve(self.store, deck.writing, self._setup.streams),
                    ):
                        group.create_task(_ending_all(each, deck.ending))
            except* TablesChangedError:
                changed = True
        except asyncio.CancelledError:
            await _note_all(followers)
            raise
        return changed

    @property
    def causes(self) -> set[str]:
        """Return why ClickHouse takes no rows just now, each in a word (adapters.clickhouse.causes); empty while it does."""
        if self.away_cause:  # it is not open: what the streams met before it was closed is over
            return {self.away_cause}
        return {each.cause for each in self.progress.values()} & CAUSES.keys()

    def _say_away(self, error: StoreError) -> None:
        cause = cause_of(error)
        if self.away_cause != cause:
            _LOG.warning("clickhouse_away", extra={"cause": cause, "why": str(error)})
        self.away, self.away_cause = str(error), cause
        self.tried.set()


async def _ending_all(work: Coroutine[Any, Any, None], ending: asyncio.Event) -> None:
    try:
        await work
    finally:
        ending.set()


def _first(group: BaseExceptionGroup[StoreError]) -> StoreError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StoreError)
    return error


async def _note_all(followers: list[Follower]) -> None:
    """Note every position before the end, unless ClickHouse is away: the rows themselves tell as well."""
    with contextlib.suppress(StoreError, BusError, TimeoutError):
        async with asyncio.timeout(_STOP_S):
            for follower in followers:
                await follower.note()

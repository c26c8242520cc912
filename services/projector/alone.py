"""Sees to it that one projector writes to a server at a time: a second one waits, and takes over when the first is silent.

An embedded engine locks its directory itself. On a server each says from time to time that it is there. That is no lock: one that
was cut off and comes back may write until it next looks. Rows are keyed by their place and counts are compared with them, so that
such a while costs work and no row.
"""

import asyncio
import logging
import os
from contextlib import suppress
from typing import Final

import msgspec

from adapters.clickhouse import writers
from adapters.clickhouse.causes import cause_of
from adapters.clickhouse.store import NO_TABLE, Store
from adapters.clickhouse.writers import Writer
from adapters.clock import new_incarnation
from domain.errors import StoreError, StoreTakenError
from domain.ports import Clock
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
BEAT_S = 10.0
ALIVE_S = 30
"""Whoever has said nothing for so long is gone."""


class Alone:
    """One projector's word that it writes."""

    def __init__(self, host: str, clock: Clock) -> None:
        self._me = Writer(life=new_incarnation(), host=host, process=os.getpid(), began=0)
        self._clock, self._beat, self._said_us = clock, 0, 0
        self._is_said = False

    async def begin(self, store: Store) -> None:
        """Say that this one writes to `store` from now on.

        Raises:
            StoreTakenError: another one does.
        """
        if not store.is_shared:
            return
        await self._make_way(store, await self._others(store))
        self._me = msgspec.structs.replace(self._me, began=await in_thread(writers.now_s, store))
        await self._say(store)
        # one that began in the same moment has said so by now, or finds this one's word
        await self._make_way(store, [each for each in await self._others(store) if each.rank < self._me.rank])

    async def keep(self, store: Store) -> None:
        """Say it again and again, for ever.

        Raises:
            StoreTakenError: another one writes that began earlier, or while nothing was heard of this one.
            StoreError: somebody has dropped the table that holds these words, be it made again by another one.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._look(store)
            except StoreError as error:
                if cause_of(error) in {"taken", "no_table"}:
                    raise
                continue  # where nobody can be asked no rows go in either

    async def leave(self, store: Store) -> None:
        """Say that it writes no more; where that cannot be said, the next one waits a while."""
        if self._is_said:
            self._beat, self._is_said = self._beat + 1, False
            with suppress(StoreError):
                await in_thread(writers.leave, store, self._me, self._beat)

    async def _look(self, store: Store) -> None:
        silent_us = self._clock.monotonic_us() - self._said_us
        if self._is_said and not await in_thread(writers.is_known, store, self._me.life):
            rule = "table writers must hold what this projector has said: somebody has dropped it"
            raise StoreError(f"clickhouse {store.shown}: {rule}", code=NO_TABLE)
        found = await self._others(store)
        # others reckon in whole seconds: none of them takes this one for gone any sooner
        if silent_us < (ALIVE_S - 1) * 1_000_000:
            found = [each for each in found if each.rank < self._me.rank]
        await self._make_way(store, found)
        await self._say(store)

    async def _others(self, store: Store) -> list[Writer]:
        found = await in_thread(writers.others, store, self._me.life, within_s=ALIVE_S)
        return [each for each in found if not self._is_gone(each)]

    def _is_gone(self, writer: Writer) -> bool:
        """Tell whether it was a process of this machine that has ended: one that is started again needs not wait for it.

        Where another machine has this one's name, it goes on saying that it is there after this one has begun.
        """
        me = self._me
        if writer.host != me.host or (me.began and writer.seen > me.began + 1):
            return False
        return writer.process == me.process or not _runs(writer.process)

    async def _make_way(self, store: Store, found: list[Writer]) -> None:
        if found:
            await self.leave(store)
            who = f"process {found[0].process} on {found[0].host}"
            rule = "another projector writes to these tables; this one waits until it has ended"
            raise StoreTakenError(f"clickhouse {store.shown}: {rule}: {who}")

    async def _say(self, store: Store) -> None:
        self._beat += 1
        try:
            await in_thread(writers.say, store, self._me, self._beat)
        except StoreError as error:  # one that takes no writes just now still answers questions
            _LOG.warning("writer_not_said", extra={"why": str(error)})
        else:
            self._said_us, self._is_said = self._clock.monotonic_us(), True


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True

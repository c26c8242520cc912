"""Keeps the counts by minute what the rows say: all days are compared at start, the newest ones again and again."""

import asyncio
import logging
from typing import Final

import msgspec

from adapters.clickhouse.rollups import WrongDay, count_again, wrong_days
from adapters.clickhouse.store import Store
from domain.errors import StoreError
from projections.rollups import ROLLUPS, Rollup
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
_EVERY_S: Final = 600.0
_NEWEST: Final = 2
"""Days that are still written: today's, and yesterday's around midnight."""


class Counted(msgspec.Struct, kw_only=True):
    """What is known of the counts by minute; `leaseway projections status` shows it."""

    looks: int = 0
    """How often all of them were compared since the store was opened."""
    mended: int = 0
    """Days that were counted again since the start of the process."""
    error: str = ""


async def keep_rollups(store: Store, writing: asyncio.Lock, counted: Counted, *, every_s: float = _EVERY_S) -> None:
    """Compare and mend for ever; `writing` is held while a day is counted again, since no row may come in then."""
    counted.looks = 0
    while True:
        try:
            for rollup in ROLLUPS:
                await mend(store, writing, rollup, counted, newest=_NEWEST if counted.looks else 0)
            counted.error = ""
            counted.looks += 1
        except StoreError as error:
            if not counted.error:
                _LOG.warning("rollups_not_compared", extra={"why": str(error)})
            counted.error = str(error)
        await asyncio.sleep(every_s if not counted.error else min(every_s, 10))


async def mend(store: Store, writing: asyncio.Lock, rollup: Rollup, counted: Counted, *, newest: int) -> None:
    """Count those days again of which `rollup` says something else than its source."""
    wrong = await in_thread(wrong_days, store, rollup, newest=newest)
    if not wrong:
        return
    # rows came in between the two counts of a comparison, or the view has missed some: only a quiet look tells
    async with writing:
        wrong = await in_thread(wrong_days, store, rollup, newest=newest)
        for day in wrong:
            _say(day)
            await in_thread(count_again, store, rollup, day.day)
            counted.mended += 1


def _say(day: WrongDay) -> None:
    _LOG.warning(
        "rollup_counted_again",
        extra={"table": day.table, "day": day.day, "stored": day.stored, "counted": day.counted},
    )

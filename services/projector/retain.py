"""Keeps the tables' retention what the operators set it to, and drops what ClickHouse may not drop by itself."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from adapters.clickhouse.retention import days_of, drop_days, set_retention
from adapters.clickhouse.store import Store
from domain.control.view import ControlView
from domain.errors import BusError, StoreError
from domain.events.codec import decode_control, decode_envelope
from domain.ports import StoredMessage, Stream
from projections.rollups import ROLLUPS
from projections.tables import CHECKPOINTS, EXPIRING
from services.projector.backoff import Backoff
from services.projector.batches import BatchLimits, batches
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
RETENTION: Final = "offload_decisions_retention"
ROLLUP_DAYS: Final = 400
"""How long counts by minute are kept at least."""
DROP_EVERY_S: Final = 3600.0
NEWEST: Final = "(generation, version, tail_hi)"
"""What makes a checkpoint the newest."""


async def keep_retention(store: Store, control: Stream) -> None:
    """Follow `control`, which has no age limit, from its beginning, and keep `store` at the retention that holds."""
    backoff, kept = Backoff(), _Kept(store)
    async with asyncio.TaskGroup() as group:
        group.create_task(kept.drop())
        while True:
            try:
                await _follow(kept, control)
            except (BusError, StoreError) as error:
                _LOG.warning("retention_not_kept", extra={"why": str(error)})
            await backoff.wait()


async def _follow(kept: "_Kept", control: Stream) -> None:
    view = ControlView()
    at_start = (await control.bounds()).last
    if at_start == 0:
        await kept.set(view.setting(RETENTION))
    async with aclosing(batches(control.read(after=0), BatchLimits())) as pieces:
        async for batch in pieces:
            fold(view, batch)
            if batch[-1].seq >= at_start:
                await kept.set(view.setting(RETENTION))


def fold(view: ControlView, batch: Sequence[StoredMessage]) -> None:
    """Apply the control events of `batch`; what is none is left out."""
    for message in batch:
        with contextlib.suppress(msgspec.DecodeError):
            view.apply(decode_control(decode_envelope(message.body).data))


class _Kept:
    """The retention that holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._days = 0
        """0 until it is known."""
        self._known = asyncio.Event()

    async def set(self, retention_us: int) -> None:
        """Let every table have it."""
        days = days_of(retention_us)
        changed = await in_thread(set_retention, self._store, EXPIRING, days)
        rollups = [rollup.table for rollup in ROLLUPS]
        changed += await in_thread(set_retention, self._store, rollups, max(days, ROLLUP_DAYS))
        if changed:
            _LOG.info("retention_set", extra={"days": days, "tables": ",".join(changed)})
        if days != self._days:
            self._days = days
            self._known.set()

    async def drop(self) -> None:
        """Drop checkpoints as old as that, but the newest: whenever it changes, and each hour; for ever."""
        await self._known.wait()
        while True:
            self._known.clear()
            try:
                dropped = await in_thread(drop_days, self._store, CHECKPOINTS, self._days, newest=NEWEST)
            except StoreError as error:
                _LOG.warning("checkpoints_not_dropped", extra={"why": str(error)})
            else:
                if dropped:
                    _LOG.info("checkpoints_dropped", extra={"days": ",".join(dropped)})
            # not wait_for: on Python 3.11 it can lose a cancellation
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DROP_EVERY_S):
                    await self._known.wait()

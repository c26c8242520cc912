"""Keeps the tables' retention what the operators set it to."""

import contextlib
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from adapters.clickhouse.retention import days_of, set_retention
from adapters.clickhouse.store import Store
from domain.control.view import ControlView
from domain.errors import BusError, StoreError
from domain.events.codec import decode_control, decode_envelope
from domain.ports import StoredMessage, Stream
from projections.rollups import ROLLUPS
from projections.tables import RETAINED
from services.projector.backoff import Backoff
from services.projector.batches import BatchLimits, batches
from services.projector.threads import in_thread

_LOG: Final = logging.getLogger("leaseway.projector")
RETENTION: Final = "offload_decisions_retention"
ROLLUP_DAYS: Final = 400
"""How long counts by minute are kept at least."""


async def keep_retention(store: Store, control: Stream) -> None:
    """Follow `control`, which has no age limit, from its beginning, and keep `store` at the retention that holds."""
    backoff = Backoff()
    while True:
        try:
            await _follow(store, control)
        except (BusError, StoreError) as error:
            _LOG.warning("retention_not_kept", extra={"why": str(error)})
        await backoff.wait()


async def _follow(store: Store, control: Stream) -> None:
    view = ControlView()
    at_start = (await control.bounds()).last
    if at_start == 0:
        await _set(store, view.setting(RETENTION))
    async with aclosing(batches(control.read(after=0), BatchLimits())) as pieces:
        async for batch in pieces:
            fold(view, batch)
            if batch[-1].seq >= at_start:
                await _set(store, view.setting(RETENTION))


def fold(view: ControlView, batch: Sequence[StoredMessage]) -> None:
    """Apply the control events of `batch`; what is none is left out."""
    for message in batch:
        with contextlib.suppress(msgspec.DecodeError):
            view.apply(decode_control(decode_envelope(message.body).data))


async def _set(store: Store, retention_us: int) -> None:
    days = days_of(retention_us)
    changed = await in_thread(set_retention, store, RETAINED, days)
    changed += await in_thread(set_retention, store, [rollup.table for rollup in ROLLUPS], max(days, ROLLUP_DAYS))
    if changed:
        _LOG.info("retention_set", extra={"days": days, "tables": ",".join(changed)})

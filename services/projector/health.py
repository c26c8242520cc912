"""What /health says: how far every stream is, what was lost or unreadable, and what runs here."""

import asyncio
from typing import Any, Final

from adapters.clickhouse.causes import cause_of
from adapters.clickhouse.notes import Notes
from adapters.clickhouse.queries import row_counts
from adapters.clickhouse.store import Store
from domain.errors import BusError, StoreError
from domain.subjects import LEDGER
from projections.tables import RETAINED
from services.projector.follow import Progress
from services.projector.projector import Projector
from services.projector.threads import asking
from services.projector.webhooks import Webhooks

_BUS_S: Final = 1.0
_TABLES_S: Final = 2.0
"""Whoever asks how things are asks again soon, and takes a long silence for an answer."""


class Health:
    """Asks the parts of a projector how they are."""

    def __init__(self, projector: Projector, router: str, webhooks: Webhooks | None = None) -> None:
        self._projector, self._router, self._webhooks = projector, router, webhooks
        self._look: tuple[Store, asyncio.Task[dict[str, Any]]] | None = None

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Return (status, body): 200 while rows can be read, 503 before that and while ClickHouse is away or slow."""
        projector = self._projector
        streams = await asyncio.gather(*(stream_state(projector, progress) for progress in projector.progress.values()))
        body: dict[str, Any] = {
            "status": "starting",
            "streams": streams,
            "rows": {},
            "gaps": [],
            "witness": None,
            "versions": {"router": self._router, "schema": projector.schema, "clickhouse": ""},
            "error": projector.away,
            "causes": sorted(projector.causes),
            "webhooks": self._webhooks.shown() if self._webhooks is not None else [],
        }
        store, notes = projector.store, projector.notes
        if store is None or notes is None:
            body["status"] = "clickhouse_away" if projector.away else "starting"
            return 503, body
        body["versions"]["clickhouse"] = store.server_version
        look = self._looking(store, notes)
        await asyncio.wait({look}, timeout=_TABLES_S)
        if not look.done():
            error = f"clickhouse {store.shown}: has not answered within {_TABLES_S:g} s"
            return 503, body | {
                "status": "clickhouse_slow",
                "error": error,
                "causes": sorted({"slow", *body["causes"]}),
            }
        try:
            body |= look.result()
        except StoreError as error:
            causes = sorted({cause_of(error), *body["causes"]})
            return 503, body | {"status": "clickhouse_away", "error": str(error), "causes": causes}
        body["status"] = "waiting" if any(stream["error"] for stream in streams) else "ok"
        return 200, body

    def _looking(self, store: Store, notes: Notes) -> "asyncio.Task[dict[str, Any]]":
        """Return the look at the tables that goes on, or a new one: one at a time, since it has one client of ClickHouse."""
        if self._look is None or self._look[0] is not store or self._look[1].done():
            self._look = store, asyncio.create_task(self._look_at(store, notes), name="look at the tables")
        return self._look[1]

    async def _look_at(self, store: Store, notes: Notes) -> dict[str, Any]:
        return {
            "rows": await asking(row_counts, store, RETAINED),
            "gaps": await asking(notes.gaps),
            "witness": await asking(notes.head, LEDGER, self._projector.progress[LEDGER].epoch),
        }


async def stream_state(projector: Projector, progress: Progress) -> dict[str, Any]:
    """Return how far one stream is; `last` and `lag` are null if the bus does not answer."""
    last: int | None = None
    try:
        async with asyncio.timeout(_BUS_S):
            last = (await projector.streams[progress.stream].bounds()).last
    except (BusError, TimeoutError):
        pass
    return {
        "stream": progress.stream,
        "epoch": progress.epoch,
        "position": progress.position,
        "last": last,
        "lag": None if last is None else max(0, last - progress.position),
        "unreadable": progress.unreadable,
        "void": progress.void,
        "rows_written": progress.rows,
        "gone": progress.gone,
        "error": progress.error,
        "cause": progress.cause,
    }

"""What /health says: how far every stream is, what was lost or unreadable, and what runs here."""

import asyncio
from typing import Any, Final

from adapters.clickhouse.queries import row_counts
from domain.errors import BusError, StoreError
from domain.subjects import LEDGER
from projections.tables import RETAINED
from services.projector.follow import Progress
from services.projector.projector import Projector
from services.projector.threads import asking
from services.projector.webhooks import Webhooks

_BUS_S: Final = 1.0


class Health:
    """Asks the parts of a projector how they are."""

    def __init__(self, projector: Projector, router: str, webhooks: Webhooks | None = None) -> None:
        self._projector, self._router, self._webhooks = projector, router, webhooks
        self._reading = asyncio.Semaphore(1)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Return (status, body): 200 while rows can be read, 503 before that and while ClickHouse is away."""
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
            "webhooks": self._webhooks.shown() if self._webhooks is not None else [],
        }
        store, notes = projector.store, projector.notes
        if store is None or notes is None:
            body["status"] = "clickhouse_away" if projector.away else "starting"
            return 503, body
        body["versions"]["clickhouse"] = store.server_version
        try:
            async with self._reading:  # one at a time, however many ask: it has one client of ClickHouse
                body["rows"] = await asking(row_counts, store, RETAINED)
                body["gaps"] = await asking(notes.gaps)
                body["witness"] = await asking(notes.head, LEDGER, projector.progress[LEDGER].epoch)
        except StoreError as error:
            return 503, body | {"status": "clickhouse_away", "error": str(error)}
        body["status"] = "waiting" if any(stream["error"] for stream in streams) else "ok"
        return 200, body


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
        "error": progress.error,
    }

"""The master's signed checkpoints out of ClickHouse. They are as they were stored: who asks checks the signatures."""

from typing import Final

from adapters.clickhouse.store import Store
from domain.events import Checkpoint

_FIELDS: Final = ", ".join(Checkpoint.__struct_fields__)


def newest(store: Store, limit: int) -> list[Checkpoint]:
    """Return the newest rows of `checkpoints`, of all lives of the streams, newest first."""
    rows = store.query(
        f"SELECT {_FIELDS} FROM checkpoints ORDER BY generation DESC, version DESC, tail_hi DESC, epoch DESC, seq DESC "  # noqa: S608  # ours
        "LIMIT 1 BY stream, epoch, seq LIMIT {limit:UInt32}",
        {"limit": limit},
    )
    return [Checkpoint(**row) for row in rows]


def unlisted(store: Store, event: str, limit: int) -> list[bytes]:
    """Return the bodies of messages of `events` with that tag that are no rows yet, newest first.

    They were projected by a release before the table; `leaseway projections rebuild` makes rows of them.
    """
    rows = store.query(
        "SELECT body FROM events WHERE stream = 'LW_EVENTS' AND event = {event:String} "
        "AND (epoch, seq) NOT IN (SELECT epoch, seq FROM checkpoints) "
        "ORDER BY epoch DESC, seq DESC LIMIT 1 BY epoch, seq LIMIT {limit:UInt32}",
        {"event": event, "limit": limit},
        raw=("body",),
    )
    return [row["body"] for row in rows]

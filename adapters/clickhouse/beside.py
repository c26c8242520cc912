"""Tables that are built beside the live ones and then take their places.

Each table changes places with the new one in one step, so that a query always finds a whole one. What a kill leaves behind is
recognised by its name and dropped at the next start.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.rollups import Rollup, ensure_views, retention_days, view_of
from adapters.clickhouse.store import Store
from domain.ports import StoredMessage

SUFFIX: Final = "_new"
_LEFT_BEHIND: Final = (SUFFIX, "_again")


def drop_left_behind(store: Store, tables: Sequence[str], rollups: Sequence[Rollup]) -> None:
    """Drop what an earlier life was building of these when it was killed."""
    ours = (*(rollup.view for rollup in rollups), *tables, *(rollup.table for rollup in rollups))
    names = [name + ending for name in ours for ending in _LEFT_BEHIND]
    found = store.query(
        "SELECT name, engine = 'MaterializedView' AS view FROM system.tables WHERE database = currentDatabase() "
        "AND name IN {names:Array(String)} ORDER BY view DESC, name",
        {"names": names},
    )
    for row in found:
        store.command(on_cluster(f"DROP {'VIEW' if row['view'] else 'TABLE'} IF EXISTS {row['name']}", store.cluster))


def make_beside(store: Store, tables: Sequence[str], rollups: Sequence[Rollup]) -> None:
    """Make an empty twin of each table, those of `rollups` included, and the views between them."""
    drop_left_behind(store, tables, rollups)
    for table in (*tables, *(rollup.table for rollup in rollups)):
        store.command(on_cluster(f"CREATE TABLE {table}{SUFFIX} AS {table}", store.cluster))
    for rollup in rollups:
        store.command(on_cluster(view_of(rollup, SUFFIX), store.cluster))


def keep_older_counts(store: Store, rollups: Sequence[Rollup]) -> None:
    """Take over the days of each rollup of which its source has no rows any more, or may have lost some already."""
    for rollup in rollups:
        days = {"days": retention_days(store, rollup.source)}
        _take_over(store, rollup.table, rollup.source + SUFFIX, "day + {days:UInt32} <= toDate(now('UTC')) + 1", days)


def keep_older_rows(store: Store, table: str, messages: str) -> None:
    """Take over the days of `table` of which the table `messages`, whose rows it is made from, has none any more."""
    _take_over(store, table, messages)


def _take_over(
    store: Store, table: str, source: str, or_where: str = "0", parameters: Mapping[str, object] | None = None
) -> None:
    """Put the days of `table` of which `source` has no rows into its twin, whole, in place of what that has of them.

    Day by day: one INSERT takes no more than a hundred partitions, and counts are kept for 400 days.
    """
    days = store.query(
        f"SELECT DISTINCT toString(day) AS past FROM {table} "  # noqa: S608  # names of ours
        f"WHERE {or_where} OR day NOT IN (SELECT day FROM {source} GROUP BY day) ORDER BY past",
        parameters,
    )
    for row in days:
        store.command(f"ALTER TABLE {table}{SUFFIX} REPLACE PARTITION '{row['past']}' FROM {table}")


def take_places(store: Store, tables: Sequence[str], rollups: Sequence[Rollup]) -> None:
    """Let every twin take its table's place, and drop what was there. Nothing may be inserted meanwhile."""
    for rollup in rollups:  # made anew afterwards: what a view follows when tables change places is the server's affair
        for suffix in (SUFFIX, ""):
            store.command(on_cluster(f"DROP VIEW IF EXISTS {rollup.view}{suffix}", store.cluster))
    for table in (*(rollup.table for rollup in rollups), *tables):
        store.command(on_cluster(f"EXCHANGE TABLES {table} AND {table}{SUFFIX}", store.cluster))
    ensure_views(store, rollups)
    drop_left_behind(store, tables, rollups)


def epochs(store: Store, stream: str) -> list[int]:
    """Return the lives of `stream` of which messages are kept, in order."""
    found = store.query(
        "SELECT DISTINCT epoch FROM events WHERE stream = {stream:String} ORDER BY epoch", {"stream": stream}
    )
    return [int(row["epoch"]) for row in found]


def kept(store: Store, stream: str, epoch: int, after: int, limit: int) -> list[StoredMessage]:
    """Return the next `limit` kept messages of one life of `stream` after sequence `after`."""
    rows = store.query(
        "SELECT seq, at_ns, subject, headers, body FROM events WHERE stream = {stream:String} AND epoch = {epoch:UInt32} "
        "AND seq > {after:UInt64} ORDER BY seq LIMIT 1 BY seq LIMIT {limit:UInt32}",
        {"stream": stream, "epoch": epoch, "after": after, "limit": limit},
        raw=("subject", "headers", "body"),
    )
    return [
        StoredMessage(row["seq"], row["at_ns"], row["subject"].decode("utf-8", "replace"), row["headers"], row["body"])
        for row in rows
    ]


def kept_count(store: Store) -> int:
    """Return how many messages are kept."""
    return int(store.query("SELECT count() AS n FROM events")[0]["n"])


def refused_in(store: Store, epoch: int, seq: int) -> int:
    """Return the life of LW_EVENTS that commits of the ledger's life `epoch` up to `seq` spoke of; 0 if none says."""
    found = store.query(
        "SELECT argMax(event_epoch, seq) AS life FROM rejected WHERE epoch = {epoch:UInt32} AND seq <= {seq:UInt64}",
        {"epoch": epoch, "seq": seq},
    )
    return int(found[0]["life"]) if found else 0

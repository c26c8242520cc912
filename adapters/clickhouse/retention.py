"""How long rows are kept: whole days, dropped as whole partitions."""

from collections.abc import Sequence
from typing import Final

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.store import Store

DAY_US: Final = 86_400_000_000


def days_of(retention_us: int) -> int:
    """Return a retention in whole days, rounded up."""
    return max(1, -(-retention_us // DAY_US))


def set_retention(store: Store, tables: Sequence[str], days: int) -> list[str]:
    """Let rows of `tables` be dropped `days` days after their stamp; return the tables for which that is new.

    It holds for rows that are there already as well: ClickHouse notes with each part when it may go, and notes it again.

    Raises:
        StoreError: ClickHouse refused it, or is not there.
    """
    engines = store.query(
        "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}",
        {"names": list(tables)},
    )
    changed = sorted(row["name"] for row in engines if f"toIntervalDay({days})" not in row["engine_full"])
    for table in changed:
        altered = on_cluster(f"ALTER TABLE {table} MODIFY TTL day + INTERVAL {days:d} DAY DELETE", store.cluster)
        store.command(f"{altered} SETTINGS materialize_ttl_after_modify = 0")
    for table in _otherwise_noted(store, tables, days):
        # what is noted is made anew and nothing else: without this every row would be written again
        store.command(on_cluster(f"ALTER TABLE {table} MODIFY SETTING {_NOTES_ONLY}", store.cluster))
        store.command(on_cluster(f"ALTER TABLE {table} MATERIALIZE TTL", store.cluster))
    return changed


_NOTES_ONLY: Final = "materialize_ttl_recalculate_only = 1"


def _otherwise_noted(store: Store, tables: Sequence[str], days: int) -> list[str]:
    """Return which of `tables` have parts that are to go at another time."""
    found = store.query(
        "SELECT DISTINCT table FROM system.parts WHERE active AND database = currentDatabase() "
        "AND table IN {names:Array(String)} AND toDate(delete_ttl_info_max) != toDate(partition) + {days:UInt32} ORDER BY table",
        {"names": list(tables), "days": days},
    )
    return [row["table"] for row in found]


def drop_days(store: Store, table: str, days: int, *, newest: str) -> list[str]:
    """Drop the days of `table` that are over for `days` days, but not the one with the row whose `newest` is greatest.

    For a table that ClickHouse may not empty by itself. Returns the days dropped, as 2026-11-30.

    Raises:
        StoreError: ClickHouse refused it, or is not there.
    """
    found = store.query(
        f"SELECT DISTINCT toString(day) AS past FROM {table} "  # noqa: S608  # names of ours
        "WHERE toUInt32(day) + {days:UInt32} <= toUInt32(toDate(now(), 'UTC')) "
        f"AND day != (SELECT argMax(day, {newest}) FROM {table}) ORDER BY past",
        {"days": days},
    )
    for row in found:
        store.command(
            f"ALTER TABLE {table} DROP PARTITION '{row['past']}'"
        )  # a replicated table tells its other servers
    return [row["past"] for row in found]

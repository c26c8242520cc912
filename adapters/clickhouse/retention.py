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
    return changed


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

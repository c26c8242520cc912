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

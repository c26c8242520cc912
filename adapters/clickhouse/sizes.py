"""What the tables take, and the steps that were taken to their schema."""

from collections.abc import Sequence

from adapters.clickhouse.pages import Row
from adapters.clickhouse.store import Store


def sizes(store: Store, tables: Sequence[str]) -> list[Row]:
    """Return rows, bytes on disk, parts, and first and last day of each table, in the given order."""
    found = store.query(
        "SELECT table AS name, toUInt64(sum(rows)) AS rows, toUInt64(sum(bytes_on_disk)) AS bytes, count() AS parts, "
        "if(min(partition) = 'tuple()', '', min(partition)) AS first_day, "
        "if(max(partition) = 'tuple()', '', max(partition)) AS last_day FROM system.parts "
        "WHERE active AND database = currentDatabase() AND table IN {tables:Array(String)} GROUP BY table",
        {"tables": list(tables)},
    )
    nothing = {"rows": 0, "bytes": 0, "parts": 0, "first_day": "", "last_day": ""}
    known = {row["name"]: row for row in found}
    return [known.get(name, {"name": name, **nothing}) for name in tables]


def migrations(store: Store) -> list[Row]:
    """Return the steps that were taken, in order."""
    return store.query(
        "SELECT number, name, digest, formatDateTime(applied, '%Y-%m-%dT%H:%i:%SZ', 'UTC') AS applied "
        "FROM schema_migrations FINAL ORDER BY number"
    )

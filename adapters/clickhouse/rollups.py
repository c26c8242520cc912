"""Tables that count others by minute: their views, and days that are compared and counted again.

An insert reaches a table and then its views; a kill in between leaves a view's table behind, and nothing sends the insert again.
So the rows of each day are compared with what was counted of them. A day is counted again beside the table and takes its place
in one step, so that readers see the old count or the new one.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.store import Store

_BESIDE: Final = "_again"
_EVER_DAYS: Final = 36_500


class Rollup(Protocol):
    """A table that counts another by minute; its column `rows` says how many rows it has counted."""

    @property
    def table(self) -> str:
        """Its name."""
        ...

    @property
    def source(self) -> str:
        """The table that it counts."""
        ...

    @property
    def view(self) -> str:
        """The view that fills it."""
        ...

    def counted(self, source: str) -> str:
        """Return the statement that counts the rows of `source`, a FROM clause whose rows are named `d`."""
        ...


class WrongDay(msgspec.Struct, frozen=True):
    """A day of which a rollup has not counted what its source holds."""

    table: str
    day: str
    """As in 2026-11-30."""
    stored: int
    counted: int


def view_of(rollup: Rollup, suffix: str = "") -> str:
    """Return the statement that makes a rollup's view."""
    select = rollup.counted(f"{rollup.source}{suffix} AS d")
    return f"CREATE MATERIALIZED VIEW IF NOT EXISTS {rollup.view}{suffix} TO {rollup.table}{suffix} AS\n{select}"


def ensure_views(store: Store, rollups: Sequence[Rollup]) -> None:
    """Make the views that are not there."""
    found = store.query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}",
        {"names": [rollup.view for rollup in rollups]},
    )
    there = set() if store.cluster else {row["name"] for row in found}  # another of its servers may lack one
    for rollup in rollups:
        if rollup.view not in there:
            store.command(on_cluster(view_of(rollup), store.cluster))


def wrong_days(store: Store, rollup: Rollup, *, newest: int = 0) -> list[WrongDay]:
    """Return the days of which `rollup` has not counted what is stored, the oldest first; `newest`: look at so many days only.

    Days that are about to be dropped are left alone: a rollup outlives the rows it was counted from.
    """
    # a clock of the bus that was ahead for once leaves days behind that are to come: they are looked at last
    order = "ORDER BY day > toDate(now('UTC')) + 1, day DESC"
    limit = f"{order} LIMIT {newest:d}" if newest else order
    found = store.query(
        f"SELECT toString(s.day) AS day, s.n AS stored, toUInt64(c.n) AS counted FROM ("  # noqa: S608  # names of ours
        f"SELECT day, count() AS n FROM {rollup.source} FINAL WHERE day + {{days:UInt32}} > toDate(now('UTC')) + 1 "
        f"GROUP BY day {limit}) AS s LEFT JOIN ("
        f"SELECT day, sum(rows) AS n FROM {rollup.table} GROUP BY day) AS c ON s.day = c.day WHERE s.n != c.n "
        "ORDER BY day SETTINGS do_not_merge_across_partitions_select_final = 1",
        {"days": retention_days(store, rollup.source)},
    )
    return [WrongDay(table=rollup.table, **row) for row in found]


def count_again(store: Store, rollup: Rollup, day: str) -> None:
    """Count one day again, in one step for readers. Nothing may be inserted meanwhile.

    Raises:
        StoreError: the old count is still there.
    """
    beside = rollup.table + _BESIDE
    store.command(on_cluster(f"DROP TABLE IF EXISTS {beside}", store.cluster))
    store.command(on_cluster(f"CREATE TABLE {beside} AS {rollup.table}", store.cluster))
    try:
        where = f"SELECT * FROM {rollup.source} FINAL WHERE day = '{_checked(day)}'"  # noqa: S608  # a day of ours
        store.command(f"INSERT INTO {beside} {rollup.counted(f'({where}) AS d')}")
        store.command(f"ALTER TABLE {rollup.table} REPLACE PARTITION '{day}' FROM {beside}")
    finally:
        store.command(on_cluster(f"DROP TABLE IF EXISTS {beside}", store.cluster))


def _checked(day: str) -> str:
    if not all(part.isdigit() for part in day.split("-")):
        raise ValueError(f"day {day!r}: must be a date")
    return day


def retention_days(store: Store, table: str) -> int:
    """Return for how many days `table` keeps its rows; a hundred years' where somebody has taken its TTL away."""
    found = store.query(
        "SELECT toUInt32OrZero(extract(engine_full, 'toIntervalDay\\\\((\\\\d+)\\\\)')) AS days FROM system.tables "
        "WHERE database = currentDatabase() AND name = {table:String}",
        {"table": table},
    )
    return (int(found[0]["days"]) if found else 0) or _EVER_DAYS

"""Writes rows so that every message's rows are there once, whatever is killed and when.

The rules (each has a test):
- A table's rows go in by sequence, and each insert is one part of one partition: atomic, and the table's highest sequence tells
  exactly what it holds.
- Each insert has a token made of its place, so that repeating one whose answer was lost changes nothing.
- Tables are written in the order given, `last_table` at the end; its highest sequence is the checkpoint. After a crash in
  between, the other tables are ahead of it: rows they already hold are not sent again.
- Rows are keyed by place in ReplacingMergeTree tables, so that even a repetition that slips through collapses.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from adapters.clickhouse.store import Store

DAY_NS: Final = 86_400_000_000_000
PART_ROWS_MAX: Final = 1_000_000
"""More rows would be split by ClickHouse into parts that are not atomic together (from 1,048,449 on)."""

Row = Sequence[object]
_SEQ, _AT_NS = 2, 3
"""Every table begins with stream, epoch, seq, at_ns."""


class _Place(NamedTuple):
    table: str
    stream: str
    epoch: int


class Sink:
    """The one writer of the tables of messages."""

    def __init__(self, store: Store, columns: Mapping[str, Sequence[str]], *, last_table: str) -> None:
        """`columns`: names of each table's columns, as its rows have them."""
        self._store, self._columns, self._last_table = store, columns, last_table
        self._reached: dict[_Place, int] = {}

    def reached(self, stream: str, epoch: int) -> int:
        """Return the sequence up to which every table holds `stream`, read from the tables; 0 at the beginning.

        To be asked before the first `write` of a stream's epoch, since it tells what the tables hold beyond it.
        """
        for table in self._columns:
            self._reached[_Place(table, stream, epoch)] = self._highest(table, stream, epoch)
        return self._reached[_Place(self._last_table, stream, epoch)]

    def write(self, stream: str, epoch: int, rows: Mapping[str, Sequence[Row]]) -> int:
        """Insert `rows` (by table, each in order of sequence) and return how many were new.

        Raises:
            StoreError: not all of it is stored. Writing the very same rows again stores the rest.
        """
        order = sorted(rows, key=lambda table: table == self._last_table)  # stable: the last table last
        return sum(self._write(_Place(table, stream, epoch), rows[table]) for table in order)

    def _write(self, place: _Place, rows: Sequence[Row]) -> int:
        reached = self._reached[place]
        fresh = [row for row in rows if _seq(row) > reached]
        for part in parts(fresh):
            first, last = _seq(part[0]), _seq(part[-1])
            token = f"{place.table}:{place.stream}:{place.epoch}:{first}-{last}"
            self._store.insert(place.table, self._columns[place.table], part, token=token)
            self._reached[place] = last
        return len(fresh)

    def _highest(self, table: str, stream: str, epoch: int) -> int:
        found = self._store.query(
            f"SELECT max(seq) AS seq FROM {table} WHERE stream = {{stream:String}} AND epoch = {{epoch:UInt32}}",  # noqa: S608  # a table of ours
            {"stream": stream, "epoch": epoch},
        )
        return int(found[0]["seq"])


def parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield `rows` cut where the day of the stamp changes: each part is in one partition and a range of sequences.

    A stepped clock may lead back into an earlier day: then that day gets another part, and ranges still do not overlap.
    """
    for _, group in groupby(rows, key=_day):
        part = list(group)
        if len(part) > PART_ROWS_MAX:
            raise ValueError(f"rows of one insert: must be at most {PART_ROWS_MAX}, got {len(part)}")
        yield part


def _seq(row: Row) -> int:
    seq = row[_SEQ]
    assert isinstance(seq, int)
    return seq


def _day(row: Row) -> int:
    at_ns = row[_AT_NS]
    assert isinstance(at_ns, int)
    return at_ns // DAY_NS

"""Writes rows so that every message's rows are there once, whatever is killed and when.

The rules (each has a test):
- A table's rows go in by sequence, and each insert is one part of one partition: atomic, and the table's highest sequence tells
  exactly what it holds.
- Each insert has a token made of its place, so that repeating one whose answer was lost changes nothing.
- Tables are written in the order given, `last_table` at the end; its highest sequence is the checkpoint. After a crash in
  between, the other tables are ahead of it: rows they already hold are not sent again.
- Rows are keyed by place in ReplacingMergeTree tables, so that even a repetition that slips through collapses.
- What is too much for ClickHouse's memory goes in as halves, down to the rows of one message.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from adapters.clickhouse.causes import cause_of
from adapters.clickhouse.store import Store
from domain.errors import StoreError

DAY_NS: Final = 86_400_000_000_000
PART_ROWS_MAX: Final = 1_000_000
"""More rows would be split by ClickHouse into parts that are not atomic together (from 1,048,449 on)."""


class Block(Protocol):
    """Rows of one table in order of sequence, column by column."""

    @property
    def columns(self) -> Mapping[str, Sequence[Any]]:
        """Columns by name, all of one length; seq and at_ns are among them, what is left out is the table's default."""
        ...

    def cut(self, first: int, end: int) -> Self:
        """Return the rows from number `first` to before `end`."""
        ...


class _Place(NamedTuple):
    table: str
    stream: str
    epoch: int


class Sink:
    """The one writer of the tables of messages."""

    def __init__(self, store: Store, tables: Sequence[str], *, last_table: str, suffix: str = "") -> None:
        """`tables` are all that are ever written; `suffix` follows their names in the database."""
        self._store, self._tables, self._last_table, self._suffix = store, tables, last_table, suffix
        self._reached: dict[_Place, int] = {}
        self.halved: Counter[str] = Counter()
        """By stream: inserts that were too much for ClickHouse's memory and went in as halves."""

    def reached(self, stream: str, epoch: int, *, noted: int = 0) -> int:
        """Return the sequence up to which every table holds `stream`, read from the tables; 0 at the beginning.

        To be asked before the first `write` of a stream's epoch, since it tells what the tables hold beyond it. `noted`: one
        that was reached before; it only tells where to look first.
        """
        for table in self._tables:
            place = _Place(table, stream, epoch)
            self._reached[place] = highest(self._store, table + self._suffix, stream, epoch, noted=noted)
        return self._reached[_Place(self._last_table, stream, epoch)]

    def write(self, stream: str, epoch: int, rows: Mapping[str, Block]) -> int:
        """Insert `rows`, by table, and return how many were new.

        Raises:
            StoreError: not all of it is stored. Writing the very same rows again stores the rest.
        """
        order = sorted(rows, key=lambda table: table == self._last_table)  # stable: the last table last
        return sum(self._write(_Place(table, stream, epoch), rows[table]) for table in order)

    def _write(self, place: _Place, rows: Block) -> int:
        seqs = rows.columns["seq"]
        held = bisect_right(seqs, self._reached[place])
        for part in parts(rows.cut(held, len(seqs)) if held else rows):
            self._insert(place, part)
        return len(seqs) - held

    def _insert(self, place: _Place, part: Block) -> None:
        """Insert what is one part; halves of it where it is too much for ClickHouse's memory."""
        seqs = part.columns["seq"]
        first, last = seqs[0], seqs[-1]
        token = f"{place.table}:{place.stream}:{place.epoch}:{first}-{last}"
        try:
            self._store.insert_columns(place.table + self._suffix, part.columns, token=token)
        except StoreError as error:
            if cause_of(error) != "memory":
                raise
            self._insert_less(place, part, error)
        self._reached[place] = last

    def _insert_less(self, place: _Place, part: Block, error: StoreError) -> None:
        """Insert what was too much for ClickHouse's memory as halves.

        Raises:
            StoreError: the rows of one message alone are too much; it names the message.
        """
        seqs = part.columns["seq"]
        first, last = seqs[0], seqs[-1]
        if highest(self._store, place.table + self._suffix, place.stream, place.epoch, noted=last) >= last:
            return  # the view that counts them was too much: they are not to come twice, and the day is counted again
        if first == last:
            message = f"table {place.table}: message {last} of {place.stream} alone is too much, {len(seqs)} rows"
            raise StoreError(f"{message}: {error}", code=error.code) from error
        self.halved[place.stream] += 1
        for half in _halves(part):
            self._insert(place, half)


def highest(store: Store, table: str, stream: str, epoch: int, *, noted: int = 0) -> int:
    """Return the highest sequence of a stream's epoch in `table`, 0 if there is none; it is looked for from `noted` on first.

    With a bound in the primary index one day's part is read, without one the end of every day's.
    """
    for from_seq in (noted, 0) if noted else (0,):
        found = store.query(
            f"SELECT seq FROM {table} PREWHERE stream = {{stream:String}} AND epoch = {{epoch:UInt32}} "  # noqa: S608  # a table of ours
            "AND seq >= {from:UInt64} ORDER BY stream DESC, epoch DESC, seq DESC LIMIT 1",
            {"stream": stream, "epoch": epoch, "from": from_seq},
        )
        if found:
            return int(found[0]["seq"])
    return 0


_B = TypeVar("_B", bound=Block)


def _halves(rows: _B) -> tuple[_B, _B]:
    """Return `rows` of at least two messages cut between two of them: an insert holds all rows of a message or none."""
    seqs = rows.columns["seq"]
    middle = seqs[len(seqs) // 2]
    cut = bisect_left(seqs, middle) or bisect_right(seqs, middle)
    return rows.cut(0, cut), rows.cut(cut, len(seqs))


def parts(rows: _B) -> Iterator[_B]:
    """Yield `rows` cut where the day of the stamp changes: each part is in one partition and a range of sequences.

    A stepped clock may lead back into an earlier day: then that day gets another part, and ranges still do not overlap.
    """
    days = [at_ns // DAY_NS for at_ns in rows.columns["at_ns"]]
    if not days:
        return
    edges = [0, *(index for index, (day, following) in enumerate(pairwise(days), 1) if day != following), len(days)]
    for first, end in pairwise(edges):
        if end - first > PART_ROWS_MAX:
            raise ValueError(f"rows of one insert: must be at most {PART_ROWS_MAX}, got {end - first}")
        yield rows.cut(first, end) if end - first < len(days) else rows

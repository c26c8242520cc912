"""What all rows share: their place, what is blank in them, and bounds that no message can break.

Rows are made one by one, each with what it states and no more, and stored column by column: a column that none of them states
is left out, since the table's own default is what is blank. That is most of the columns of most batches.

A message is data from outside. A number or text in it that a column cannot hold would be refused by ClickHouse for ever and stop
the projector at it; so numbers are clamped and texts are clipped here. The raw bytes are kept whole in `events`.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from projections.tables import RETAINED, TABLES, blank

Row = dict[str, Any]
"""One row by column name: its place and what it states."""

TEXT_CHARS_MAX: Final = 512
_NUMBERS: Final = {
    "UInt32": ("I", 0, (1 << 32) - 1),
    "UInt64": ("Q", 0, (1 << 64) - 1),
    "Int64": ("q", -(1 << 63), (1 << 63) - 1),
}
"""Types of whole numbers: code of the array that holds them, least and greatest."""
_WHOLE: Final = frozenset({"subject", "headers", "body"})
"""Columns of `events` that hold the message itself."""


class Place(msgspec.Struct, frozen=True):
    """Where a message stands."""

    stream: str
    epoch: int
    seq: int
    at_ns: int


class Block:
    """Rows of one table in order of sequence, column by column. Iterating gives whole rows, blanks and all."""

    __slots__ = ("columns", "table")

    def __init__(self, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """`columns` are of one length; what is left out is blank."""
        self.table, self.columns = table, columns

    def __len__(self) -> int:
        return len(self.columns["seq"])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        filled = [self.columns.get(name, [value] * len(self)) for name, value in _BLANKS[self.table].items()]
        return zip(*filled, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and (self.table, self.columns) == (other.table, other.columns)

    __hash__ = None  # type: ignore[assignment]  # it holds lists

    def __repr__(self) -> str:
        return f"Block({self.table!r}, {self.columns!r})"

    def cut(self, first: int, end: int) -> "Block":
        """Return the rows from number `first` to before `end`."""
        return Block(self.table, {name: column[first:end] for name, column in self.columns.items()})


Rows = dict[str, Block]
"""Rows by table."""


def row(place: Place, stated: Mapping[str, object]) -> Row:
    """Return the row of the message at `place` that states this."""
    return {"stream": place.stream, "epoch": place.epoch, "seq": place.seq, "at_ns": place.at_ns, **stated}


def block(table: str, rows: Sequence[Row]) -> Block:
    """Return `rows` of `table` as they are stored.

    Raises:
        ValueError: one states a column that the table lacks.
    """
    named = set().union(*rows)
    blanks = _BLANKS[table]
    if unknown := named - blanks.keys():
        raise ValueError(f"table {table}: has no column {', '.join(sorted(unknown))}")
    limits = _LIMITS[table]
    return Block(
        table,
        {
            name: _fitting(_column(rows, name, nothing), limits[name])
            for name, nothing in blanks.items()
            if name in named
        },
    )


def joined(blocks: Sequence[Block]) -> Block:
    """Return the rows of `blocks`, which are of one table, in order."""
    if len(blocks) == 1:
        return blocks[0]
    table = blocks[0].table
    columns: dict[str, Sequence[Any]] = {}
    for name, nothing in _BLANKS[table].items():
        if any(name in each.columns for each in blocks):
            whole: Any = _fitting([], _LIMITS[table][name])
            for each in blocks:
                whole.extend(each.columns[name] if name in each.columns else [nothing] * len(each))
            columns[name] = whole
    return Block(table, columns)


def _column(rows: Sequence[Row], name: str, nothing: object) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:  # not every row states it
        return [row.get(name, nothing) for row in rows]


_Limit = str | int | None
"""The type of a whole number, a greatest length, or no limit."""


def _limits(table: str) -> dict[str, _Limit]:
    return {
        column.name: column.type
        if column.type in _NUMBERS
        else TEXT_CHARS_MAX
        if "String" in column.type and column.name not in _WHOLE
        else None
        for column in TABLES[table].stored()
    }


def _fitting(values: list[Any], limit: _Limit) -> Sequence[Any]:
    if isinstance(limit, str):
        code, low, high = _NUMBERS[limit]
        try:
            return array(code, values)
        except OverflowError:
            return array(code, [min(max(value, low), high) for value in values])
    if isinstance(limit, int):
        return values if max(map(len, values), default=0) <= limit else [value[:limit] for value in values]
    return values


_BLANKS: Final = {name: blank(name) for name in RETAINED}
_LIMITS: Final = {name: _limits(name) for name in RETAINED}

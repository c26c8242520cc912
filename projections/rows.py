"""What all rows share: their place, their blank columns, and bounds that no message can break.

A message is data from outside. A number or text in it that a column cannot hold would be refused by ClickHouse for ever and stop
the projector at it; so numbers are clamped and texts are clipped here. The raw bytes are kept whole in `events`.
"""

from typing import Final

import msgspec

from projections.tables import RETAINED, TABLES, blank

Row = tuple[object, ...]
"""One row, in the order of `projections.tables.column_names`."""
Rows = dict[str, list[Row]]
"""Rows by table."""

TEXT_CHARS_MAX: Final = 512
_RANGES: Final = {
    "UInt32": (0, (1 << 32) - 1),
    "UInt64": (0, (1 << 64) - 1),
    "Int64": (-(1 << 63), (1 << 63) - 1),
}
_WHOLE: Final = frozenset({"subject", "headers", "body"})
"""Columns of `events` that hold the message itself."""


class Place(msgspec.Struct, frozen=True):
    """Where a message stands."""

    stream: str
    epoch: int
    seq: int
    at_ns: int


def row(table: str, place: Place, stated: dict[str, object]) -> Row:
    """Return the row of `table` for the message at `place`; what `stated` leaves out is blank.

    Raises:
        ValueError: `stated` names a column that the table lacks.
    """
    default = _BLANKS[table]
    where: dict[str, object] = {
        "stream": place.stream,
        "epoch": place.epoch,
        "seq": place.seq,
        "at_ns": place.at_ns,
    }
    whole = default | where | stated
    if len(whole) != len(default):
        raise ValueError(f"table {table}: has no column {', '.join(sorted(set(whole) - set(default)))}")
    return tuple([_fitting(value, limit) for value, limit in zip(whole.values(), _LIMITS[table], strict=True)])


_Limit = tuple[int, int] | int | None
"""A range of numbers, a greatest length, or no limit."""


def _limits(table: str) -> tuple[_Limit, ...]:
    return tuple(
        _RANGES.get(column.type, TEXT_CHARS_MAX if "String" in column.type and column.name not in _WHOLE else None)
        for column in TABLES[table].stored()
    )


def _fitting(value: object, limit: _Limit) -> object:
    if isinstance(limit, tuple):
        assert isinstance(value, int)
        low, high = limit
        return value if low <= value <= high else min(max(value, low), high)
    if isinstance(limit, int):
        assert isinstance(value, str)
        return value if len(value) <= limit else value[:limit]
    return value


_BLANKS: Final = {name: blank(name) for name in RETAINED}
_LIMITS: Final = {name: _limits(name) for name in RETAINED}

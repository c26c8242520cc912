"""The tables in ClickHouse: numbered migrations (their text is in a module each), and what can be read from that text.

One column a line, each with a COMMENT: docs/reference/tables.md and the rows' shapes are made from it. A migration that was ever
released is not edited (a test pins its digest): a change is the next number. Every table begins with `stream, epoch, seq, at_ns`,
so that the sink can order and part the rows of any of them.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from projections import migration_1, migration_2, migration_3, migration_4, migration_5

SCHEMA_VERSION: Final = 5
"""The number of the newest migration."""


class Migration(msgspec.Struct, frozen=True):
    """One step from a schema to the next; its statements may run twice."""

    number: int
    name: str
    statements: tuple[str, ...]


MIGRATIONS: Final = (
    Migration(1, "first tables", migration_1.STATEMENTS),
    Migration(2, "lending in full, loads and health", migration_2.STATEMENTS),
    Migration(3, "counts by minute", migration_3.STATEMENTS),
    Migration(4, "signed checkpoints", migration_4.STATEMENTS),
    Migration(5, "one writer at a time", migration_5.STATEMENTS),
)
"""In order, without gaps, from 1."""

OF_WRITERS: Final = tuple(step for step in MIGRATIONS if step.number == 5)
"""What makes the table that says who writes: it must be there before anybody does."""

EXPIRING: Final = ("events", "decisions", "requests", "commits", "rejected", "loads", "health")
"""Tables of messages' rows that ClickHouse drops by itself once `offload_decisions_retention` is over."""

CHECKPOINTS: Final = "checkpoints"
"""Has that retention too, but for its newest row: the projector drops its days."""

RETAINED: Final = (*EXPIRING, CHECKPOINTS)
"""All tables of messages' rows."""


class Column(msgspec.Struct, frozen=True):
    """One column, as its line in a migration says it."""

    name: str
    type: str
    about: str
    default: str = ""
    """An SQL literal, or empty."""
    computed: bool = False
    """ClickHouse makes it; rows do not carry it."""


class Table(msgspec.Struct, frozen=True):
    """One table as all migrations leave it."""

    name: str
    about: str
    order_by: str
    columns: tuple[Column, ...]

    def stored(self) -> tuple[Column, ...]:
        """Return the columns that a row carries, in order."""
        return tuple(column for column in self.columns if not column.computed)


_COLUMN: Final = re.compile(
    r"^  (?:ADD COLUMN IF NOT EXISTS )?(?P<name>[a-z_]+) (?P<type>[A-Z]\w*(?:\([^ ]*\))?)"
    r"(?P<extra> (?:DEFAULT|MATERIALIZED) .*?)? COMMENT '(?P<about>(?:[^']|'')*)'",
    re.MULTILINE,
)
_REWORDED: Final = re.compile(r"^  COMMENT COLUMN (?P<name>[a-z_]+) '(?P<about>(?:[^']|'')*)'", re.MULTILINE)
_TABLE: Final = re.compile(r"^CREATE TABLE IF NOT EXISTS (\w+) ")
_ALTERED: Final = re.compile(r"^ALTER TABLE (\w+)\n")
_ORDER: Final = re.compile(r"^ORDER BY \(([^)]*)\)", re.MULTILINE)
_ABOUT: Final = re.compile(r"^COMMENT '((?:[^']|'')*)'", re.MULTILINE)


def _read(statements: Iterable[str]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for statement in statements:
        altered = _ALTERED.search(statement)
        table = _table(statement) if altered is None else _as_altered(tables[altered[1]], statement)
        tables[table.name] = table
    return tables


def _table(statement: str) -> Table:
    name, order, about = _TABLE.search(statement), _ORDER.search(statement), _ABOUT.search(statement)
    if name is None or order is None or about is None:
        raise ValueError(f"migration {statement[:60]!r}: must name its table, its order and its comment")
    return Table(name[1], _plain(about[1]), order[1], tuple(map(_column, _COLUMN.finditer(statement))))


def _as_altered(table: Table, statement: str) -> Table:
    reworded = {found["name"]: _plain(found["about"]) for found in _REWORDED.finditer(statement)}
    if unknown := reworded.keys() - {column.name for column in table.columns}:
        raise ValueError(
            f"table {table.name}: has no column {', '.join(sorted(unknown))} whose comment could be changed"
        )
    old = (replace(column, about=reworded.get(column.name, column.about)) for column in table.columns)
    return replace(table, columns=(*old, *map(_column, _COLUMN.finditer(statement))))


def _column(found: re.Match[str]) -> Column:
    extra = (found["extra"] or "").strip()
    return Column(
        name=found["name"],
        type=found["type"],
        about=_plain(found["about"]),
        default=extra.removeprefix("DEFAULT ") if extra.startswith("DEFAULT") else "",
        computed=extra.startswith("MATERIALIZED"),
    )


def _plain(literal: str) -> str:
    return literal.replace("''", "'")


TABLES: Final[dict[str, Table]] = _read(statement for migration in MIGRATIONS for statement in migration.statements)
"""By name, in order of creation, as the newest migration leaves them."""


def blank(table: str) -> dict[str, object]:
    """Return a row of `table` in which nothing is stated, by column name, in the order of the columns."""
    return {column.name: _nothing(column) for column in TABLES[table].stored()}


def column_names(table: str) -> tuple[str, ...]:
    """Return the names of the columns that a row of `table` carries, in order."""
    return tuple(column.name for column in TABLES[table].stored())


def _nothing(column: Column) -> object:
    if column.default:
        return int(column.default)
    if "String" in column.type:
        return ""
    return False if column.type == "Bool" else 0

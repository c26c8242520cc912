"""What is counted by minute: three tables, the views that fill them, and the same text to count a day again.

A view sees each insert and no merge, so a row that is stored twice counts twice until the day is counted again; and an engine
that is killed between a table and its view leaves the view behind. So days are compared, and counted again where they differ.
"""

from typing import Final

import msgspec


class Rollup(msgspec.Struct, frozen=True):
    """A table that counts another by minute; its column `rows` says how many rows it has counted."""

    table: str
    source: str
    keys: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]
    """Column -> expression over the source's row `d` that is summed."""

    @property
    def view(self) -> str:
        """Return the name of the view that fills it."""
        return f"{self.table}_view"

    def counted(self, source: str) -> str:
        """Return the statement that counts the rows of `source`, a FROM clause whose rows are named `d`."""
        keys = "".join(f", d.{key} AS {key}" for key in self.keys)
        sums = "".join(f", sum({expression}) AS {name}" for name, expression in self.sums)
        # every column with its table's name: an alias that is a column's name, too, would be taken for it
        return (
            "SELECT toDate(toDateTime(intDiv(d.at_ns, 1000000000), 'UTC')) AS day, "  # noqa: S608  # names of ours
            f"toStartOfMinute(toDateTime(intDiv(d.at_ns, 1000000000), 'UTC')) AS minute{keys}, count() AS rows{sums} "
            f"FROM {source} GROUP BY day, minute{''.join(f', d.{key}' for key in self.keys)}"
        )


def _plainly(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"d.{name}") for name in names)


ROLLUPS: Final = (
    Rollup(
        table="decisions_by_minute",
        source="decisions",
        keys=("side", "kind", "owner", "owner_model", "helper", "outcome", "reason"),
        sums=(
            ("candidates", "toUInt64(greatest(d.repeats, 1))"),
            *_plainly("wait_us", "service_us", "load_us", "gain_us"),
        ),
    ),
    Rollup(
        table="requests_by_minute",
        source="requests",
        keys=("owner", "model", "helper", "outcome", "code"),
        sums=_plainly("work", "wait_us", "service_us", "tokens_in", "tokens_out"),
    ),
    Rollup(
        table="loads_by_minute",
        source="loads",
        keys=("node", "model", "kind", "cause", "displaced"),
        sums=_plainly("load_us"),
    ),
)
"""All of them."""

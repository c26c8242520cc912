"""What a command prints: tables for a person at a terminal, one JSON object a line for everybody else."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from projections.words import duration as duration  # noqa: PLC0414  # for all commands
from services.texts import plain
from services.texts.plain import Row, printable


class Output:
    """Prints rows the one way or the other, by `--json` and by what standard output is."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json or not sys.stdout.isatty()

    def rows(self, title: str, rows: Sequence[Row], columns: Mapping[str, str], *, none: str = "none") -> None:
        """Print `rows`: whole as JSON, or the `columns` (key -> heading) as a table; `none` stands for an empty one."""
        if self.as_json:
            for row in rows:
                self.line(row)
        else:
            _print_table(title, rows, columns, none)

    def line(self, row: Row) -> None:
        """Print one row as JSON."""
        sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        sys.stdout.flush()

    def say(self, text: str, row: Row) -> None:
        """Print `text` for a person, `row` for a program."""
        if self.as_json:
            self.line(row)
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _print_table(title: str, rows: Sequence[Row], columns: Mapping[str, str], none: str) -> None:
    from rich.console import Console  # noqa: PLC0415  # 60 ms that a piped command does without
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False)
    if not rows:
        console.print(f"{title}: {none}")
        return
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for key, heading in columns.items():
        number = all(isinstance(row.get(key), int | float) for row in rows)
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(key, row.get(key)) for key in columns))
    console.print(table)


def cell(key: str, value: object) -> str:
    """Return `value` as a cell of a table of rich, to which a bracket begins a style."""
    return plain.cell(key, value).replace("[", r"\[")


def note(text: str) -> None:
    """Say something beside the result, on standard error; names in it may come from outside."""
    sys.stderr.write("\n".join(map(printable, text.split("\n"))) + "\n")
    sys.stderr.flush()


class Waiting:
    """A spinner on standard error that says what is being waited for, if a person looks at it. Call it with the text."""

    def __init__(self) -> None:
        self._status: Any = None

    def __call__(self, text: str) -> None:
        """Show `text`; where nobody looks, say nothing."""
        if not sys.stderr.isatty():
            return
        if self._status is None:
            from rich.console import Console  # noqa: PLC0415  # as above

            self._status = Console(stderr=True, highlight=False).status(text)
            self._status.start()
        self._status.update(text)

    def done(self) -> None:
        """Take it away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

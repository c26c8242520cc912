"""Cells and lines of plain text; ids and reasons in them come from outside."""

from collections.abc import Mapping
from typing import Any

from projections.words import duration

Row = Mapping[str, Any]


def cell(key: str, value: object) -> str:
    """Return `value` as a cell: durations (`..._us`) in their unit, lists with commas, nothing as a dash."""
    if value is None or value in ("", (), []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_us") and isinstance(value, int):
        return duration(value)
    if isinstance(value, list | tuple):
        return ", ".join(printable(str(item)) for item in value)
    return printable(str(value))


def printable(line: str) -> str:
    """Return `line` with its columns, but without anything that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in line).rstrip()


def signed(us: int) -> str:
    """Return microseconds as people read them, lost ones with their sign."""
    return duration(us) if us >= 0 else f"-{duration(-us)}"

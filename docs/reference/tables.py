# ruff: noqa: INP001  (a script beside what it writes, not a package)
"""Writes tables.md beside this file: `python docs/reference/tables.py`."""

from pathlib import Path

from projections.reference import reference

if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(reference(), encoding="utf-8")

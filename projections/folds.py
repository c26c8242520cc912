"""Runs of rows that say the same of the same pair, so that a reader can fold each into one line.

A run goes on while a kind of row says the same outcome and reason of the same owner, model, helper and link, and not more than
five minutes pass between two of its rows. Each row carries the sequence of the first one of its run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from projections.rows import Row

GAP_NS: Final = 300_000_000_000
"""A longer silence ends a run."""
FOLDED_BY: Final = ("kind", "owner", "owner_model", "helper", "link", "outcome", "reason")
"""Columns in which all rows of a run are the same."""

Key = tuple[str, ...]


class Run(NamedTuple):
    """The newest run of a key."""

    said: Key
    """Its outcome and reason."""
    fold_id: int
    at_ns: int
    """Stamp of its newest row."""


Runs = Mapping[Key, Run]


def fold(rows: Sequence[Row], before: Runs) -> Runs:
    """State in each of `rows`, which follow each other in one stream, its fold_id; return the runs that may go on after them."""
    runs = dict(before)
    for row in rows:
        key, said = _split(row)
        seq, at_ns = row["seq"], row["at_ns"]
        last = runs.get(key)
        fold_id = seq if last is None or last.said != said or at_ns - last.at_ns > GAP_NS else last.fold_id
        row["fold_id"] = fold_id
        runs[key] = Run(said, fold_id, at_ns)
    newest_ns = max((run.at_ns for run in runs.values()), default=0)
    return {key: run for key, run in runs.items() if newest_ns - run.at_ns <= GAP_NS}


def runs_of(rows: Sequence[Mapping[str, Any]]) -> Runs:
    """Return the runs that may go on, from rows of the table, the newest first."""
    runs: dict[Key, Run] = {}
    for row in reversed(rows):
        key, said = _split(row)
        runs[key] = Run(said, row["fold_id"], row["at_ns"])
    return runs


def _split(row: Mapping[str, Any]) -> tuple[Key, Key]:
    """Return (what the row is about, what it says): the columns of FOLDED_BY."""
    get = row.get
    about = get("kind", ""), get("owner", ""), get("owner_model", ""), get("helper", ""), get("link", "")
    outcome, reason = get("outcome", ""), get("reason", "")
    if outcome == "left_out":  # one row for each code: each has a run of its own
        return (*about, reason), (outcome, reason)
    return about, (outcome, reason)

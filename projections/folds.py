"""Runs of rows that say the same of the same pair, so that a reader can fold each into one line.

A run goes on while a kind of row says the same outcome and reason of the same owner, model, helper and link, and not more than
five minutes pass between two of its rows. Each row carries the sequence of the first one of its run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from projections.rows import Row
from projections.tables import column_names

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
_NAMES: Final = column_names("decisions")
_PLACES: Final = tuple(_NAMES.index(name) for name in FOLDED_BY)
_SEQ, _AT_NS = _NAMES.index("seq"), _NAMES.index("at_ns")
assert _NAMES[-1] == "fold_id", "it is set at the end of a row"


def folded(rows: Sequence[Row], before: Runs) -> tuple[list[Row], Runs]:
    """Return (the rows of one stream with their fold_id, the runs that may go on after them)."""
    runs = dict(before)
    found: list[Row] = []
    for row in rows:
        key, said = _split(tuple(str(row[place]) for place in _PLACES))
        seq, at_ns = row[_SEQ], row[_AT_NS]
        assert isinstance(seq, int)
        assert isinstance(at_ns, int)
        last = runs.get(key)
        if last is None or last.said != said or at_ns - last.at_ns > GAP_NS:
            last = Run(said, seq, at_ns)
        runs[key] = last._replace(at_ns=at_ns)
        found.append((*row[:-1], last.fold_id))
    newest_ns = max((run.at_ns for run in runs.values()), default=0)
    return found, {key: run for key, run in runs.items() if newest_ns - run.at_ns <= GAP_NS}


def runs_of(rows: Sequence[Mapping[str, Any]]) -> Runs:
    """Return the runs that may go on, from rows of the table, the newest first."""
    runs: dict[Key, Run] = {}
    for row in reversed(rows):
        key, said = _split(tuple(row[name] for name in FOLDED_BY))
        runs[key] = Run(said, row["fold_id"], row["at_ns"])
    return runs


def _split(values: Key) -> tuple[Key, Key]:
    """Return (what the row is about, what it says) of values in the order of FOLDED_BY."""
    *about, outcome, reason = values
    if outcome == "left_out":  # one row for each code: each has a run of its own
        about.append(reason)
    return tuple(about), (outcome, reason)

"""What a table says of idleness: runs of steps that are alike, those of which nothing is known as numbers with their reasons."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from projections.words import count
from services.texts.plain import Row

_WORDS: Final = {
    "not_heard_of": "its node had not spoken yet, or longer ago than is kept",
    "heartbeat_missed": "its node was silent",
    "draining": "its node was shutting down",
    "stopped": "its node had stopped",
    "messages_gone": "messages of then were gone before they came into the tables",
    "not_stored_yet": "it is not in the tables yet, or still to come",
}
"""Why a step is unknown, in words; a state of a node's health stands for itself."""
_NAMED: Final = 4
"""Models that a line names."""


def runs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the steps of each node and model, those that follow each other in one state as one; unknown ones are left out.

    `steps` says how many they are, `t` where they begin.
    """
    found: list[dict[str, Any]] = []
    for steps in _by_pair(rows).values():
        before = ""
        for row in steps:
            if row["state"] == before and before != "unknown":
                found[-1] |= {"steps": found[-1]["steps"] + 1, "served_us": found[-1]["served_us"] + row["served_us"]}
            elif row["state"] != "unknown":
                found.append(dict(row) | {"steps": 1})
            before = row["state"]
    return found


def unknown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield of how many steps something is known, and why not of all; those of which the same is to be said in one line."""
    told: dict[str, list[str]] = {}
    for (node, model), steps in _by_pair(rows).items():
        why = Counter(row["why"] for row in steps if row["state"] == "unknown")
        if why:
            because = "; ".join(
                f"{_WORDS.get(code, f'its node was {code}')} ({number})" for code, number in why.items()
            )
            known = f"known of {len(steps) - why.total()} of {count(len(steps), 'step')}; unknown because {because}"
            told.setdefault(known, []).append(f"{node}/{model}")
    for known, names in told.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{', '.join(names[:_NAMED])}{more}: {known}"


def _by_pair(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["node"], row["model"], row["t"])):
        pairs.setdefault((row["node"], row["model"]), []).append(row)
    return pairs

"""How long the control path took in a run, from the facts' own monotonic stamps: all processes share the machine's clock."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec


class ControlPath(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in milliseconds; 0 where nothing of the kind happened."""

    first_lease_ms: float
    """From the first request held to the first one lent: a fact, a decision, a lease."""
    lend_ms: float
    """From lent at the owner to accepted at the helper."""
    start_ms: float
    """From accepted at the helper to started, of those that waited neither for another one nor for a load."""
    answer_ms: float
    """From the end at the helper's engine to the answer at the owner."""


def control_path(facts: Sequence[Mapping[str, Any]]) -> ControlPath:
    """Return the control path of the facts of one run."""
    return ControlPath(
        first_lease_ms=_first(facts, "queue.held", "lend.lent"),
        lend_ms=_median(facts, "lend.lent", "borrow.accepted"),
        start_ms=_median(facts, "borrow.accepted", "borrow.started", alone=True),
        answer_ms=_median(facts, "borrow.finished", "lend.answered"),
    )


def _first(facts: Sequence[Mapping[str, Any]], begin: str, end: str) -> float:
    times = [min((fact["mono_us"] for fact in facts if fact["type"] == kind), default=0) for kind in (begin, end)]
    return max(0.0, (times[1] - times[0]) / 1000)


def _median(facts: Sequence[Mapping[str, Any]], begin: str, end: str, *, alone: bool = False) -> float:
    return statistics.median([*_gaps_ms(facts, begin, end, alone=alone)] or [0.0])


def _gaps_ms(facts: Sequence[Mapping[str, Any]], begin: str, end: str, *, alone: bool) -> Iterator[float]:
    """Yield the time between the two facts about the same request."""
    began: dict[str, int] = {}
    ended: dict[str, int] = {}
    for fact in facts:
        request = fact["data"].get("request", "")
        if fact["type"] == begin and not (alone and fact["data"].get("position", 0)):
            began[request] = fact["mono_us"]
        elif fact["type"] == end and not fact["data"].get("load_us", 0):
            ended[request] = fact["mono_us"]
    for request, at_us in began.items():
        if request in ended and ended[request] >= at_us:
            yield (ended[request] - at_us) / 1000

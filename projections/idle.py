"""Which nodes and models were idle, step by step. What nobody knows is unknown: silence is no sign of idleness."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

Row = Mapping[str, Any]
_NS: Final = 1_000_000_000
Pair = tuple[str, str]
"""Node and model."""


def idle_steps(
    since_s: int, until_s: int, step_s: int, models: Iterable[Row], words: Iterable[Row], served: Iterable[Row]
) -> list[dict[str, Any]]:
    """Return for each step, node and model whether it was busy, idle or unknown, and for how long it served (us).

    A step is busy if anything ran in it; idle if nothing did and the node was known to be well throughout; else unknown.

    Args:
        since_s: begin of the window, seconds since 1970.
        until_s: its end.
        step_s: length of a step.
        models: node, model of every model that is registered.
        words: node, at_ns, good: what was said of nodes, good or not, from before the window on.
        served: node, model, from_ns, to_ns of what ran; to_ns 0 while it has not ended.
    """
    first = since_s - since_s % step_s
    edges = [edge * _NS for edge in range(first, until_s + step_s, step_s)]
    edges = [edge for edge in edges if edge < until_s * _NS] + [until_s * _NS]
    known = _by_node(words)
    ran = _ran(served)
    pairs = sorted({(row["node"], row["model"]) for row in models} | set(ran))
    found: list[dict[str, Any]] = []
    for begin, end in pairwise(edges):
        for node, model in pairs:
            busy_ns = sum(_overlap(span, begin, end) for span in ran.get((node, model), ()))
            state = "busy" if busy_ns else "idle" if _well(known.get(node, ()), begin, end) else "unknown"
            found.append(
                {"t": begin // _NS, "node": node, "model": model, "state": state, "served_us": busy_ns // 1000}
            )
    return found


def _by_node(words: Iterable[Row]) -> dict[str, list[tuple[int, bool]]]:
    known: dict[str, list[tuple[int, bool]]] = {}
    for row in words:
        known.setdefault(row["node"], []).append((row["at_ns"], bool(row["good"])))
    return {node: sorted(said) for node, said in known.items()}


def _ran(served: Iterable[Row]) -> dict[Pair, list[tuple[int, int]]]:
    """Return when each model of each node ran, without overlaps, to the end of time where it still does."""
    spans: dict[Pair, list[tuple[int, int]]] = {}
    for row in served:
        spans.setdefault((row["node"], row["model"]), []).append((row["from_ns"], row["to_ns"] or 1 << 63))
    return {pair: _merged(found) for pair, found in spans.items()}


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _overlap(span: tuple[int, int], begin: int, end: int) -> int:
    return max(0, min(span[1], end) - max(span[0], begin))


def _well(said: Sequence[tuple[int, bool]], begin: int, end: int) -> bool:
    """Tell whether the newest word before `begin` is good, and no word up to `end` is not."""
    before = bisect_right(said, (begin, True)) - 1
    if before < 0 or not said[before][1]:
        return False
    return all(good for at_ns, good in said[before:] if at_ns < end)

"""Which nodes and models were idle, step by step. What nobody knows is unknown: silence is no sign of idleness."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]
_NS: Final = 1_000_000_000
_EVER: Final = 1 << 63
UNHEARD: Final = "not_heard_of"
"""Nobody had said anything of the node by then: it was not there yet, or what it said is not kept any more."""
GONE: Final = "messages_gone"
"""Messages of then were gone before they came into the tables."""
UNTOLD: Final = "not_stored_yet"
"""What was said by then is not in the tables yet, or is still to be said."""
_DRAINS: Final = "draining"
Pair = tuple[str, str]
"""Node and model."""
Word = tuple[int, bool, str]
"""When it was said, whether the node was well from then on, and if not, why."""
Span = tuple[int, int]


def idle_steps(
    since_s: int,
    until_s: int,
    step_s: int,
    models: Iterable[Row],
    words: Iterable[Row],
    served: Iterable[Row],
    lives: Iterable[Row] = (),
    missing: Iterable[Row] = (),
) -> list[dict[str, Any]]:
    """Return for each step, node and model whether it was busy, idle or unknown, and for how long it served (us).

    A step is busy if anything ran in it; idle if nothing did and the node was known to be well throughout; else unknown, with
    `why`: the first word that was not good, `not_heard_of`, or why messages are missing. What has not ended ran while the node
    was well, no longer than the process that began it, and as far as anything is known.

    Args:
        since_s: begin of the window, seconds since 1970.
        until_s: its end.
        step_s: length of a step.
        models: node, model of every model that is registered.
        words: node, at_ns, good, why: what was said of nodes, good or not, from before the window on.
        served: node, model, from_ns, to_ns of what ran; to_ns 0 while it has not ended.
        lives: node, at_ns: when a process of the node began or ended.
        missing: from_ns, to_ns, why: times of which messages are missing; to_ns 0 if nothing is known after them.
    """
    starts = range(since_s - since_s % step_s, until_s, step_s)
    known, untold_in = _by_node(words), [(row["from_ns"], row["to_ns"] or _EVER, row["why"]) for row in missing]
    horizon = min((first for first, last, _ in untold_in if last == _EVER), default=_EVER)
    ran = _ran(served, known, _moments(lives), horizon)
    pairs = sorted({(row["node"], row["model"]) for row in models} | set(ran))
    found: list[dict[str, Any]] = []
    for t in starts:
        begin, end = max(t, since_s) * _NS, min(t + step_s, until_s) * _NS
        untold = next((why for first, last, why in untold_in if first < end and begin < last), "")
        unwell = {node: _unwell(known.get(node, ()), begin, end) or untold for node, _ in pairs}
        for node, model in pairs:
            busy_ns = sum(_overlap(span, begin, end) for span in ran.get((node, model), ()))
            why = "" if busy_ns else unwell[node]
            state = "busy" if busy_ns else "unknown" if why else "idle"
            row = {"t": t, "node": node, "model": model, "state": state}
            found.append(row | {"served_us": busy_ns // 1000, "why": why})
    return found


def _by_node(words: Iterable[Row]) -> dict[str, list[Word]]:
    known: dict[str, list[Word]] = {}
    for row in words:
        known.setdefault(row["node"], []).append((row["at_ns"], bool(row["good"]), row["why"]))
    return {node: sorted(said) for node, said in known.items()}


def _moments(lives: Iterable[Row]) -> dict[str, list[int]]:
    moments: dict[str, list[int]] = {}
    for row in lives:
        moments.setdefault(row["node"], []).append(row["at_ns"])
    return {node: sorted(found) for node, found in moments.items()}


def _ran(
    served: Iterable[Row], known: Mapping[str, Sequence[Word]], lives: Mapping[str, Sequence[int]], horizon: int
) -> dict[Pair, list[Span]]:
    """Return when each model of each node ran, without overlaps."""
    spans: dict[Pair, list[Span]] = {}
    for row in served:
        node, begin = row["node"], row["from_ns"]
        found = spans.setdefault((node, row["model"]), [])
        if row["to_ns"]:
            found.append((begin, row["to_ns"]))
        elif begin < horizon:
            moments = lives.get(node, ())
            at = bisect_right(moments, begin)
            found += _well(known.get(node, ()), begin, min([horizon, *moments[at : at + 1]]))
    return {pair: _merged(found) for pair, found in spans.items()}


def _well(said: Sequence[Word], begin: int, end: int) -> list[Span]:
    """Return the parts of a span in which the node was not known to be unwell: one that drains goes on with what it has."""
    parts: list[Span] = []
    since: int | None = begin
    for at_ns, good, why in said:
        if at_ns >= end:
            break
        if at_ns <= begin or why == _DRAINS:
            continue
        if good and since is None:
            since = at_ns
        elif not good and since is not None:
            parts.append((since, at_ns))
            since = None
    return parts if since is None else [*parts, (since, end)]


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _overlap(span: Span, begin: int, end: int) -> int:
    return max(0, min(span[1], end) - max(span[0], begin))


def _unwell(said: Sequence[Word], begin: int, end: int) -> str:
    """Return why it is not known whether the node was idle from `begin` to `end`; empty if it was well throughout."""
    before = bisect_right(said, (begin, True, chr(0x10FFFF))) - 1
    if before < 0:
        return UNHEARD
    return next((why or "unwell" for at_ns, good, why in said[before:] if not good and at_ns < end), "")

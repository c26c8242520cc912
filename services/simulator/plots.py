"""Plots of one run as inline SVG: no script, no font, no file beside it."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from services.simulator.curves import Curves, Sample

_WIDTH, _LEFT, _RIGHT = 520, 44, 8
_QUEUE, _LEASES = (18, 84), (114, 40)  # top and height of the two panels
_ROWS_TOP, _ROW_HEIGHT, _FOOT = 162, 14, 18
_POINTS_MAX = 300


def plot(title: str, curves: Curves) -> str:
    """Return a plot of a run: what all owners hold; what they have lent and may lend; each node's work and loads."""
    end_s = max(curves.end_s, 1e-9)
    height = _ROWS_TOP + _ROW_HEIGHT * len(curves.nodes) + _FOOT
    held = {"held": _total(curves, lambda sample: sample.held)}
    leases = {
        "out": _total(curves, lambda sample: sample.out),
        "slots": _total(curves, lambda sample: sample.slots),
    }
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text x="{_LEFT}" y="11" class="title">{escape(title)}</text>',
        *_panel(held, end_s, _QUEUE),
        *_panel(leases, end_s, _LEASES),
        *_rows(curves, end_s),
        *_times(end_s, height),
        "</svg>",
    ]
    return "".join(parts)


def _panel(series: dict[str, list[tuple[float, int]]], end_s: float, place: tuple[int, int]) -> Iterable[str]:
    top = max((value for points in series.values() for _, value in points), default=0) or 1
    for value in sorted({0, top // 2, top}):
        y = _y(value, top, place)
        yield f'<path class="rule" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 4}" y="{y + 3:.1f}" class="end">{value}</text>'
    for name, points in series.items():
        yield f'<path class="{name}" d="{_steps(points, end_s, top, place)}"/>'


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, at_s / end_s)


def _y(value: float, top: float, place: tuple[int, int]) -> float:
    return place[0] + place[1] * (1 - value / top)


def _times(end_s: float, height: int) -> Iterable[str]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        place = "end" if share == 1.0 else "middle" if share else ""
        text = f"{end_s * share:,.0f} s" if end_s >= 40 else f"{end_s * share:.1f} s"
        yield f'<text x="{_x(end_s * share, end_s):.1f}" y="{height - 4}" class="{place}">{text}</text>'


def _total(curves: Curves, value: Callable[[Sample], int]) -> list[tuple[float, int]]:
    """Return the sum over nodes as (time, value), thinned to what a plot can show; a span's largest value stays."""
    changes = sorted(
        (sample.at_s, node, value(sample)) for node, all_of in enumerate(curves.nodes) for sample in all_of
    )
    latest = [0] * len(curves.nodes)
    points: list[tuple[float, int]] = []
    for at_s, node, now in changes:
        latest[node] = now
        total = sum(latest)
        if points and points[-1][0] == at_s:
            points[-1] = (at_s, total)
        elif not points or points[-1][1] != total:
            points.append((at_s, total))
    return _thinned(points)


def _thinned(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    if len(points) <= _POINTS_MAX:
        return points
    stride = -(-len(points) // _POINTS_MAX)
    spans = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(span[0][0], max(value for _, value in span)) for span in spans]


def _steps(points: Sequence[tuple[float, int]], end_s: float, top: int, place: tuple[int, int]) -> str:
    path = f"M{_LEFT} {_y(0, top, place):.1f}"
    for at_s, value in points:
        path += f"H{_x(at_s, end_s):.1f}V{_y(value, top, place):.1f}"
    return f"{path}H{_x(end_s, end_s):.1f}"


def _rows(curves: Curves, end_s: float) -> Iterable[str]:
    for node, samples in enumerate(curves.nodes):
        y = _ROWS_TOP + _ROW_HEIGHT * node
        yield f'<text x="{_LEFT - 4}" y="{y + 10}" class="end">n{node}</text>'
        for from_s, to_s in _spans(samples, end_s):
            yield _bar("busy", from_s, to_s, y + 5, 4, end_s, f"n{node} serves")
        for load in curves.loads:
            if load.node == node:
                kind = "restore" if load.model == node else "load"
                yield _bar(kind, load.from_s, load.to_s, y + 1, 12, end_s, f"n{node} loads model {load.model}")


def _bar(kind: str, from_s: float, to_s: float, y: float, height: float, end_s: float, about: str) -> str:
    x, width = _x(from_s, end_s), max(0.5, _x(to_s, end_s) - _x(from_s, end_s))
    title = f"<title>{escape(about)}, {from_s:.1f} to {to_s:.1f} s</title>"
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:g}">{title}</rect>'


def _spans(samples: Sequence[Sample], end_s: float) -> list[tuple[float, float]]:
    """Return when the node's engine had something; gaps that no plot could show are closed."""
    smallest_s = end_s / (_WIDTH * 2)
    spans: list[tuple[float, float]] = []
    for number, sample in enumerate(samples):
        if not sample.in_engine:
            continue
        to_s = samples[number + 1].at_s if number + 1 < len(samples) else end_s
        if spans and sample.at_s - spans[-1][1] <= smallest_s:
            spans[-1] = (spans[-1][0], to_s)
        else:
            spans.append((sample.at_s, to_s))
    return spans

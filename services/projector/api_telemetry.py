"""What a cluster did over a window, step by step: /admin/v1/telemetry/..."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from adapters.clickhouse.idleness import seen
from adapters.clickhouse.pages import BadQueryError
from adapters.clickhouse.savings import savings
from adapters.clickhouse.store import Store
from adapters.clickhouse.telemetry import POINTS_MAX, ROWS_MAX, SERIES, Answer, Window, loads, series
from adapters.http.server import Call
from adapters.times import utc
from domain.errors import BusError
from domain.subjects import EVENTS, LEDGER
from projections.idle import GONE, UNTOLD, idle_steps
from services.projector.follow import Progress
from services.projector.parameters import CHECKS, Parameters, none_left, take_number, take_time
from services.projector.projector import Projector
from services.projector.routes import Answer as Route
from services.projector.routes import Desk, Routes

PATH: Final = "/admin/v1/telemetry/"
NAMES: Final[dict[str, str]] = {name: asked.about for name, asked in SERIES.items()} | {
    "idle": "which nodes and models were busy, idle or unknown: nobody's silence is taken for idleness",
    "savings": "what lending saved: what the owner alone was predicted to need for a backlog, against what was measured",
}
"""Every question with what it says."""
_HOUR_S: Final = 3600
_S_MAX: Final = (1 << 32) - 1
"""What a column of type DateTime holds."""
_STEP_MAX: Final = 86_400 * 31
_STEPS: Final = (60, 300, 900, 3600, 21_600, 86_400)
"""What a step is if nobody says: the first of these that gives few enough of them."""
_POINTS: Final = 120
"""Steps of a window if nobody says."""
_BUS_S: Final = 1.0
_BEHIND_NS: Final = 2_000_000_000
"""Rows come some tenths of a second after the facts, and the master takes longer to notice that a node is silent."""


def add(routes: Routes, desk: Desk) -> None:
    """Add the paths of this part."""
    for name in NAMES:
        routes.add(PATH + name, _answer(desk, name))


def _answer(desk: Desk, name: str) -> Route:
    async def answer(_: Call, said: Parameters) -> dict[str, Any]:
        now_ns = await desk.now_ns()
        window = take_window(said, now_ns, finest=name == "savings")
        none_left(said)
        if name == "idle":
            known_ns = await carried_until(desk.projector, now_ns)
            window = msgspec.structs.replace(window, known_s=-(-known_ns // 1_000_000_000))
        found: Answer = await desk.ask(question(name), window)
        return {
            "from": window.since_s,
            "to": window.until_s,
            "step": window.step_s,
            "source": found.source,
            "truncated": len(found.rows) >= ROWS_MAX,
            name: found.rows,
        }

    return answer


def question(name: str) -> Callable[[Store, Window], Answer]:
    """Return what answers the question `name`."""
    if name == "savings":
        return savings
    if name == "loads":
        return loads
    if name == "idle":
        return idle
    return lambda store, window: series(store, name, window)


def idle(store: Store, window: Window) -> Answer:
    """Return which nodes and models were idle."""
    known = seen(store, window)
    span = window.since_s, window.until_s, window.step_s
    missing = [row | {"why": GONE} for row in known.gone]
    missing.append({"from_ns": window.known_s * 1_000_000_000, "to_ns": 0, "why": UNTOLD})
    rows = idle_steps(*span, known.models, known.words, known.served, known.lives, missing)
    return Answer(rows=rows[:ROWS_MAX], source="rows")


async def carried_until(projector: Projector, now_ns: int) -> int:
    """Return until when all that was stored is in the tables, in nanoseconds: now, if they are next to nothing behind."""
    carried_ns = min([await _carried(projector, projector.progress[name], now_ns) for name in (EVENTS, LEDGER)])
    return now_ns if now_ns - carried_ns <= _BEHIND_NS else carried_ns


async def _carried(projector: Projector, progress: Progress, now_ns: int) -> int:
    stream, following = projector.streams[progress.stream], None
    try:
        async with asyncio.timeout(_BUS_S):
            if (await stream.bounds()).last <= progress.position:
                return now_ns
            following = await stream.get(progress.position + 1)
    except (BusError, TimeoutError):
        pass  # then nobody knows what came after the newest row
    return following.stamp_ns if following is not None else progress.at_ns


def take_window(said: Parameters, now_ns: int, *, finest: bool = False) -> Window:
    """Take a window and its steps, the newest hour if nobody says; `finest`: steps as short as they may be, else some 120.

    Raises:
        BadQueryError: it ends before it begins, or has too many steps.
    """
    until_s = -(-take_time(said, "to", now_ns, now_ns) // 1_000_000_000)
    since_s = take_time(said, "from", now_ns, (until_s - _HOUR_S) * 1_000_000_000) // 1_000_000_000
    since, until = (utc(min(each, _S_MAX) * 1_000_000_000, "seconds") for each in (since_s, until_s))
    if not 0 <= since_s < until_s <= _S_MAX:
        raise BadQueryError("from", f"from: must be before the end of the window, {until}, got {since}")
    span = until_s - since_s
    most = POINTS_MAX if finest else _POINTS
    fitting = next((step for step in _STEPS if span / step <= most), max(60, -(-span // most // 60) * 60))
    step_s = take_number(said, "step", min(fitting, _STEP_MAX), _STEP_MAX, least=60)
    if step_s % 60:
        raise BadQueryError("step", f"step: must be whole minutes in seconds, got {step_s}")
    if span / step_s > POINTS_MAX:
        raise BadQueryError(
            "step", f"step: must give at most {POINTS_MAX} steps from {since} to {until}, got {step_s} s"
        )
    node, model = (CHECKS[name](name, said.pop(name)) if name in said else "" for name in ("node", "model"))
    return Window(since_s=since_s, until_s=until_s, step_s=step_s, node=node, model=model)

"""The tables row by row: /v1/decisions, requests, loads, health, events, and counts over all of them."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from adapters.clickhouse import folds, queries
from adapters.clickhouse.pages import BadQueryError
from adapters.http.server import Call
from adapters.times import utc
from domain.subjects import CONTROL, EVENTS, LEDGER
from projections import decision_log, health, loads
from projections.folds import FOLDED_BY
from projections.tables import column_names
from services.projector.parameters import Parameters, none_left, take_asked, take_number, take_switch, take_time
from services.projector.routes import Answer, Desk, Routes

DECISIONS: Final = "/admin/v1/decisions"
_WINDOW_S, _WINDOW_S_MAX = 3600, 3650 * 86400
_SUBJECT: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")


def add(routes: Routes, desk: Desk) -> None:
    """Add the paths of this part."""
    routes.add("/v1/decisions", _decisions(desk))
    routes.add(DECISIONS, _decisions_by_time(desk))
    routes.add("/v1/requests", _page(desk, "requests", queries.requests, queries.REQUEST_FILTERS))
    routes.add("/v1/loads", _page(desk, "loads", queries.loads, queries.LOAD_FILTERS, loads.KINDS))
    routes.add("/v1/health", _page(desk, "health", queries.health, queries.HEALTH_FILTERS, health.KINDS))
    routes.add("/v1/events", _events(desk))
    routes.add("/v1/stats", _stats(desk))


def _page(
    desk: Desk,
    table: str,
    question: Callable[..., Any],
    names: tuple[str, ...],
    kinds: Mapping[str, str] = decision_log.KINDS,
) -> Answer:
    """Return what answers with a page of a table; `kinds` are those that its filter `kind` may name."""

    async def answer(_: Call, said: Parameters) -> dict[str, Any]:
        asked = take_asked(said, names, kinds)
        none_left(said)
        rows, cursor = await desk.ask(question, column_names(table), asked)
        return {table: [shown(row) for row in rows], "next": cursor}

    return answer


def _decisions(desk: Desk) -> Answer:
    unfolded = _page(desk, "decisions", queries.decisions, queries.DECISION_FILTERS)

    async def folded(said: Parameters) -> dict[str, Any]:
        """Return the newest runs of rows that say the same; they have no cursor, since the newest one may grow."""
        asked = take_asked(said, queries.DECISION_FILTERS, decision_log.KINDS)
        if asked.after is not None:
            raise BadQueryError("after", "after: folded rows are the newest ones only")
        none_left(said)
        rows = await desk.ask(folds.folded, column_names("decisions"), FOLDED_BY, asked)
        return {"decisions": [shown(row) for row in rows], "next": ""}

    async def answer(call: Call, said: Parameters) -> Any:
        return await folded(said) if take_switch(said, "folded") else await unfolded(call, said)

    return answer


def _decisions_by_time(desk: Desk) -> Answer:
    """Return what answers as /v1/decisions does, in the words that people use: code, and times as they write them."""
    decisions = _decisions(desk)

    async def answer(call: Call, said: Parameters) -> Any:
        now_ns = await desk.now_ns()
        for name, column in (("code", "reason"), ("from", "since_ns"), ("to", "until_ns")):
            if name in said and column in said:
                raise BadQueryError(name, f"{name}: {column} says the same, only one of them may be given")
        if "code" in said:
            said["reason"] = said.pop("code")
        for name, column in (("from", "since_ns"), ("to", "until_ns")):
            if name in said:
                said[column] = str(max(1, take_time(said, name, now_ns, 0)))  # 0 asks for any
        return await decisions(call, said)

    return answer


def _events(desk: Desk) -> Answer:
    async def answer(_: Call, said: Parameters) -> dict[str, Any]:
        stream = said.pop("stream", EVENTS)
        if stream not in {EVENTS, CONTROL, LEDGER}:
            raise BadQueryError("stream", f"stream: must be {EVENTS}, {CONTROL} or {LEDGER}, got {stream[:80]!r}")
        subject = said.pop("subject", "")
        if subject and not _SUBJECT.fullmatch(subject):
            raise BadQueryError("subject", f"subject: must be the beginning of a subject, got {subject[:80]!r}")
        bodies = take_switch(said, "bodies")
        asked = take_asked(said, queries.EVENT_FILTERS, {})
        none_left(said)
        rows, cursor = await desk.ask(
            queries.events, column_names("events"), asked, stream=stream, subject=subject, bodies=bodies
        )
        return {"events": [shown(row) for row in rows], "next": cursor}

    return answer


def _stats(desk: Desk) -> Answer:
    async def answer(_: Call, said: Parameters) -> dict[str, Any]:
        window_s = take_number(said, "window_s", _WINDOW_S, _WINDOW_S_MAX)
        none_left(said)
        since_ns = max(0, await desk.now_ns() - window_s * 1_000_000_000)
        counted: dict[str, Any] = await desk.ask(queries.stats, since_ns=since_ns)
        return {"window_s": window_s, **counted}

    return answer


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it: the stamp for people too (`at_ns` is beyond what JavaScript holds exactly), bytes as text."""
    at_ns = row.pop("at_ns")
    said = {"at": utc(at_ns, "microseconds"), "at_ns": at_ns}
    for name, value in row.items():
        if isinstance(value, bytes):
            said |= _text_of(name, value)
        else:
            said[name] = value
    return said


def _text_of(name: str, value: bytes) -> dict[str, Any]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": value}

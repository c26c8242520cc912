"""The questions that the read API answers. Everything a caller says reaches ClickHouse as a typed parameter, never as SQL."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from adapters.clickhouse.pages import Condition, Row, Source, page
from adapters.clickhouse.store import Store

BODIES_MAX: Final = 100
"""Events on one page that carries their bodies: a commit may have 256 KiB."""

DECISION_FILTERS: Final = ("owner", "helper", "kind", "reason", "request", "outcome", "link", "lease", "side", "model")
REQUEST_FILTERS: Final = ("owner", "helper", "request", "outcome", "model", "code")
EVENT_FILTERS: Final = ("event", "producer")
LOAD_FILTERS: Final = ("node", "model", "kind", "cause")
HEALTH_FILTERS: Final = ("node", "model", "kind")
"""Columns that a caller may ask for by value."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows, and how many of them."""

    filters: Mapping[str, str] = {}
    """Column -> value."""
    limit: int
    after: str | None = None
    """A cursor; None asks for the newest."""
    since_ns: int = 0
    until_ns: int = 0
    """Stamps from and before; 0 asks for any."""


def decisions(store: Store, columns: Sequence[str], asked: Asked) -> tuple[list[Row], str]:
    """Return (rows of the decision log, next cursor); filters by the names in DECISION_FILTERS."""
    streams = streams_of(asked.filters.get("side", ""))
    source = Source(table="decisions", streams=streams, columns=shown_columns(columns))
    return page(store, source, conditions_of(asked, DECISION_FILTERS), limit=asked.limit, after=asked.after)


def requests(store: Store, columns: Sequence[str], asked: Asked) -> tuple[list[Row], str]:
    """Return (how requests ended and where they were lent, next cursor); filters by the names in REQUEST_FILTERS."""
    source = Source(table="requests", streams=("LW_LEDGER", "LW_EVENTS"), columns=shown_columns(columns))
    rows, cursor = page(store, source, conditions_of(asked, REQUEST_FILTERS), limit=asked.limit, after=asked.after)
    lent = _lent(store, [row["request"] for row in rows])
    return [row | lent.get(row["request"], _NOT_LENT) for row in rows], cursor


def loads(store: Store, columns: Sequence[str], asked: Asked) -> tuple[list[Row], str]:
    """Return (what nodes loaded, next cursor); filters by the names in LOAD_FILTERS."""
    source = Source(table="loads", streams=("LW_EVENTS",), columns=shown_columns(columns), item="0")
    return page(store, source, conditions_of(asked, LOAD_FILTERS), limit=asked.limit, after=asked.after)


def health(store: Store, columns: Sequence[str], asked: Asked) -> tuple[list[Row], str]:
    """Return (how nodes were, next cursor); filters by the names in HEALTH_FILTERS."""
    source = Source(table="health", streams=("LW_LEDGER", "LW_EVENTS"), columns=shown_columns(columns))
    return page(store, source, conditions_of(asked, HEALTH_FILTERS), limit=asked.limit, after=asked.after)


def events(
    store: Store, columns: Sequence[str], asked: Asked, *, stream: str, subject: str, bodies: bool
) -> tuple[list[Row], str]:
    """Return (messages of one stream as they were stored, next cursor); `subject` is a prefix."""
    raw = ("subject", "headers", "body") if bodies else ("subject",)
    left_out = {"headers", "body"} - set(raw)
    shown = tuple(column for column in shown_columns(columns) if column not in left_out)
    source = Source(table="events", streams=(stream,), columns=shown, item="0", derived=False, raw=raw)
    conditions = conditions_of(asked, EVENT_FILTERS)
    if subject:
        conditions.append(Condition("startsWith(subject, {subject:String})", "subject", subject))
    limit = min(asked.limit, BODIES_MAX) if bodies else asked.limit
    return page(store, source, conditions, limit=limit, after=asked.after)


def stats(store: Store, *, since_ns: int) -> dict[str, list[Row]]:
    """Return counts and quantiles of what was stored since `since_ns`: by kind, by pair of nodes, by outcome and model."""
    since = {"since": since_ns}
    believed = "(stream != 'LW_EVENTS' OR (epoch, seq) NOT IN (SELECT event_epoch, event_seq FROM rejected))"
    return {
        "decisions": store.query(
            "SELECT kind, outcome, reason, toUInt64(sum(repeats_or_one)) AS rows FROM (SELECT kind, outcome, reason, "  # noqa: S608  # ours
            f"greatest(repeats, 1) AS repeats_or_one FROM decisions WHERE at_ns >= {{since:UInt64}} AND {believed} "
            "LIMIT 1 BY stream, epoch, seq, item) GROUP BY kind, outcome, reason ORDER BY kind, outcome, reason LIMIT 1000",
            since,
        ),
        "lending": store.query(
            "SELECT owner, helper, countIf(kind = 'lent') AS lent, countIf(kind = 'answered') AS answered, "  # noqa: S608  # ours
            "countIf(kind = 'returned') AS returned, countIf(kind = 'busy') AS busy, countIf(kind = 'cut_off') AS cut_off "
            f"FROM (SELECT owner, helper, kind FROM decisions WHERE at_ns >= {{since:UInt64}} AND side = 'owner' AND {believed} "
            "LIMIT 1 BY producer, incarnation, pseq) WHERE helper != '' GROUP BY owner, helper ORDER BY owner, helper LIMIT 1000",
            since,
        ),
        "requests": store.query(
            "SELECT owner, model, outcome, helper != '' AS lent, count() AS requests, "  # noqa: S608  # ours
            "toInt64(quantile(0.5)(wait_us)) AS wait_p50_us, toInt64(quantile(0.99)(wait_us)) AS wait_p99_us, "
            "toInt64(quantile(0.5)(service_us)) AS service_p50_us, toInt64(quantile(0.99)(service_us)) AS service_p99_us "
            f"FROM (SELECT * FROM requests WHERE at_ns >= {{since:UInt64}} AND {believed} LIMIT 1 BY owner, request) "
            "GROUP BY owner, model, outcome, lent ORDER BY owner, model, outcome, lent LIMIT 1000",
            since,
        ),
    }


def row_counts(store: Store, tables: Sequence[str]) -> dict[str, int]:
    """Return how many rows each table holds, repetitions that are not merged yet included."""
    found = store.query(
        "SELECT table, toUInt64(sum(rows)) AS rows FROM system.parts "
        "WHERE active AND database = currentDatabase() AND table IN {tables:Array(String)} GROUP BY table",
        {"tables": list(tables)},
    )
    return dict.fromkeys(tables, 0) | {row["table"]: row["rows"] for row in found}


_PLACED: Final = frozenset({"stream", "epoch", "seq", "at_ns", "item"})
_NOT_LENT: Final[dict[str, Any]] = {"lent": 0, "lent_to": "", "lease": "", "link": "", "returned": 0, "cut_off": 0}


def shown_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a row shows beside its place."""
    return tuple(column for column in columns if column not in _PLACED)


def streams_of(side: str) -> tuple[str, ...]:
    """Return the streams whose rows this side says; the master's come from the ledger, all others from facts."""
    if not side:
        return "LW_LEDGER", "LW_EVENTS"
    return ("LW_LEDGER",) if side == "master" else ("LW_EVENTS",)


def conditions_of(asked: Asked, allowed: Sequence[str]) -> list[Condition]:
    """Return what the rows that are asked for have to fulfil; filters are those of `allowed`."""
    model = "owner_model, helper_model" if allowed is DECISION_FILTERS else "model"
    found = [
        Condition(f"{{f_model:String}} IN ({model})", "f_model", asked.filters[column])
        if column == "model"
        else Condition(f"{column} = {{f_{column}:String}}", f"f_{column}", asked.filters[column])
        for column in allowed
        if column in asked.filters
    ]
    if asked.since_ns:
        found.append(Condition("at_ns >= {since_ns:UInt64}", "since_ns", asked.since_ns))
    if asked.until_ns:
        found.append(Condition("at_ns < {until_ns:UInt64}", "until_ns", asked.until_ns))
    return found


def _lent(store: Store, requests: Sequence[str]) -> dict[str, Row]:
    """Return where requests were lent, by request; one that never was is left out."""
    if not requests:
        return {}
    found = store.query(
        "SELECT request, countIf(kind = 'lent') AS lent, argMaxIf(helper, (epoch, seq), kind = 'lent') AS lent_to, "
        "argMaxIf(lease, (epoch, seq), kind = 'lent') AS lease, argMaxIf(link, (epoch, seq), kind = 'lent') AS link, "
        "countIf(kind = 'returned') AS returned, countIf(kind = 'cut_off') AS cut_off FROM ("
        "SELECT request, kind, helper, lease, link, epoch, seq FROM decisions WHERE stream = 'LW_EVENTS' "
        "AND kind IN ('lent', 'returned', 'cut_off') AND request IN {requests:Array(String)} "
        "AND (epoch, seq) NOT IN (SELECT event_epoch, event_seq FROM rejected) "
        "LIMIT 1 BY producer, incarnation, pseq) GROUP BY request",
        {"requests": sorted(set(requests))},
    )
    return {row.pop("request"): row for row in found}

"""What a cluster did, step by step: counts and times over a window, from rows while they are few, else from counts by minute.

From rows an answer is exact: a fact that was sent twice counts once, and one that the master did not believe does not count.
Counts by minute hold every row as it came, are quick whatever the window, and reach back further than the rows do.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from adapters.clickhouse.pages import Row
from adapters.clickhouse.store import Store

POINTS_MAX: Final = 1440
"""Steps of a window."""
ROWS_MAX: Final = 10_000
"""Rows of an answer."""
EXACT_ROWS_MAX: Final = 500_000
"""More rows than this in the window are taken from the counts by minute."""
BELIEVED: Final = "(stream != 'LW_EVENTS' OR (epoch, seq) NOT IN (SELECT event_epoch, event_seq FROM rejected))"


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: from `since_s` to before `until_s`, in steps; a node or model of interest."""

    since_s: int
    until_s: int
    step_s: int
    node: str = ""
    model: str = ""
    known_s: int = (1 << 32) - 1
    """Of what was stored from here on, something may not be in the tables yet."""

    def parameters(self) -> dict[str, object]:
        """Return the values that statements name."""
        said: dict[str, object] = {"since": self.since_s, "until": self.until_s, "step": self.step_s}
        return said | {"node": self.node, "model": self.model, "most": ROWS_MAX}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an answer, and what they were made from."""

    rows: list[Row]
    source: str
    """rows or minutes."""


_DAYS: Final = "day >= toDate(toDateTime({since:UInt32}, 'UTC')) AND day <= toDate(toDateTime({until:UInt32}, 'UTC'))"
IN_ROWS: Final = (
    f"{_DAYS} AND at_ns >= toUInt64({{since:UInt32}}) * 1000000000 AND at_ns < toUInt64({{until:UInt32}}) * 1000000000"
)
_IN_MINUTES: Final = (
    f"{_DAYS} AND toUnixTimestamp(minute) >= {{since:UInt32}} AND toUnixTimestamp(minute) < {{until:UInt32}}"
)
ROW_STEP: Final = "toUInt32(intDiv(at_ns, 1000000000) - intDiv(at_ns, 1000000000) % {step:UInt32})"
_MINUTE_STEP: Final = "toUInt32(toUnixTimestamp(minute) - toUnixTimestamp(minute) % {step:UInt32})"
_STEP_S: Final = "least(t + {step:UInt32}, {until:UInt32}) - greatest(t, {since:UInt32})"
"""How much of a step lies in the window: the first and the last one stand out of it."""
_ONCE: Final = "producer, incarnation, pseq, if(pseq = 0, epoch, 0), if(pseq = 0, seq, 0), item"

_REQUESTS: Final = ("owner", "model", "helper", "outcome", "code")
_REQUEST_SUMS: Final = ("work", "wait_us", "service_us", "tokens_in", "tokens_out")
_DECISIONS: Final = ("side", "kind", "owner", "owner_model", "helper", "outcome", "reason")
_DECISION_SUMS: Final = ("wait_us", "service_us", "load_us", "gain_us")
_ONE: Final = "toUInt64(1)"
_LOADS: Final = ("node", "model", "kind", "cause", "displaced")


class _Source(msgspec.Struct, frozen=True):
    """One table of rows and its counts by minute, with the same columns."""

    table: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]
    candidates: str
    """How many one row stands for."""
    once: str
    """Columns in which two rows are the same one."""
    wanted: str
    """Which rows are of the node and model of interest."""

    def rows(self) -> str:
        """Return the rows of the window, each believed and once."""
        names = ", ".join((*self.keys, *self.sums))
        return (
            f"SELECT {ROW_STEP} AS t, {names}, {self.candidates} AS candidates, toUInt64(1) AS n FROM {self.table} "  # noqa: S608  # names of ours
            f"WHERE {IN_ROWS} AND {BELIEVED} AND {self.wanted} ORDER BY epoch, seq LIMIT 1 BY {self.once}"
        )

    def minutes(self) -> str:
        """Return the counts of the window."""
        names = ", ".join((*self.keys, *self.sums))
        candidates = "candidates" if self.candidates != _ONE else "rows AS candidates"
        return (
            f"SELECT {_MINUTE_STEP} AS t, {names}, {candidates}, rows AS n FROM {self.table}_by_minute "  # noqa: S608  # names of ours
            f"WHERE {_IN_MINUTES} AND {self.wanted}"
        )


_OF_REQUESTS: Final = _Source(
    table="requests",
    keys=_REQUESTS,
    sums=_REQUEST_SUMS,
    candidates=_ONE,
    once="owner, request",
    wanted="({node:String} IN ('', owner) OR {node:String} = helper) AND {model:String} IN ('', model)",
)
_OF_DECISIONS: Final = _Source(
    table="decisions",
    keys=_DECISIONS,
    sums=_DECISION_SUMS,
    candidates="toUInt64(greatest(repeats, 1))",
    once=_ONCE,
    wanted="({node:String} IN ('', owner) OR {node:String} = helper) AND {model:String} IN ('', owner_model)",
)
_OF_LOADS: Final = _Source(
    table="loads",
    keys=_LOADS,
    sums=("load_us",),
    candidates=_ONE,
    once="producer, incarnation, pseq",
    wanted="{node:String} IN ('', node) AND {model:String} IN ('', model)",
)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One question over a window."""

    about: str
    source: _Source
    columns: str
    """What is said of each group."""
    by: tuple[str, ...]
    """Groups beside the step."""
    where: str = "1"


SERIES: Final[dict[str, Series]] = {
    "requests": Series(
        about="requests that ended, by owner, model, outcome, and whether a helper served them",
        source=_OF_REQUESTS,
        by=("owner", "model", "outcome", "lent"),
        columns="owner, model, outcome, helper != '' AS lent, sum(r.n) AS requests",
    ),
    "waits": Series(
        about="how long requests waited from their arrival to the start of their service, or to an end without any",
        source=_OF_REQUESTS,
        by=("owner", "model"),
        columns="owner, model, sum(r.n) AS requests, intDiv(sum(r.wait_us), sum(r.n)) AS wait_mean_us{quantiles:wait_us}",
        where="outcome NOT IN ('rejected', 'orphaned')",  # the one never waited, of the other nobody knows how long
    ),
    "service": Series(
        about="time in service of finished requests, by the node that served them",
        source=_OF_REQUESTS,
        by=("node", "model"),
        columns="if(helper = '', owner, helper) AS node, model, sum(r.n) AS requests, "
        "intDiv(sum(r.service_us), sum(r.n)) AS service_mean_us, sum(r.work) AS work{quantiles:service_us}",
        where="outcome = 'finished'",
    ),
    "tokens": Series(
        about="tokens read and written in finished requests, as far as engines state them",
        source=_OF_REQUESTS,
        by=("node", "model"),
        columns="if(helper = '', owner, helper) AS node, model, sum(r.n) AS requests, sum(r.tokens_in) AS tokens_in, "
        "sum(r.tokens_out) AS tokens_out, "
        "round(sum(r.tokens_out) * 1e6 / greatest(sum(r.service_us), 1), 1) AS out_per_service_s",
        where="outcome = 'finished'",  # only these state tokens; the others' time in service would thin them out
    ),
    "lending": Series(
        about="what was lent over each pair of nodes and how it came back, and leases granted",
        source=_OF_DECISIONS,
        by=("owner", "model", "helper"),
        columns="owner, owner_model AS model, helper, sumIf(r.n, kind = 'lent') AS lent, "
        "sumIf(r.n, kind = 'answered') AS answered, sumIf(r.n, kind = 'returned') AS returned, "
        "sumIf(r.n, kind = 'busy') AS busy, "
        "sumIf(r.n, kind = 'cut_off') AS cut_off, sumIf(r.n, kind = 'relay_refused') AS relay_refused, "
        "sumIf(r.n, kind = 'granted') AS granted, sumIf(r.n, kind = 'cleared') AS cleared, "
        "sumIf(r.gain_us, kind = 'granted') AS gain_us, sumIf(r.service_us, kind = 'answered') AS service_us",
        where="helper != '' AND kind IN ('lent', 'answered', 'returned', 'busy', 'cut_off', 'relay_refused', 'granted', "
        "'cleared')",
    ),
    "helpers": Series(
        about="how often each helper was granted or skipped as a candidate, and why",
        source=_OF_DECISIONS,
        by=("helper", "outcome", "reason"),
        columns="helper, outcome, reason, sum(r.candidates) AS candidates",
        where="kind = 'plan' AND outcome != 'none'",
    ),
    "loads": Series(
        about="models loaded, driven out and brought back by each node",
        source=_OF_LOADS,
        by=("node",),
        # a load that brings back what was driven out is said twice: loaded (cause restore), and restored
        columns="node, sumIf(r.n, kind = 'loaded') AS loads, "
        f"round(sumIf(r.n, kind = 'loaded') * 3600 / ({_STEP_S}), 2) AS loads_per_hour, "
        "sumIf(r.load_us, kind = 'loaded') AS loading_us, sumIf(r.n, kind = 'load_failed') AS failed, "
        "sumIf(r.n, kind = 'unloaded' AND cause = 'borrowed') AS displaced, sumIf(r.n, kind = 'restored') AS restored, "
        "sumIf(r.n, kind = 'restore_cancelled') AS restore_cancelled, "
        "sumIf(r.n, kind = 'loaded' AND cause = 'borrowed') AS for_borrowed",
    ),
}
"""Every plain question by name."""


def series(store: Store, name: str, window: Window) -> Answer:
    """Return the answer to the question `name` over `window`.

    Raises:
        StoreError: ClickHouse refused the query, found it too heavy, or is not there.
    """
    asked = SERIES[name]
    few = rows_in(store, asked.source.table, window) <= EXACT_ROWS_MAX and reaches(store, asked.source.table, window)
    relation = asked.source.rows() if few else asked.source.minutes()
    groups = ", ".join(("t", *asked.by))
    rows = store.query(
        f"SELECT t, {_filled(asked.columns, exact=few)} FROM ({relation}) AS r WHERE {asked.where} "  # noqa: S608  # names of ours
        f"GROUP BY {groups} ORDER BY {groups} LIMIT {{most:UInt32}}",
        window.parameters(),
    )
    return Answer(rows=rows, source="rows" if few else "minutes")


def rows_in(store: Store, table: str, window: Window) -> int:
    """Return how many rows of `table` were counted in `window`, whatever they are about."""
    found = store.query(
        f"SELECT toUInt64(sum(rows)) AS n FROM {table}_by_minute WHERE {_IN_MINUTES}",  # noqa: S608  # names of ours
        window.parameters(),
    )
    return int(found[0]["n"])


def reaches(store: Store, table: str, window: Window) -> bool:
    """Tell whether the rows of `table` reach back as far as what was counted of them in `window`."""
    found = store.query(
        f"SELECT (SELECT minOrNull(day) FROM {table}_by_minute WHERE {_IN_MINUTES}) AS counted, "  # noqa: S608  # names of ours
        f"(SELECT minOrNull(day) FROM {table} WHERE {_DAYS}) AS stored",
        window.parameters(),
    )
    counted, stored = found[0]["counted"], found[0]["stored"]
    return counted is None or (stored is not None and bool(stored <= counted))


_QUANTILES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def _filled(columns: str, *, exact: bool) -> str:
    """Return `columns` with their quantiles: only rows have them."""
    text, mark, rest = columns.partition("{quantiles:")
    if not mark:
        return columns
    column, _, rest = rest.partition("}")
    name = column.removesuffix("_us")
    said = [
        f"toInt64(quantileTDigest({part})(r.{column})) AS {name}_{label}_us" if exact else f"NULL AS {name}_{label}_us"
        for part, label in _QUANTILES
    ]
    said.append(f"max(r.{column}) AS {name}_max_us" if exact else f"NULL AS {name}_max_us")
    return f"{text}, {', '.join(said)}{rest}"


PING_PONG_S: Final = 300
"""A model that is loaded again so soon after it had to leave went to and fro."""


def ping_pong(store: Store, window: Window) -> Mapping[tuple[int, str], int]:
    """Return how many models came back that had to leave shortly before, for whatever reason, by step and node."""
    rows = store.query(_PING_PONG, window.parameters() | {"soon": PING_PONG_S})
    return {(row["t"], row["node"]): row["n"] for row in rows}


_BACK: Final = f"""\
SELECT * FROM loads
WHERE {IN_ROWS} AND {BELIEVED} AND kind = 'loaded' AND {{node:String}} IN ('', node) AND {{model:String}} IN ('', model)
ORDER BY epoch, seq LIMIT 1 BY producer, incarnation, pseq"""  # noqa: S608  # names of ours
_GONE: Final = f"""\
SELECT node, model, at_ns AS gone_ns FROM loads
WHERE day >= toDate(toDateTime(greatest({{since:UInt32}}, 86400) - 86400, 'UTC'))
  AND day <= toDate(toDateTime({{until:UInt32}}, 'UTC'))
  AND kind = 'unloaded' AND {BELIEVED}
ORDER BY epoch, seq LIMIT 1 BY producer, incarnation, pseq"""  # noqa: S608  # names of ours
_PING_PONG: Final = f"""\
SELECT {ROW_STEP} AS t, node, count() AS n FROM ({_BACK}) AS back
ASOF JOIN ({_GONE}) AS gone ON back.node = gone.node AND back.model = gone.model AND back.at_ns > gone.gone_ns
WHERE back.at_ns - gone.gone_ns <= toUInt64({{soon:UInt32}}) * 1000000000 GROUP BY t, node
LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours


def loads(store: Store, window: Window) -> Answer:
    """Return the answer about loads, with the loads that went to and fro."""
    answer = series(store, "loads", window)
    to_and_fro = ping_pong(store, window) if answer.source == "rows" else None
    rows = [
        row | {"ping_pong": None if to_and_fro is None else to_and_fro.get((row["t"], row["node"]), 0)}
        for row in answer.rows
    ]
    return Answer(rows=rows, source=answer.source)


Question = Callable[[Store, Window], Answer]

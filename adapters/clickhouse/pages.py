"""Pages of rows over several streams, with a cursor that misses nothing.

The streams of a table are projected independently of each other: a row of one may come in later than a row of another with a
newer stamp. So a cursor holds a place in each stream, not a time, and a page takes a prefix of what follows in each.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from adapters.clickhouse.newest import NO_BOUND, Bound, places
from adapters.clickhouse.store import Store
from domain.errors import CallerError

PAGE_ROWS_MAX: Final = 1000
_LETTERS: Final = {"LW_EVENTS": "e", "LW_LEDGER": "l", "LW_CONTROL": "c"}
_STREAMS: Final = {letter: stream for stream, letter in _LETTERS.items()}
_PLACE: Final = re.compile(r"([elc])([0-9]{1,9})\.([0-9]{1,19})\.([0-9]{1,9})")

Place = tuple[int, int, int]
"""Epoch, sequence, item."""
_START: Final[Place] = (0, 0, 0)
Row = dict[str, Any]


class BadQueryError(CallerError):
    """A query's parameter breaks a rule."""

    def __init__(self, param: str, message: str) -> None:
        self.param = param
        super().__init__(message)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A table that is read page by page."""

    table: str
    streams: tuple[str, ...]
    columns: tuple[str, ...]
    """What a row shows; without stream, epoch, seq and at_ns, which every row has."""
    item: str = "item"
    """Expression that orders the rows of one message."""
    derived: bool = True
    """Made from facts: leave out what the master did not believe, and facts that were sent twice."""
    raw: tuple[str, ...] = ()
    """Columns that may hold any bytes."""


class Condition(msgspec.Struct, frozen=True):
    """One filter: SQL of ours that names its parameter, and the caller's value."""

    sql: str
    name: str
    value: object


def parse_cursor(text: str) -> dict[str, Place]:
    """Return the place in each stream that a cursor stands for.

    Raises:
        BadQueryError: `text` is no cursor.
    """
    places: dict[str, Place] = {}
    for part in filter(None, text.split("-")):
        found = _PLACE.fullmatch(part)
        if found is None:
            raise BadQueryError("after", f"after: must be the `next` of an earlier answer, got {text[:80]!r}")
        places[_STREAMS[found[1]]] = int(found[2]), min(int(found[3]), (1 << 63) - 1), int(found[4])
    return places


def show_cursor(places: Mapping[str, Place]) -> str:
    """Return the cursor of these places."""
    return "-".join(f"{_LETTERS[stream]}{'.'.join(map(str, places[stream]))}" for stream in sorted(places))


def page(
    store: Store, source: Source, conditions: Sequence[Condition], *, limit: int, after: str | None
) -> tuple[list[Row], str]:
    """Return (rows by time, cursor of what follows them).

    `after`: a cursor; None asks for the newest rows. The rows of one message stand together and in their order.

    Raises:
        BadQueryError: `after` is no cursor.
        StoreError: ClickHouse refused the query, or is not there.
    """
    places = parse_cursor(after or "")
    found = {
        stream: _rows(store, source, stream, conditions, limit, None if after is None else places.get(stream, _START))
        for stream in source.streams
    }
    if after is None:
        places = {stream: _place(rows[-1]) for stream, rows in found.items() if rows}
        return merged(found)[-limit:], show_cursor(places)
    taken = merged(found)[:limit]
    places |= {row["stream"]: _place(row) for row in taken}
    return taken, show_cursor(places)


def merged(found: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return the rows of all streams by time, those of each stream in their given order.

    A stamp lower than the one before it in its stream (a stepped clock) counts as that one.
    """
    timed: list[tuple[int, str, int, Row]] = []
    for stream, rows in found.items():
        newest = 0
        for index, row in enumerate(rows):
            newest = max(newest, row["at_ns"])
            timed.append((newest, stream, index, row))
    return [row for *_, row in sorted(timed, key=lambda entry: entry[:3])]


RARE: Final = frozenset({"f_request", "f_lease", "until_ns"})
"""Conditions that few rows fulfil, or old ones alone."""


def _rows(
    store: Store, source: Source, stream: str, conditions: Sequence[Condition], limit: int, after: Place | None
) -> list[Row]:
    """Return the next `limit` rows of one stream after a place, or the newest ones, in order."""
    if after is not None:
        return _asked(store, source, stream, conditions, limit, after, NO_BOUND)
    rare = any(condition.name in RARE for condition in conditions)
    rows: list[Row] = []
    bound = NO_BOUND
    for bound in store.newest.bounds(source.table, stream, rare=rare):
        rows = _asked(store, source, stream, conditions, limit, None, bound)
        if len(rows) >= limit:  # of rows that stand there twice one was left out: then it is asked again, for nothing
            break
    if not rare:
        store.newest.saw(source.table, stream, [_place(row)[:2] for row in rows[-1:]], bound)
    return rows


def _asked(
    store: Store,
    source: Source,
    stream: str,
    conditions: Sequence[Condition],
    limit: int,
    after: Place | None,
    bound: Bound,
) -> list[Row]:
    where = ["stream = {stream:String}", *filter(None, [bound.sql]), *(condition.sql for condition in conditions)]
    parameters: dict[str, object] = {"stream": stream, "limit": limit, **bound.parameters}
    parameters |= {condition.name: condition.value for condition in conditions}
    if after is not None:
        # the first is for the primary index, the second is the rule
        where.append(places(">=", "{epoch:UInt32}", "{seq:UInt64}"))
        where.append(f"(epoch, seq, toUInt32({source.item})) > ({{epoch:UInt32}}, {{seq:UInt64}}, {{item:UInt32}})")
        parameters |= dict(zip(("epoch", "seq", "item"), after, strict=True))
    way = "DESC" if after is None else "ASC"
    once = _SAID if source.derived and stream == "LW_EVENTS" else _PLACED
    columns = ", ".join(("stream", "epoch", "seq", "at_ns", f"toUInt32({source.item}) AS item", *source.columns))
    refused = believed(stream) if source.derived else []
    # planning costs more than reading here: PREWHERE needs no planner to find it, and a query around this one would plan each
    # column again, so that what stands there twice is left out below; every name in this text is ours
    statement = (
        f"SELECT {columns} FROM {source.table} PREWHERE {' AND '.join(where)} {' '.join(f'WHERE {each}' for each in refused)} "  # noqa: S608
        f"ORDER BY stream {way}, epoch {way}, seq {way}, item {way} LIMIT {{limit:UInt32}}{'' if bound is NO_BOUND else _ALONE}"
    )
    return sorted(_first_of(store.query(statement, parameters, raw=source.raw), once), key=_place)


_ALONE: Final = " SETTINGS max_threads = 1"
"""A few granules are read sooner by one thread than shared out among several (9.9 ms instead of 11.6)."""
_PLACED: Final = itemgetter("epoch", "seq", "item")
_SAID: Final = itemgetter("producer", "incarnation", "pseq", "item")
"""What tells the rows of a message apart from others, and a fact that was sent twice from other facts."""


def _first_of(rows: Sequence[Row], once: Callable[[Row], object]) -> list[Row]:
    """Return the first row of each that `once` tells apart, in order."""
    found: dict[object, Row] = {}
    for row in rows:
        found.setdefault(once(row), row)
    return list(found.values())


def believed(stream: str) -> list[str]:
    """Return the condition that leaves out rows made from facts of `stream` that the master did not believe."""
    return ["(epoch, seq) NOT IN (SELECT event_epoch, event_seq FROM rejected)"] if stream == "LW_EVENTS" else []


def _place(row: Row) -> Place:
    return row["epoch"], row["seq"], row["item"]

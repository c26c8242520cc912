"""The decision log folded: the newest runs of rows that say the same, each as one row with how many it stands for."""

from collections.abc import Sequence

from adapters.clickhouse.pages import Place, Row, believed, merged
from adapters.clickhouse.queries import DECISION_FILTERS, Asked, conditions_of, shown_columns, streams_of
from adapters.clickhouse.store import Store

SCANNED_MAX = 20_000
"""Newest rows of a stream that are looked at: a run that reaches further back counts from there."""


def folded(store: Store, columns: Sequence[str], folded_by: Sequence[str], asked: Asked) -> list[Row]:
    """Return the newest runs, each as its newest row, in order of time.

    With `rows`, how many there are, and `first_at_ns`, the stamp of the first. Filters are those of the decision log.
    """
    streams = streams_of(asked.filters.get("side", ""))
    found = {stream: _of_stream(store, stream, columns, folded_by, asked) for stream in streams}
    return merged(found)[-asked.limit :]


def _of_stream(store: Store, stream: str, columns: Sequence[str], folded_by: Sequence[str], asked: Asked) -> list[Row]:
    runs = _runs(store, stream, folded_by, asked)
    if not runs:
        return []
    # the window above has few columns, so that it is quick; all of them are read of the runs' newest rows alone
    names = ", ".join(("stream", "epoch", "seq", "at_ns", "item", *shown_columns(columns)))
    rows = store.query(
        f"SELECT {names} FROM decisions WHERE stream = {{stream:String}} AND seq IN {{seqs:Array(UInt64)}} "  # noqa: S608  # names of ours
        "LIMIT 1 BY epoch, seq, item",
        {"stream": stream, "seqs": sorted({place[1] for place in runs})},
    )
    found = [row | runs[_place(row)] for row in rows if _place(row) in runs]
    return sorted(found, key=_place)


def _runs(store: Store, stream: str, folded_by: Sequence[str], asked: Asked) -> dict[Place, Row]:
    """Return (rows, first_at_ns) of the newest runs, by the place of the newest row of each."""
    conditions = conditions_of(asked, DECISION_FILTERS)
    where = " AND ".join(["stream = {stream:String}", *(condition.sql for condition in conditions), *believed(stream)])
    parameters: dict[str, object] = {"stream": stream, "limit": asked.limit, "scanned": SCANNED_MAX}
    parameters |= {condition.name: condition.value for condition in conditions}
    once = "producer, incarnation, pseq, item" if stream == "LW_EVENTS" else "epoch, seq, item"
    run = ", ".join(("epoch", "fold_id", *folded_by))
    # every name in this text is ours; what callers say stands only in `parameters`
    statement = (
        f"SELECT epoch, max((r.seq, r.item)) AS newest, newest.1 AS seq, newest.2 AS item, toUInt64(count()) AS rows, "  # noqa: S608  # names of ours
        f"min(r.at_ns) AS first_at_ns FROM (SELECT * FROM ("
        f"SELECT seq, at_ns, item, producer, incarnation, pseq, {run} FROM decisions WHERE {where} "
        "ORDER BY stream DESC, epoch DESC, seq DESC, item DESC LIMIT {scanned:UInt32}) "
        f"LIMIT 1 BY {once}) AS r GROUP BY {run} ORDER BY epoch DESC, newest DESC LIMIT {{limit:UInt32}}"
    )
    return {
        _place(row): {"rows": row["rows"], "first_at_ns": row["first_at_ns"]}
        for row in store.query(statement, parameters)
    }


def _place(row: Row) -> Place:
    return row["epoch"], row["seq"], row["item"]

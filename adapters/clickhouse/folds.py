"""The decision log folded: the newest runs of rows that say the same, each as one row with how many it stands for."""

from collections.abc import Sequence

from adapters.clickhouse.newest import NO_BOUND, Bound, places
from adapters.clickhouse.pages import RARE, Place, Row, believed, merged
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
        f"SELECT {names} FROM decisions PREWHERE stream = {{stream:String}} "  # noqa: S608  # names of ours
        f"AND {places('>=', '{epoch:UInt32}', '{seq:UInt64}')} AND seq IN {{seqs:Array(UInt64)}}",
        {
            "stream": stream,
            "epoch": min(runs)[0],
            "seq": min(runs)[1],
            "seqs": sorted({place[1] for place in runs}),
        },
    )
    found = {_place(row): row for row in rows}  # a row may stand there twice
    return [found[place] | runs[place] for place in sorted(runs) if place in found]


def _runs(store: Store, stream: str, folded_by: Sequence[str], asked: Asked) -> dict[Place, Row]:
    """Return (rows, first_at_ns) of the newest runs, by the place of the newest row of each."""
    rare = any(condition.name in RARE for condition in conditions_of(asked, DECISION_FILTERS))
    found: list[Row] = []
    bound = NO_BOUND
    for bound in store.newest.bounds("decisions", stream, rare=rare):
        found = _asked(store, stream, folded_by, asked, bound)
        if found and found[0]["scanned"] >= SCANNED_MAX:
            break
    if not rare:
        store.newest.saw("decisions", stream, [_place(row)[:2] for row in found[:1]], bound)
    return {_place(row): {"rows": row["rows"], "first_at_ns": row["first_at_ns"]} for row in found}


def _asked(store: Store, stream: str, folded_by: Sequence[str], asked: Asked, bound: Bound) -> list[Row]:
    """Return the newest runs, newest first; each with `scanned`, how many rows all runs stand for."""
    conditions = conditions_of(asked, DECISION_FILTERS)
    said = ["stream = {stream:String}", *filter(None, [bound.sql]), *(condition.sql for condition in conditions)]
    where = " WHERE ".join([" AND ".join(said), *believed(stream)])
    parameters: dict[str, object] = {"stream": stream, "limit": asked.limit, "scanned": SCANNED_MAX}
    parameters |= bound.parameters | {condition.name: condition.value for condition in conditions}
    once = "producer, incarnation, pseq, item" if stream == "LW_EVENTS" else "epoch, seq, item"
    its = ", producer, incarnation, pseq" if stream == "LW_EVENTS" else ""
    # a group's key of many columns takes twice the time of one hash; runs that begin in one message have to differ in it alone
    keys = ", ".join(folded_by)
    # every name in this text is ours; what callers say stands only in `parameters`
    statement = (
        f"SELECT epoch, max((r.seq, r.item)) AS newest, newest.1 AS seq, newest.2 AS item, toUInt64(count()) AS rows, "  # noqa: S608  # names of ours
        f"min(r.at_ns) AS first_at_ns, toUInt64(sum(count()) OVER ()) AS scanned FROM (SELECT * FROM ("
        f"SELECT seq, at_ns, item, epoch, fold_id, sipHash64({keys}) AS said{its} FROM decisions PREWHERE {where} "
        "ORDER BY stream DESC, epoch DESC, seq DESC, item DESC LIMIT {scanned:UInt32}) "
        f"LIMIT 1 BY {once}) AS r GROUP BY epoch, fold_id, said ORDER BY epoch DESC, newest DESC LIMIT {{limit:UInt32}}"
    )
    return store.query(statement, parameters)


def _place(row: Row) -> Place:
    return row["epoch"], row["seq"], row["item"]

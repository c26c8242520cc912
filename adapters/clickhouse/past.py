"""Stored messages out of ClickHouse for questions about history. What callers say reaches it as typed parameters only."""

from collections.abc import Sequence
from typing import Any, Final

from adapters.clickhouse.pages import believed
from adapters.clickhouse.store import Store
from domain.ports import StoredMessage

_RAW: Final = ("subject", "headers", "body")


def messages(
    store: Store,
    stream: str,
    *,
    since_ns: int,
    until_ns: int,
    needles: Sequence[str],
    tags: Sequence[str],
    who: Sequence[str],
    limit: int,
) -> list[StoredMessage]:
    """Return messages of `stream` in order, without facts that the master did not believe.

    With stamps from `since_ns` up to `until_ns` (0: any), each of `needles` in the body, one of `tags`, said by one of `who`.
    """
    where = ["stream = {stream:String}", "at_ns >= {since:UInt64}", _FROM_DAY]
    asked: dict[str, object] = {"stream": stream, "since": max(0, since_ns), "limit": limit}
    if until_ns:
        where.append("at_ns <= {until:UInt64}")
        asked["until"] = until_ns
    if tags:
        where.append("event IN {tags:Array(String)}")
        asked["tags"] = list(tags)
    if who:
        where.append("producer IN {who:Array(String)}")
        asked["who"] = list(who)
    for number, needle in enumerate(needles):
        where.append(f"position(body, {{needle{number}:String}}) > 0")
        asked[f"needle{number}"] = needle
    where += believed(stream)
    # every name in this text is ours; what callers say stands only in `asked`
    statement = (
        f"SELECT seq, at_ns, subject, headers, body FROM events WHERE {' AND '.join(where)} "  # noqa: S608
        "ORDER BY epoch, seq LIMIT 1 BY epoch, seq LIMIT {limit:UInt32}"
    )
    return [_message(row) for row in store.query(statement, asked, raw=_RAW)]


_FROM_DAY: Final = "day >= toDate(toDateTime(intDiv({since:UInt64}, 1000000000), 'UTC'))"
"""Lets whole partitions be passed over."""


def commit(store: Store, version: int) -> StoredMessage | None:
    """Return the newest stored commit of a version; None if there is none."""
    rows = store.query(
        "SELECT seq, at_ns, subject, headers, body FROM events WHERE stream = 'LW_LEDGER' AND seq = {version:UInt64} "
        "ORDER BY epoch DESC LIMIT 1",
        {"version": version},
        raw=_RAW,
    )
    return _message(rows[0]) if rows else None


def last_plan(store: Store, owner: str, model: str) -> int | None:
    """Return the version of the newest commit that planned an owner's queue; None if none is kept."""
    rows = store.query(
        "SELECT seq FROM decisions WHERE stream = 'LW_LEDGER' AND kind = 'plan' AND owner = {owner:String} "
        "AND owner_model = {model:String} ORDER BY stream DESC, epoch DESC, seq DESC LIMIT 1",
        {"owner": owner, "model": model},
    )
    return int(rows[0]["seq"]) if rows else None


def span(store: Store, column: str, value: str, *, since_ns: int = 0) -> tuple[int, int, int, bool] | None:
    """Return (first stamp, last stamp, longest time it had waited by then in ns, whether it has ended), from rows about it.

    None if there is no row. `column`: request or lease. `since_ns`: there is none before.
    """
    assert column in {"request", "lease"}, column
    said = store.query(
        "SELECT toUInt64(count()) AS rows, min(at_ns) AS first, max(at_ns) AS last, "  # noqa: S608  # ours
        f"countIf(kind = 'cleared') AS ended, max(wait_us) AS waited FROM decisions WHERE {column} = {{value:String}} "
        f"AND at_ns >= {{since:UInt64}} AND {_FROM_DAY}",
        {"value": value, "since": since_ns},
    )[0]
    rows = (
        [(said["first"], said["last"], said["waited"], column == "lease" and said["ended"] > 0)] if said["rows"] else []
    )
    if column == "request":
        ends = store.query(
            "SELECT at_ns, wait_us + service_us AS took FROM requests WHERE request = {value:String} ORDER BY at_ns",
            {"value": value},
        )
        rows += [(row["at_ns"], row["at_ns"], row["took"], True) for row in ends]
    if not rows:
        return None
    waited_ns = max(0, *(waited for _, _, waited, _ in rows)) * 1000
    return min(row[0] for row in rows), max(row[1] for row in rows), waited_ns, any(row[3] for row in rows)


def kept(store: Store, stream: str) -> tuple[int, int, int]:
    """Return (first sequence, last sequence, first stamp) of a stream's newest life; zeros if nothing of it is there."""
    rows: list[dict[str, Any]] = store.query(
        "SELECT min(seq) AS first, max(seq) AS last, min(at_ns) AS first_ns FROM events WHERE stream = {stream:String} "
        "AND epoch = (SELECT max(epoch) FROM events WHERE stream = {stream:String})",
        {"stream": stream},
    )
    return (rows[0]["first"], rows[0]["last"], rows[0]["first_ns"]) if rows else (0, 0, 0)


def _message(row: dict[str, Any]) -> StoredMessage:
    subject = row["subject"].decode("utf-8", "replace")
    return StoredMessage(row["seq"], row["at_ns"], subject, row["headers"], row["body"])

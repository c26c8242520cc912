"""Stored messages out of the archive: the raw bytes of LW_EVENTS, LW_CONTROL and LW_LEDGER, in the order of their streams.

Where a stream lost its tail or was made anew, the archive holds both lives of it; read is what the newest life is made of.
"""

from typing import Final

import msgspec

from adapters.clickhouse.store import Store

PAGE_MAX: Final = 5000
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What the archive holds of a stream; `first` > `last` if nothing."""

    first: int
    last: int


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message; over HTTP its bytes are base64."""

    seq: int
    stamp_ns: int
    subject: str
    headers: bytes
    body: bytes


def reach(store: Store, stream: str) -> Reach:
    """Return what the archive holds of the newest life of `stream`."""
    epochs = store.query(
        "SELECT epoch, max(seq) AS newest FROM events WHERE stream = {stream:String} GROUP BY epoch ORDER BY epoch DESC LIMIT 1",
        {"stream": stream},
    )
    if not epochs:
        return Reach(first=1, last=0)
    newest = int(epochs[0]["newest"])
    oldest = store.query(
        "SELECT min(seq) AS oldest FROM events WHERE stream = {stream:String} AND seq <= {newest:UInt64}",
        {"stream": stream, "newest": newest},
    )
    return Reach(first=int(oldest[0]["oldest"]), last=newest)


def messages(store: Store, stream: str, after: int, limit: int) -> list[Message]:
    """Return the messages after a sequence, at most `limit` of them and no more than some megabytes, the first one always."""
    rows = store.query(
        "SELECT seq, at_ns, subject, headers, body FROM events WHERE stream = {stream:String} AND seq > {after:UInt64} "
        "AND seq <= {after:UInt64} + {limit:UInt32} ORDER BY seq, epoch DESC LIMIT 1 BY seq",
        {"stream": stream, "after": after, "limit": min(limit, PAGE_MAX)},
        raw=("subject", "headers", "body"),
    )
    found: list[Message] = []
    size = 0
    for row in rows:
        size += len(row["headers"]) + len(row["body"])
        if found and size > PAGE_BYTES_MAX:
            break
        subject = row["subject"].decode("utf-8", "replace")
        found.append(
            Message(
                seq=int(row["seq"]),
                stamp_ns=int(row["at_ns"]),
                subject=subject,
                headers=row["headers"],
                body=row["body"],
            )
        )
    return found

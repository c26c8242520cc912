"""What is known of when nodes were heard of and what they served: the facts from which idle steps are told from unknown ones."""

from typing import Final

import msgspec

from adapters.clickhouse.newest import places
from adapters.clickhouse.pages import BadQueryError, Row
from adapters.clickhouse.store import Store
from adapters.clickhouse.telemetry import BELIEVED, IN_ROWS, Window
from adapters.times import utc

_LOOK_BACK_S: Final = 86_400
"""A request that started longer than this before the window, and has not ended, is not seen."""
FACTS_MAX: Final = 200_000
"""Of each kind that one answer is made from."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a window; times are nanoseconds."""

    models: list[Row]
    """node, model: what each node registered with."""
    words: list[Row]
    """node, at_ns, good, why: the newest word about each node before the window, and every one in it; `why` names one that is
    not good."""
    served: list[Row]
    """node, model, from_ns, to_ns: requests that ran; to_ns is 0 while one has not ended."""
    lives: list[Row]
    """node, at_ns: when a process of the node began or ended; nothing goes on running beyond that."""
    gone: list[Row]
    """from_ns, to_ns: times of which messages are in no table; to_ns is 0 if nothing has come after them."""


def seen(store: Store, window: Window) -> Seen:
    """Return what is known.

    Raises:
        BadQueryError: there is more than one answer is made from; with a part of it somebody would be called idle who was not.
        StoreError: ClickHouse refused a query, found it too heavy, or is not there.
    """
    back = max(0, window.since_s - _LOOK_BACK_S)
    said = window.parameters() | {"back": back, "most": FACTS_MAX + 1}
    models, words, served, lives = (store.query(statement, said) for statement in (_MODELS, _WORDS, _SERVED, _LIVES))
    if max(len(models), len(words), len(served), len(lives)) > FACTS_MAX:
        rule = (
            f"must leave no more than {FACTS_MAX} requests or words of health in the window, or one node be asked for"
        )
        raise BadQueryError("from", f"from: {rule}, got {utc(window.since_s * 10**9, 'seconds')}")
    return Seen(models=models, words=words, served=served, lives=lives, gone=gone(store))


def gone(store: Store) -> list[Row]:
    """Return the times of which messages are in no table: between what came before a gap and what came after it."""
    return [store.query(_EDGES, gap)[0] for gap in store.query(_GAPS)]


_GAPS: Final = """\
SELECT stream, epoch, first_seq AS first, last_seq AS last FROM gaps FINAL WHERE stream IN ('LW_EVENTS', 'LW_LEDGER')
ORDER BY seen_ns DESC LIMIT 100"""
_OF_GAP: Final = "SELECT at_ns FROM events WHERE stream = {stream:String} AND"
_BEFORE: Final = places("<", "{epoch:UInt32}", "{first:UInt64}")
_AFTER: Final = places(">", "{epoch:UInt32}", "{last:UInt64}")
_EDGES: Final = f"""\
SELECT
  ifNull(({_OF_GAP} {_BEFORE} ORDER BY stream DESC, epoch DESC, seq DESC LIMIT 1), 0) AS from_ns,
  ifNull(({_OF_GAP} {_AFTER} ORDER BY stream, epoch, seq LIMIT 1), 0) AS to_ns"""


_OF_NODE: Final = "{node:String} IN ('', node)"
_OF_MODEL: Final = "{model:String} IN ('', model)"

_MODELS: Final = f"""\
SELECT node, model FROM (
  SELECT producer AS node, arrayJoin(arrayMap(one -> JSONExtractString(one, 'id'),
    JSONExtractArrayRaw(argMax(body, (epoch, seq)), 'data', 'models'))) AS model
  FROM events
  WHERE stream = 'LW_EVENTS' AND event = 'status.registered' AND {BELIEVED}
    AND at_ns < toUInt64({{until:UInt32}}) * 1000000000
  GROUP BY producer
) WHERE {_OF_NODE} AND {_OF_MODEL} ORDER BY node, model LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours

_GOOD: Final = """\
multiIf(kind = 'changed', state IN ('healthy', 'recovered'), kind IN ('heartbeat_missed', 'draining', 'stopped'), 0, 1)"""
_WHY: Final = f"if({_GOOD}, '', if(kind = 'changed', state, kind))"

_WORDS: Final = f"""\
SELECT node, at_ns, good, why FROM (
  SELECT node, max(h.at_ns) AS at_ns, argMax({_GOOD}, (h.at_ns, h.stream, h.seq)) AS good,
    argMax({_WHY}, (h.at_ns, h.stream, h.seq)) AS why FROM health AS h
  WHERE h.at_ns < toUInt64({{since:UInt32}}) * 1000000000 AND kind != 'breaker' AND {BELIEVED} GROUP BY node
  UNION ALL
  SELECT node, at_ns, {_GOOD} AS good, {_WHY} AS why FROM health WHERE {IN_ROWS} AND kind != 'breaker' AND {BELIEVED}
  ORDER BY at_ns LIMIT {{most:UInt32}}
) WHERE {_OF_NODE} ORDER BY node, at_ns"""  # noqa: S608  # names of ours

_SPAN: Final = """\
day >= toDate(toDateTime({back:UInt32}, 'UTC')) AND at_ns >= toUInt64({back:UInt32}) * 1000000000"""

_LIVES: Final = f"""\
SELECT node, at_ns FROM health
WHERE {_SPAN} AND at_ns < toUInt64({{until:UInt32}}) * 1000000000 AND kind IN ('registered', 'stopped')
  AND {_OF_NODE} AND {BELIEVED}
ORDER BY node, at_ns LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours

_SERVED: Final = f"""\
SELECT node, model, from_ns, to_ns FROM (
  SELECT owner AS node, model, toInt64(at_ns) - 1000 * service_us AS from_ns, toInt64(at_ns) AS to_ns FROM requests
  WHERE {_SPAN} AND helper = '' AND service_us > 0 AND {BELIEVED}
  ORDER BY epoch, seq LIMIT 1 BY owner, request
  UNION ALL
  SELECT producer AS node, JSONExtractString(body, 'data', 'model') AS model,
    toInt64(at_ns) - 1000 * JSONExtractInt(body, 'data', 'service_us') AS from_ns, toInt64(at_ns) AS to_ns FROM events
  WHERE {_SPAN} AND stream = 'LW_EVENTS' AND event = 'borrow.finished' AND {BELIEVED}
  ORDER BY epoch, seq LIMIT 1 BY producer, incarnation, pseq
  UNION ALL
  SELECT producer AS node, JSONExtractString(body, 'data', 'model') AS model, toInt64(at_ns) AS from_ns, toInt64(0) AS to_ns
  FROM events
  WHERE {_SPAN} AND stream = 'LW_EVENTS' AND event = 'queue.started' AND {BELIEVED}
    AND JSONExtractString(body, 'data', 'request') NOT IN (
      SELECT request FROM requests WHERE {_SPAN} AND outcome != 'orphaned')
  UNION ALL
  SELECT producer AS node, JSONExtractString(body, 'data', 'model') AS model, toInt64(at_ns) AS from_ns, toInt64(0) AS to_ns
  FROM events
  WHERE {_SPAN} AND stream = 'LW_EVENTS' AND event = 'borrow.started' AND {BELIEVED}
    AND (producer, JSONExtractString(body, 'data', 'request')) NOT IN (
      SELECT producer, JSONExtractString(body, 'data', 'request') FROM events
      WHERE {_SPAN} AND stream = 'LW_EVENTS' AND event = 'borrow.finished')
)
WHERE {_OF_NODE} AND {_OF_MODEL} AND from_ns < toUInt64({{until:UInt32}}) * 1000000000
  AND (to_ns = 0 OR to_ns > toUInt64({{since:UInt32}}) * 1000000000)
ORDER BY node, model, from_ns
LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours

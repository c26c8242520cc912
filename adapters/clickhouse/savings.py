"""What lending saved: the backlog that a plan predicted the owner alone would need, against how long it took with helpers.

Of each owner, model and step, the plan counts that led to a lease and had the most to do. It recorded what the owner alone would
need for what it held and ran (`drain_us`); what it had lent by then would stand in its queue as well, one job each (`home_us` is
both). Measured is the time from that plan to the end of the last request of that backlog. While one of them has not ended nothing
is measured.

Which requests these are is what the commit had read: none of them had ended by its `hi`, and of all such requests they are the
first to come, as many as the plan counted. Stamps alone cannot tell: an end is stored later than it happened, so that the arrival
reckoned back from it lies after a plan that was made at once.

A backlog that lasts over several steps has a plan in each. It counts once: of plans whose measured times overlap, the one with
the most to do alone; the others say in which step it is. So what was saved may be added up.

What was predicted may be wrong: `home_job_us` is what the plan took one request to need at the owner, `owner_service_us` what
those that the owner served did need.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from adapters.clickhouse.pages import Row
from adapters.clickhouse.store import Store
from adapters.clickhouse.telemetry import BELIEVED, IN_ROWS, ROW_STEP, Answer, Window

_ENDS_WITHIN_S: Final = 6 * 3600
"""Requests that end later than this after the window are taken for open."""
_BEFORE_S: Final = 3600
"""What the first plan of a window had before it, lends and facts, is looked for so far back."""
_STORED_WITHIN_S: Final = 5
"""An end is stored at most so long after it happened; one that comes later leaves its backlog unmeasured. Not longer: while one
of the backlog still runs, what came so soon after the plan and has ended is taken for it."""
_S_MAX: Final = (1 << 32) - 1
"""What a column of type DateTime holds."""

Restarts = Mapping[str, Sequence[int]]
"""Owner -> when its processes began, in nanoseconds."""


def savings(store: Store, window: Window) -> Answer:
    """Return what lending saved, by step, owner and model; only where a plan with leases was priced.

    Raises:
        StoreError: ClickHouse refused the query, found it too heavy, or is not there.
    """
    span = {"back": max(0, window.since_s - _BEFORE_S), "ends": min(_S_MAX, window.until_s + _ENDS_WITHIN_S)}
    later = window.parameters() | span
    restarts: dict[str, list[int]] = {}
    for began in store.query(_RESTARTS, later):
        restarts.setdefault(began["node"], []).append(began["at_ns"])
    rows = [_judged(row, restarts) for row in store.query(_STATEMENT, later)]
    _count_once(rows)
    return Answer(rows=rows, source="rows")


def _count_once(rows: list[Row]) -> None:
    """Leave out what was saved where a greater backlog of the same queue, in the same time, says it already."""
    kept: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for row in sorted(rows, key=lambda row: (-row["home_us"], row["t"])):
        begin_ns, measured_us = row.pop("planned_ns"), row["measured_us"]
        row["counted_in"] = row["t"]
        if measured_us is None or not row["lent"]:
            continue
        spans = kept.setdefault((row["owner"], row["model"]), [])
        end_ns = begin_ns + 1000 * measured_us
        within = next((t for t, begin, end in spans if begin_ns < end and begin < end_ns), None)
        if within is None:
            spans.append((row["t"], begin_ns, end_ns))
        else:
            row |= {"counted_in": within, "saved_us": None, "saved_share": None}


def _judged(row: Row, restarts: Restarts) -> Row:
    """Return a row with what was saved, if all that the plan saw has ended and when it did is known."""
    late, lent, planned_ns = row.pop("late"), row["lent"], row["planned_ns"]
    end_ns = planned_ns + 1000 * row["measured_us"]
    # a process that ended took its backlog with it; an end from a spool is stamped when the bus was back
    lost = any(planned_ns < at_ns <= end_ns for at_ns in restarts.get(row["owner"], ()))
    measured = row["measured_us"] if row["ended"] >= row["backlog"] and not late and not lost else None
    # who left, failed or expired would not have been served by the owner alone either
    home_us = row["home_us"] - row["unfinished"] * max(0, row["home_job_us"])
    saved = None if measured is None else home_us - measured if lent else 0
    return row | {
        "measured_us": measured,
        "saved_us": saved,
        "saved_share": None if saved is None or home_us <= 0 else round(saved / home_us, 4),
    }


_ALONE: Final = "drain_us + owner_out * greatest(owner_job_us, 0)"
_SPAN: Final = """\
day >= toDate(toDateTime({back:UInt32}, 'UTC')) AND day <= toDate(toDateTime({ends:UInt32}, 'UTC'))
    AND at_ns >= toUInt64({back:UInt32}) * 1000000000 AND at_ns < toUInt64({ends:UInt32}) * 1000000000"""
_SLACK_NS: Final = _STORED_WITHIN_S * 1_000_000_000
_MINUTE_NS: Final = 60_000_000_000
_BOUND_US: Final = _ENDS_WITHIN_S * 1_000_000
_OF_PLANS: Final = f"""\
{IN_ROWS} AND stream = 'LW_LEDGER' AND kind = 'plan' AND drain_us > 0 AND lent_drain_us >= 0
    AND ({{node:String}} IN ('', owner)) AND {{model:String}} IN ('', owner_model)"""

_RESTARTS: Final = f"""\
SELECT node, at_ns FROM health WHERE {_SPAN} AND kind = 'registered' AND {{node:String}} IN ('', node) AND {BELIEVED}
ORDER BY at_ns"""  # noqa: S608  # names of ours

_PLANS: Final = f"""\
SELECT chosen.t AS t, chosen.owner AS owner, chosen.model AS model, home_us, one.3 AS planned_ns, one.4 AS planned_us,
  one.5 AS backlog, one.6 AS home_job_us, c.hi AS hi, toUInt32(intDiv(planned_ns, {_MINUTE_NS})) AS minute,
  arrayMax(life -> if(life.2 <= planned_ns, life.1, 0), arrayPushBack(lives, (toUInt32(0), toUInt64(0)))) AS hi_epoch
FROM (
  SELECT {ROW_STEP} AS t, owner, owner_model AS model, max({_ALONE}) AS home_us,
    argMax((epoch, seq, at_ns, lent_drain_us, held + in_engine + owner_out, owner_job_us), ({_ALONE}, at_ns)) AS one
  FROM decisions WHERE {_OF_PLANS}
  GROUP BY t, owner, model
  ORDER BY t, owner, model
  LIMIT {{most:UInt32}}
) AS chosen
LEFT JOIN (SELECT epoch, seq, hi FROM commits WHERE {_SPAN}) AS c ON chosen.one.1 = c.epoch AND chosen.one.2 = c.seq
CROSS JOIN (
  SELECT groupArray((epoch, began_ns)) AS lives FROM (
    SELECT epoch, min(at_ns) AS began_ns FROM events WHERE {_SPAN} AND stream = 'LW_EVENTS' GROUP BY epoch)
) AS l"""  # noqa: S608  # names of ours
"""The plans, each with what its commit had read: the last fact (`hi`), and which life of LW_EVENTS that one stands in."""

_ENDS: Final = f"""\
SELECT owner, model, request, helper, outcome, service_us, epoch, seq, at_ns,
  toInt64(at_ns) - 1000 * (least(greatest(wait_us, 0), {_BOUND_US}) + least(greatest(service_us, 0), {_BOUND_US})) AS arrived_ns,
  (epoch, seq) IN (SELECT epoch, seq FROM events WHERE {_SPAN} AND stream = 'LW_EVENTS' AND late) AS late,
  (owner, request) IN (SELECT owner, request FROM decisions WHERE {_SPAN} AND kind = 'lent' AND {BELIEVED}) AS lent,
  arrayJoin(range(toUInt32(intDiv(arrived_ns - {_SLACK_NS}, {_MINUTE_NS})), toUInt32(intDiv(at_ns, {_MINUTE_NS})) + 2)) AS minute
FROM (
  SELECT owner, model, request, helper, outcome, wait_us, service_us, epoch, seq, at_ns FROM requests
  WHERE {_SPAN} AND stream = 'LW_EVENTS' AND {BELIEVED}
    AND (owner, model) IN (SELECT owner, owner_model FROM decisions WHERE {_OF_PLANS})
  ORDER BY epoch, seq LIMIT 1 BY owner, request
)"""  # noqa: S608  # names of ours
"""Ends, once for each minute in which the request was open, so that each meets only the plans that may have seen it."""

_MEMBERS: Final = f"""\
SELECT p.t AS t, p.owner AS owner, p.model AS model, any(p.backlog) AS backlog, any(p.home_us) AS home_us,
  any(p.planned_us) AS planned_us, any(p.home_job_us) AS home_job_us, any(p.planned_ns) AS planned_ns,
  arraySlice(arraySort(groupArrayIf(
    (r.arrived_ns, r.request, toInt64(r.at_ns), r.helper != '', r.lent, r.outcome != 'finished', r.late, r.service_us),
    r.seq > 0 AND (r.epoch, r.seq) > (p.hi_epoch, p.hi) AND r.arrived_ns <= toInt64(p.planned_ns) + {_SLACK_NS}
  )), 1, backlog) AS members
FROM ({_ENDS}) AS r
RIGHT JOIN ({_PLANS}) AS p ON r.owner = p.owner AND r.model = p.model AND r.minute = p.minute
GROUP BY t, owner, model"""  # noqa: S608  # names of ours
"""Plans, each with what has ended of its backlog: the first that came of those that had not ended when it was made."""

_STATEMENT: Final = f"""\
SELECT t, owner, model, backlog, home_us, planned_us, planned_ns, home_job_us,
  intDiv(greatest(arrayMax(arrayPushBack(members.3, 0)) - toInt64(planned_ns), 0), 1000) AS measured_us,
  toInt64(length(members)) AS ended, toInt64(arraySum(members.4)) AS ended_at_helpers, toInt64(arraySum(members.5)) AS lent,
  toInt64(arraySum(members.6)) AS unfinished, toInt64(arraySum(members.7)) AS late,
  toInt64(intDiv(arraySum(m -> if(m.4, 0, m.8), members), greatest(arrayCount(m -> m.8 > 0 AND NOT m.4, members), 1)))
    AS owner_service_us
FROM ({_MEMBERS})
ORDER BY t, owner, model"""  # noqa: S608  # names of ours

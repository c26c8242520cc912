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
_STORED_WITHIN_S: Final = 5
"""An end is stored at most so long after it happened; one that comes later leaves its backlog unmeasured. Not longer: while one
of the backlog still runs, what came so soon after the plan and has ended is taken for it."""

Restarts = Mapping[str, Sequence[int]]
"""Owner -> when its processes began, in nanoseconds."""


def savings(store: Store, window: Window) -> Answer:
    """Return what lending saved, by step, owner and model; only where a plan with leases was priced.

    Raises:
        StoreError: ClickHouse refused the query, found it too heavy, or is not there.
    """
    later = window.parameters() | {"ends": window.until_s + _ENDS_WITHIN_S}
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
day >= toDate(toDateTime({since:UInt32}, 'UTC')) - 1 AND day <= toDate(toDateTime({ends:UInt32}, 'UTC'))"""
_SLACK_NS: Final = _STORED_WITHIN_S * 1_000_000_000
_MINUTE_NS: Final = 60_000_000_000

_RESTARTS: Final = f"""\
SELECT node, at_ns FROM health WHERE {_SPAN} AND kind = 'registered' AND {{node:String}} IN ('', node) AND {BELIEVED}
ORDER BY at_ns"""  # noqa: S608  # names of ours

_PLANS: Final = f"""\
SELECT {ROW_STEP} AS t, owner, owner_model AS model, max({_ALONE}) AS home_us,
  argMax((epoch, seq, at_ns, lent_drain_us, held + in_engine + owner_out, owner_job_us), ({_ALONE}, at_ns)) AS chosen
FROM decisions
WHERE {IN_ROWS} AND stream = 'LW_LEDGER' AND kind = 'plan' AND drain_us > 0 AND lent_drain_us >= 0
  AND ({{node:String}} IN ('', owner)) AND {{model:String}} IN ('', owner_model)
GROUP BY t, owner, model
ORDER BY t, owner, model
LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours
"""`chosen`: place of the commit, its stamp, drain with leases, size of the backlog, one job at the owner."""

_READ: Final = f"""\
SELECT plans.t AS t, plans.owner AS owner, plans.model AS model, any(plans.chosen.3) AS planned_ns,
  any(plans.chosen.5) AS backlog, any(plans.chosen.2) AS version, any(c.hi) AS hi,
  argMin(e.epoch, abs(toInt64(e.at_ns) - toInt64(plans.chosen.3))) AS hi_epoch
FROM plans
INNER JOIN (SELECT epoch, seq, hi FROM commits WHERE {_SPAN}) AS c ON plans.chosen.1 = c.epoch AND plans.chosen.2 = c.seq
INNER JOIN (
  SELECT epoch, seq, at_ns FROM events WHERE {_SPAN} AND stream = 'LW_EVENTS' AND seq IN (
    SELECT hi FROM commits WHERE {_SPAN} AND (epoch, seq) IN (SELECT chosen.1, chosen.2 FROM plans))
) AS e ON c.hi = e.seq
GROUP BY t, owner, model"""  # noqa: S608  # names of ours
"""What the commit of each plan had read: the last fact, and which life of LW_EVENTS it stands in."""

_BOUND_US: Final = _ENDS_WITHIN_S * 1_000_000
_OPEN: Final = f"""\
SELECT owner, model, request, helper, outcome, service_us, epoch, seq, at_ns,
  toInt64(at_ns) - 1000 * (least(greatest(wait_us, 0), {_BOUND_US}) + least(greatest(service_us, 0), {_BOUND_US})) AS arrived_ns,
  (epoch, seq) IN (SELECT epoch, seq FROM events WHERE {_SPAN} AND stream = 'LW_EVENTS' AND late) AS late,
  (owner, request) IN (SELECT owner, request FROM decisions WHERE {_SPAN} AND kind = 'lent' AND {BELIEVED}) AS lent,
  arrayJoin(range(toUInt32(intDiv(arrived_ns - {_SLACK_NS}, {_MINUTE_NS})), toUInt32(intDiv(at_ns, {_MINUTE_NS})) + 2)) AS minute
FROM (
  SELECT * FROM requests
  WHERE {_SPAN} AND at_ns >= toUInt64({{since:UInt32}}) * 1000000000 AND at_ns < toUInt64({{ends:UInt32}}) * 1000000000
    AND stream = 'LW_EVENTS' AND (owner, model) IN (SELECT owner, model FROM plans) AND {BELIEVED}
  ORDER BY epoch, seq LIMIT 1 BY owner, request
)"""  # noqa: S608  # names of ours
"""Ends, once for each minute in which the request was open."""

_ENDED: Final = f"""\
SELECT owner, model, t, toInt64(greatest(max(at_ns), any(planned_ns)) - any(planned_ns)) AS measured_ns, count() AS ended,
  countIf(helper != '') AS ended_at_helpers, countIf(lent) AS lent, countIf(outcome != 'finished') AS unfinished,
  countIf(late) AS late,
  intDiv(sumIf(service_us, helper = ''), greatest(countIf(helper = '' AND service_us > 0), 1)) AS owner_service_us
FROM (
  SELECT r.*, p.t AS t, p.planned_ns AS planned_ns, p.backlog AS backlog,
    row_number() OVER (PARTITION BY r.owner, r.model, p.t ORDER BY r.arrived_ns, r.request) AS place
  FROM ({_OPEN}) AS r
  INNER JOIN (SELECT *, toUInt32(intDiv(planned_ns, {_MINUTE_NS})) AS minute FROM ({_READ})) AS p
    ON r.owner = p.owner AND r.model = p.model AND r.minute = p.minute
  WHERE (r.epoch, r.seq) > (p.hi_epoch, p.hi) AND r.arrived_ns <= toInt64(p.planned_ns) + {_SLACK_NS}
)
WHERE place <= backlog
GROUP BY owner, model, t"""  # noqa: S608  # names of ours

_STATEMENT: Final = f"""\
WITH plans AS ({_PLANS}), ends AS ({_ENDED})
SELECT plans.t AS t, plans.owner AS owner, plans.model AS model, plans.chosen.5 AS backlog, plans.home_us AS home_us,
  plans.chosen.4 AS planned_us, intDiv(ends.measured_ns, 1000) AS measured_us, toInt64(ends.ended) AS ended,
  toInt64(ends.ended_at_helpers) AS ended_at_helpers, toInt64(ends.lent) AS lent, toInt64(ends.unfinished) AS unfinished,
  toInt64(ends.late) AS late, plans.chosen.6 AS home_job_us, toInt64(ends.owner_service_us) AS owner_service_us,
  plans.chosen.3 AS planned_ns
FROM plans LEFT JOIN ends ON plans.t = ends.t AND plans.owner = ends.owner AND plans.model = ends.model
ORDER BY t, owner, model
LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours

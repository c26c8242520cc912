"""What lending saved: the backlog that a plan predicted the owner alone would need, against how long it took with helpers.

Of each owner, model and step, the plan with the largest backlog counts that led to a lease. It recorded what the owner alone
would need for all it had then (`home_us`), and what it would need with the leases of the plan (`planned_us`). Measured is the
time from that plan to the end of the last request that had arrived by then. While one of those has not ended nothing is measured.

A backlog that lasts over several steps has a plan in each. It counts once: of plans whose measured times overlap, the one with
the most to do alone; the others say in which step it is. So what was saved may be added up.

What was predicted may be wrong: `home_job_us` is what the plan took one request to need at the owner, `owner_service_us` what
those that the owner served did need.
"""

from typing import Final

from adapters.clickhouse.pages import Row
from adapters.clickhouse.store import Store
from adapters.clickhouse.telemetry import BELIEVED, IN_ROWS, ROW_STEP, Answer, Window

_ENDS_WITHIN_S: Final = 6 * 3600
"""Requests that end later than this after the window are taken for open."""


def savings(store: Store, window: Window) -> Answer:
    """Return what lending saved, by step, owner and model; only where a plan with leases was priced.

    Raises:
        StoreError: ClickHouse refused the query, found it too heavy, or is not there.
    """
    later = window.parameters() | {"ends": window.until_s + _ENDS_WITHIN_S}
    rows = [_judged(row) for row in store.query(_STATEMENT, later)]
    _count_once(rows)
    return Answer(rows=rows, source="rows")


def _count_once(rows: list[Row]) -> None:
    """Leave out what was saved where a greater backlog of the same queue, in the same time, says it already."""
    kept: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for row in sorted(rows, key=lambda row: (-row["home_us"], row["t"])):
        begin_ns, measured_us = row.pop("planned_ns"), row["measured_us"]
        row["counted_in"] = row["t"]
        if measured_us is None:
            continue
        spans = kept.setdefault((row["owner"], row["model"]), [])
        end_ns = begin_ns + 1000 * measured_us
        within = next((t for t, begin, end in spans if begin_ns < end and begin < end_ns), None)
        if within is None:
            spans.append((row["t"], begin_ns, end_ns))
        else:
            row |= {"counted_in": within, "saved_us": None, "saved_share": None}


def _judged(row: Row) -> Row:
    """Return a row with what was saved, if all that the plan saw has ended."""
    ended, backlog = row["ended"], row["backlog"]
    whole = ended >= backlog
    measured = row["measured_us"] if whole else None
    return row | {
        "measured_us": measured,
        "saved_us": None if measured is None else row["home_us"] - measured,
        "saved_share": None if measured is None or not row["home_us"] else round(1 - measured / row["home_us"], 4),
    }


_PLANS: Final = f"""\
SELECT {ROW_STEP} AS t, owner, owner_model AS model, max(drain_us) AS home_us,
  argMax(lent_drain_us, (drain_us, at_ns)) AS planned_us, argMax(at_ns, (drain_us, at_ns)) AS planned_ns,
  argMax(held + in_engine + owner_out, (drain_us, at_ns)) AS backlog, argMax(owner_job_us, (drain_us, at_ns)) AS home_job_us
FROM decisions
WHERE {IN_ROWS} AND stream = 'LW_LEDGER' AND kind = 'plan' AND drain_us > 0 AND lent_drain_us >= 0
  AND ({{node:String}} IN ('', owner)) AND {{model:String}} IN ('', owner_model)
GROUP BY t, owner, model
ORDER BY t, owner, model
LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours

_ENDED: Final = f"""\
SELECT owner, model, plan.1 AS t, toInt64(intDiv(max(at_ns) - any(plan.2), 1000)) AS measured_us, count() AS ended,
  countIf(helper != '') AS ended_at_helpers,
  intDiv(sumIf(service_us, helper = ''), greatest(countIf(helper = '' AND service_us > 0), 1)) AS owner_service_us
FROM (
  SELECT owner, model, helper, service_us, at_ns, toInt64(at_ns) - 1000 * (wait_us + service_us) AS arrived_ns
  FROM requests
  WHERE day >= toDate(toDateTime({{since:UInt32}}, 'UTC')) AND day <= toDate(toDateTime({{ends:UInt32}}, 'UTC'))
    AND at_ns >= toUInt64({{since:UInt32}}) * 1000000000 AND at_ns < toUInt64({{ends:UInt32}}) * 1000000000
    AND (owner, model) IN (SELECT owner, model FROM plans) AND {BELIEVED}
  LIMIT 1 BY owner, request
) AS r
INNER JOIN (SELECT owner, model, groupArray((t, planned_ns)) AS seen FROM plans GROUP BY owner, model) AS p
  ON r.owner = p.owner AND r.model = p.model
ARRAY JOIN arrayFilter(one -> arrived_ns <= toInt64(one.2) AND at_ns >= one.2, p.seen) AS plan
GROUP BY owner, model, t"""  # noqa: S608  # names of ours

_STATEMENT: Final = f"""\
WITH plans AS ({_PLANS}), ends AS ({_ENDED})
SELECT plans.t AS t, plans.owner AS owner, plans.model AS model, plans.backlog AS backlog, plans.home_us AS home_us,
  plans.planned_us AS planned_us, ends.measured_us AS measured_us, toInt64(ends.ended) AS ended,
  toInt64(ends.ended_at_helpers) AS ended_at_helpers, plans.home_job_us AS home_job_us,
  toInt64(ends.owner_service_us) AS owner_service_us, plans.planned_ns AS planned_ns
FROM plans LEFT JOIN ends ON plans.t = ends.t AND plans.owner = ends.owner AND plans.model = ends.model
ORDER BY t, owner, model
LIMIT {{most:UInt32}}"""  # noqa: S608  # names of ours

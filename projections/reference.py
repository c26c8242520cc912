"""docs/reference/tables.md, made from the tables; `python docs/reference/tables.py` writes it."""

from collections.abc import Mapping

from projections import decision_log, health, loads
from projections.tables import TABLES, Table

_HEAD = """\
# Tables

What the projector keeps in ClickHouse (embedded, or the server that `clickhouse.dsn` names; database `leaseway`). This page
is made from the migrations in `projections/tables.py`: change them, then run `python docs/reference/tables.py`.

Rows are keyed by their place in their stream, so that inserting one again changes nothing; ClickHouse merges repetitions
away some time later. To be exact at any time, read `FROM decisions FINAL`, or count `uniqExact(stream, epoch, seq, item)`.
Facts that the master did not believe are in `events`, and named in `rejected`; leave them out with
`(epoch, seq) NOT IN (SELECT event_epoch, event_seq FROM rejected)`. Prompts and answers are in no table.

Rows are dropped by day after `cluster.offload_decisions_retention` (default 30 days); the newest checkpoint stays,
however old it is. Counts by minute (`..._by_minute`) stay for 400 days; they are compared with the rows at each start and every
ten minutes, and a day that differs is counted again.
`leaseway projections status` says how far all of it is, `leaseway projections rebuild` makes it again, and `leaseway projections
schema` prints its statements, for a cluster of servers as well (`[clickhouse] cluster`).

## Read them over HTTP

The projector answers `GET` at its own port (loopback by default), JSON only. What people ask, by time and step by step, is at
`/admin/v1/decisions` and `/admin/v1/telemetry/...` ([HTTP](http.md)); these give the tables row by row:

| path | filters |
|---|---|
| `/v1/decisions` | `owner`, `helper`, `kind`, `reason`, `request`, `outcome`, `link`, `lease`, `side`, `model`; `folded=true` |
| `/v1/requests` | `owner`, `helper`, `request`, `outcome`, `model`, `code` |
| `/v1/loads` | `node`, `model`, `kind`, `cause` |
| `/v1/health` | `node`, `model`, `kind` |
| `/v1/events` | `event`, `producer`, `stream`, `subject` (its beginning), `bodies=true` |
| `/v1/stats` | `window_s` |

All but the last take `limit` (100, at most 1000), `since_ns` and `until_ns` (stamps from and before), and `after`: the `next`
of an earlier answer, or nothing for the beginning. Without `after` they give the newest rows. Folded decisions are one row for
each run of rows that say the same, with `rows` and `first_at_ns`; they are the newest ones only.
"""


def reference() -> str:
    """Return the page."""
    tables = "\n".join(_section(table) for table in TABLES.values())
    kinds = (
        _kinds("decisions", "who says what", decision_log.KINDS),
        _kinds("loads", "what", loads.KINDS),
        _kinds("health", "who says what", health.KINDS),
    )
    return f"{_HEAD}\n{tables}\n{chr(10).join(kinds)}"


def _kinds(table: str, heading: str, kinds: Mapping[str, str]) -> str:
    rows = "".join(f"| {kind} | {about} |\n" for kind, about in kinds.items())
    return f"## Kinds of {table}\n\n| kind | {heading} |\n|---|---|\n{rows}"


def _section(table: Table) -> str:
    rows = "".join(
        f"| {column.name} | {column.type} | {_about(column.about, column.default)} |\n" for column in table.columns
    )
    return f"## {table.name}\n\n{table.about}. Ordered by {table.order_by}.\n\n| column | type | what |\n|---|---|---|\n{rows}"


def _about(about: str, default: str) -> str:
    return f"{about} (default {default})" if default else about

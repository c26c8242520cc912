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

Rows are dropped by day after `cluster.offload_decisions_retention` (default 30 days).
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

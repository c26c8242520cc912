"""The schema's text for a cluster of servers: the same tables, replicated.

One shard: every server holds everything. A day of the busiest cluster is tens of gigabytes at most, and the checkpoint is one
table's highest sequence, which must be asked in one place. So there are no Distributed tables, and a statement of the schema is
the same but for three things: it runs ON CLUSTER, engines are Replicated, and the window of insert tokens is the replicated one.
"""

import re
from typing import Final

_HEADS: Final = re.compile(
    r"^(CREATE TABLE(?: IF NOT EXISTS)? \w+|CREATE MATERIALIZED VIEW(?: IF NOT EXISTS)? \w+|ALTER TABLE \w+"
    r"|CREATE DATABASE(?: IF NOT EXISTS)? \S+|DROP (?:TABLE|VIEW) IF EXISTS \w+|EXCHANGE TABLES \w+ AND \w+)"
)
_ENGINE: Final = re.compile(r"ENGINE = (\w*MergeTree)(?:\(([^)]*)\))?")
_PATH: Final = "'/clickhouse/tables/{uuid}/{shard}', '{replica}'"


def on_cluster(statement: str, cluster: str) -> str:
    """Return a statement of the schema as it runs on `cluster`; unchanged if that is empty."""
    if not cluster:
        return statement
    text, count = _HEADS.subn(rf"\1 ON CLUSTER '{cluster}'", statement, count=1)
    if not count:
        return statement
    text = _ENGINE.sub(lambda found: f"ENGINE = Replicated{found[1]}({_arguments(found[2])})", text)
    return text.replace("non_replicated_deduplication_window", "replicated_deduplication_window")


def _arguments(own: str | None) -> str:
    return f"{_PATH}, {own}" if own else _PATH

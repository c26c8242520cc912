"""Migration 3 as text: what is counted by minute, and kept for longer than the rows it was counted from."""

from typing import Final

_BEGIN: Final = """\
  day Date COMMENT 'UTC day: the partition',
  minute DateTime('UTC') COMMENT 'Beginning of the minute of the stamp, UTC',
"""
_KEPT: Final = """\
ENGINE = SummingMergeTree
PARTITION BY day
ORDER BY ({order})
TTL day + INTERVAL 400 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000
"""

_DECISIONS: Final = f"""\
CREATE TABLE IF NOT EXISTS decisions_by_minute (
{_BEGIN}\
  side LowCardinality(String) COMMENT 'Who said it: master, owner or helper',
  kind LowCardinality(String) COMMENT 'What it is, as in decisions',
  owner LowCardinality(String) COMMENT 'Node that owns the requests',
  owner_model LowCardinality(String) COMMENT 'Model at the owner',
  helper LowCardinality(String) COMMENT 'Node that may help, or does',
  outcome LowCardinality(String) COMMENT 'As in decisions',
  reason LowCardinality(String) COMMENT 'As in decisions',
  rows UInt64 COMMENT 'Rows of decisions',
  candidates UInt64 COMMENT 'Candidates that they stand for',
  wait_us Int64 COMMENT 'Their sum of wait_us',
  service_us Int64 COMMENT 'Their sum of service_us',
  load_us Int64 COMMENT 'Their sum of load_us',
  gain_us Int64 COMMENT 'Their sum of gain_us'
) {_KEPT.format(order="minute, side, kind, owner, owner_model, helper, outcome, reason")}\
COMMENT 'decisions by minute, for 400 days'
"""

_REQUESTS: Final = f"""\
CREATE TABLE IF NOT EXISTS requests_by_minute (
{_BEGIN}\
  owner LowCardinality(String) COMMENT 'Node that received them',
  model LowCardinality(String) COMMENT 'Model that the clients asked for',
  helper LowCardinality(String) COMMENT 'Node that served them in the owner''s stead; empty if the owner did, or nobody',
  outcome LowCardinality(String) COMMENT 'How they ended',
  code LowCardinality(String) COMMENT 'Code of the outcome',
  rows UInt64 COMMENT 'Requests that ended',
  work Int64 COMMENT 'Their sum of work',
  wait_us Int64 COMMENT 'Their sum of wait_us',
  service_us Int64 COMMENT 'Their sum of service_us',
  tokens_in Int64 COMMENT 'Their sum of tokens_in',
  tokens_out Int64 COMMENT 'Their sum of tokens_out'
) {_KEPT.format(order="minute, owner, model, helper, outcome, code")}COMMENT 'requests by minute, for 400 days'
"""

_LOADS: Final = f"""\
CREATE TABLE IF NOT EXISTS loads_by_minute (
{_BEGIN}\
  node LowCardinality(String) COMMENT 'Node whose engine it is',
  model LowCardinality(String) COMMENT 'Model that was loaded, unloaded or to be restored',
  kind LowCardinality(String) COMMENT 'What happened, as in loads',
  cause LowCardinality(String) COMMENT 'For whom',
  displaced LowCardinality(String) COMMENT 'Model that had to leave for it',
  rows UInt64 COMMENT 'Rows of loads',
  load_us Int64 COMMENT 'Their sum of load_us'
) {_KEPT.format(order="minute, node, model, kind, cause, displaced")}COMMENT 'loads by minute, for 400 days'
"""

STATEMENTS: Final = (_DECISIONS, _REQUESTS, _LOADS)
"""In the order in which they run."""

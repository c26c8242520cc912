"""Migration 2 as text: what the rest of lending states, and what nodes load and how they are."""

from typing import Final

from projections.migration_1 import DECIDED, KEPT, SAID, STAMP

_DECISIONS: Final = """\
ALTER TABLE decisions
  COMMENT COLUMN outcome 'Plan: granted, probe, skipped, left_out or none; health, breaker: the state',
  COMMENT COLUMN owner_job_us 'One job at the owner; -1 if unpriced, or the row is about no price',
  COMMENT COLUMN out 'Requests of this owner at this helper, this row counted',
  COMMENT COLUMN work 'Size of the request, or mean size that a price is for, in micro-units',
  COMMENT COLUMN borrowed_in_engine 'native_waited_behind_borrowed: borrowed jobs in the engine before it',
  ADD COLUMN IF NOT EXISTS ready_us Int64 COMMENT 'Until the helper could begin a next job, switch included',
  ADD COLUMN IF NOT EXISTS samples Int64 COMMENT 'Plan: measured requests of the helper''s own fit',
  ADD COLUMN IF NOT EXISTS probe_in_us Int64 DEFAULT -1 COMMENT 'Plan: a probe waits for so much more idling; -1 if none does',
  ADD COLUMN IF NOT EXISTS more Bool COMMENT 'Plan: more leases follow from it than one commit holds; the next commit goes on',
  ADD COLUMN IF NOT EXISTS context Int64 COMMENT 'Lease: context window of the helper in tokens; 0 if not stated',
  ADD COLUMN IF NOT EXISTS vision Bool COMMENT 'Lease: the helper sees images',
  ADD COLUMN IF NOT EXISTS faster Bool COMMENT 'priced: both are measured and the helper needs less time for the same work',
  ADD COLUMN IF NOT EXISTS quiet_us Int64 COMMENT 'checked, stalled: since anything changed in what is lent here',
  ADD COLUMN IF NOT EXISTS failures Int64 COMMENT 'breaker: failures without a completion between',
  ADD COLUMN IF NOT EXISTS quarantine_us Int64 COMMENT 'breaker: how long nothing is leased there, probes included',
  ADD COLUMN IF NOT EXISTS running_us Int64 COMMENT 'still_running: since the request was given to the engine',
  ADD COLUMN IF NOT EXISTS fold_id UInt64 COMMENT 'Sequence of the first row of the run of rows that say the same'
"""

_LOADS: Final = f"""\
CREATE TABLE IF NOT EXISTS loads (
{STAMP}\
  kind LowCardinality(String) COMMENT 'What happened: see the kinds of loads below',
  node LowCardinality(String) COMMENT 'Node whose engine it is',
  model LowCardinality(String) COMMENT 'Model that is loaded, unloaded or to be restored',
  cause LowCardinality(String) COMMENT 'For whom: own, borrowed, restore, guardian or operator',
  load_us Int64 COMMENT 'How long the load took; 0 if it did not end with a ready model' CODEC(T64, ZSTD(1)),
  displaced LowCardinality(String) COMMENT 'Model that had to leave for it; empty if none',
  ok Bool COMMENT 'loaded and restored: a model is ready',
  reason LowCardinality(String) COMMENT 'Why a load failed or a restore was cancelled',
  delay_us Int64 COMMENT 'restore_scheduled: quiet time before it' CODEC(T64, ZSTD(1)),
{SAID}\
  router LowCardinality(String) COMMENT 'Version of Leaseway that wrote this row',
  INDEX by_time at_ns TYPE minmax GRANULARITY 1
) {KEPT.format(order="stream, epoch, seq")}COMMENT 'Models that nodes loaded, and what became of \
those that had to leave for borrowed work'
"""

_HEALTH: Final = f"""\
CREATE TABLE IF NOT EXISTS health (
{STAMP}\
  item UInt32 COMMENT 'Number of the row within its message, from 0',
  kind LowCardinality(String) COMMENT 'Who says what: see the kinds of health below',
  node LowCardinality(String) COMMENT 'Node whose health it is',
  model LowCardinality(String) COMMENT 'Model, where the row is about one',
  state LowCardinality(String) COMMENT 'State from here on',
  reason LowCardinality(String) COMMENT 'Why',
  silent_us Int64 COMMENT 'heartbeat_missed: for how long nothing was heard' CODEC(T64, ZSTD(1)),
  failures Int64 COMMENT 'breaker: failures without a completion between' CODEC(T64, ZSTD(1)),
  node_version LowCardinality(String) COMMENT 'registered: version that the node runs',
{DECIDED}{SAID}\
  router LowCardinality(String) COMMENT 'Version of Leaseway that wrote this row',
  INDEX by_time at_ns TYPE minmax GRANULARITY 1
) {KEPT.format(order="stream, epoch, seq, item")}COMMENT 'How nodes and their models were, by whoever said \
it: the master, the node itself, or heartbeats'
"""

STATEMENTS: Final = (_DECISIONS, _LOADS, _HEALTH)
"""In the order in which they run."""

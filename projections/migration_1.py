"""Migration 1 as text: the first tables, and the pieces that later ones share. Never edited once it was released."""

from typing import Final

STAMP: Final = """\
  stream LowCardinality(String) COMMENT 'Stream that holds the message',
  epoch UInt32 COMMENT 'Life of that stream: rises when the stream was made anew or lost its tail, since sequences repeat then',
  seq UInt64 COMMENT 'Sequence of the message in its stream' CODEC(DoubleDelta, ZSTD(1)),
  at_ns UInt64 COMMENT 'Stamp of the server in nanoseconds since the epoch, UTC' CODEC(Delta, ZSTD(1)),
  day Date MATERIALIZED toDate(toDateTime(intDiv(at_ns, 1000000000), 'UTC')) COMMENT 'UTC day of the stamp: the partition',
"""
ITEM: Final = "  item UInt32 COMMENT 'Number of the row within its message, from 0',\n"
SAID: Final = """\
  producer LowCardinality(String) COMMENT 'Node whose fact it is; empty for a decision of the master',
  incarnation String COMMENT 'Life of that node (32 hex digits)',
  pseq UInt64 COMMENT 'Place of the fact within that life, from 1' CODEC(DoubleDelta, ZSTD(1)),
"""
DECIDED: Final = """\
  generation LowCardinality(String) COMMENT 'History of the ledger; empty for a fact',
  version UInt64 COMMENT 'Version of the commit; 0 for a fact' CODEC(DoubleDelta, ZSTD(1)),
"""
KEPT: Final = """\
ENGINE = ReplacingMergeTree
PARTITION BY day
ORDER BY ({order})
TTL day + INTERVAL 30 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000
"""

_EVENTS: Final = f"""\
CREATE TABLE IF NOT EXISTS events (
{STAMP}\
  subject String COMMENT 'Subject that it was published on' CODEC(ZSTD(3)),
  headers String COMMENT 'Raw header block' CODEC(ZSTD(3)),
  body String COMMENT 'Raw body, as digested and signed' CODEC(ZSTD(3)),
  event LowCardinality(String) COMMENT 'Tag of the event; commit for a commit, empty if the body is none',
{SAID}\
  late Bool COMMENT 'It came from a spool after an outage',
  INDEX by_time at_ns TYPE minmax GRANULARITY 1
) {KEPT.format(order="stream, epoch, seq")}COMMENT 'Every message of LW_EVENTS, LW_CONTROL and LW_LEDGER as it was stored: \
replay from here reaches back further than the streams'
"""

_DECISIONS: Final = f"""\
CREATE TABLE IF NOT EXISTS decisions (
{STAMP}{ITEM}\
  decision UInt32 COMMENT 'Index of the decision within its commit; 0 for a fact',
  side LowCardinality(String) COMMENT 'Who says it: master, owner or helper',
  kind LowCardinality(String) COMMENT 'What it is: see the kinds below',
{DECIDED}\
  term UInt64 COMMENT 'Term of the deciding master; 0 for a fact',
  policy LowCardinality(String) COMMENT 'Rules that decided; empty for a fact',
  router LowCardinality(String) COMMENT 'Version of Leaseway that wrote this row',
{SAID}\
  owner LowCardinality(String) COMMENT 'Node that owns the requests',
  owner_model LowCardinality(String) COMMENT 'Model at the owner',
  helper LowCardinality(String) COMMENT 'Node that may help, or does',
  helper_model LowCardinality(String) COMMENT 'Model at the helper',
  link LowCardinality(String) COMMENT 'Link between the two models',
  lease String COMMENT 'Lease id' CODEC(ZSTD(1)),
  request String COMMENT 'Request id, of a row about one request' CODEC(ZSTD(1)),
  trigger LowCardinality(String) COMMENT 'What made the master plan',
  outcome LowCardinality(String) COMMENT 'Plan: granted, probe, skipped, left_out or none; health: the state',
  reason LowCardinality(String) COMMENT 'Code of why (docs/reference/reasons.md)',
  source LowCardinality(String) COMMENT 'Where job_us comes from: helper or owner_fallback',
  repeats Int64 COMMENT 'Candidates that this row stands for: above 1 only where outcome is left_out',
  held Int64 COMMENT 'Requests held at the owner' CODEC(T64, ZSTD(1)),
  lendable Int64 COMMENT 'Those of them that may be lent' CODEC(T64, ZSTD(1)),
  in_engine Int64 COMMENT 'Requests in the owner''s own engine' CODEC(T64, ZSTD(1)),
  owner_out Int64 COMMENT 'Requests of the owner''s model lent to all helpers' CODEC(T64, ZSTD(1)),
  drain_us Int64 DEFAULT -1 COMMENT 'What the owner alone needs for all it has; -1 if unpriced or not a plan' CODEC(T64, ZSTD(1)),
  lent_drain_us Int64 DEFAULT -1 COMMENT 'The same with the leases of this plan; -1 if none' CODEC(T64, ZSTD(1)),
  owner_job_us Int64 DEFAULT -1 COMMENT 'One job at the owner; -1 if unpriced or not a plan' CODEC(T64, ZSTD(1)),
  slots Int64 COMMENT 'Slots of the lease, or granted to this candidate' CODEC(T64, ZSTD(1)),
  out Int64 COMMENT 'Requests of this owner at this helper' CODEC(T64, ZSTD(1)),
  quota Int64 COMMENT 'Held requests that the earliest completions give to this helper' CODEC(T64, ZSTD(1)),
  first_answer_us Int64 COMMENT 'Until the helper would hand back a first job' CODEC(T64, ZSTD(1)),
  job_us Int64 COMMENT 'Predicted service of one job at the helper' CODEC(T64, ZSTD(1)),
  switch_us Int64 COMMENT 'Predicted model switch before it' CODEC(T64, ZSTD(1)),
  back_us Int64 COMMENT 'Loading the displaced model again' CODEC(T64, ZSTD(1)),
  gain_us Int64 COMMENT 'Waiting that the lease saves, in job-microseconds' CODEC(T64, ZSTD(1)),
  idle_us Int64 DEFAULT -1 COMMENT 'Since the helper''s own last work; -1 if unknown' CODEC(T64, ZSTD(1)),
  probe Bool COMMENT 'The lease is there to learn',
  ttl_us Int64 COMMENT 'Lifetime of the lease' CODEC(T64, ZSTD(1)),
  basis_incarnation String COMMENT 'Life of the owner that the lease rests on',
  basis_pseq Int64 COMMENT 'Newest fact of the owner that the lease rests on' CODEC(T64, ZSTD(1)),
  work Int64 COMMENT 'Size of the request in micro-units' CODEC(T64, ZSTD(1)),
  wait_us Int64 COMMENT 'How long the request waited' CODEC(T64, ZSTD(1)),
  service_us Int64 COMMENT 'Time in service alone' CODEC(T64, ZSTD(1)),
  load_us Int64 COMMENT 'Time to load the model first' CODEC(T64, ZSTD(1)),
  owner_finish_us Int64 COMMENT 'Kept: predicted finish at the owner' CODEC(T64, ZSTD(1)),
  helper_finish_us Int64 COMMENT 'Kept: predicted finish at the helper' CODEC(T64, ZSTD(1)),
  status Int64 COMMENT 'HTTP status of an answer' CODEC(T64, ZSTD(1)),
  borrowed_in_engine Int64 COMMENT 'native_waited: borrowed jobs in the engine before it' CODEC(T64, ZSTD(1)),
  after_arrival Bool COMMENT 'borrowed_returned: the helper''s own work came after the request',
  may_have_run Bool COMMENT 'cut_off: the helper may have run it',
  INDEX by_time at_ns TYPE minmax GRANULARITY 1,
  INDEX by_request request TYPE bloom_filter(0.01) GRANULARITY 1
) {KEPT.format(order="stream, epoch, seq, item")}COMMENT 'The decision log: every verdict and decision of the master, every \
dispatch of an owner, every row of a helper, with all variables'
"""

_REQUESTS: Final = f"""\
CREATE TABLE IF NOT EXISTS requests (
{STAMP}{ITEM}\
  request String COMMENT 'Request id' CODEC(ZSTD(1)),
  outcome LowCardinality(String) COMMENT 'finished, failed, cancelled, rejected, expired or orphaned',
  owner LowCardinality(String) COMMENT 'Node that received it',
  model LowCardinality(String) COMMENT 'Model that the client asked for',
  helper LowCardinality(String) COMMENT 'Node that served it in the owner''s stead; empty if the owner did, or nobody',
  status Int64 COMMENT 'HTTP status that the client got; 0 if it was gone' CODEC(T64, ZSTD(1)),
  code LowCardinality(String) COMMENT 'Code of the outcome',
  work Int64 COMMENT 'Size in micro-units' CODEC(T64, ZSTD(1)),
  wait_us Int64 COMMENT 'From arrival to the start of service' CODEC(T64, ZSTD(1)),
  service_us Int64 COMMENT 'Time in service alone' CODEC(T64, ZSTD(1)),
  tokens_in Int64 COMMENT 'Tokens read, if the engine said' CODEC(T64, ZSTD(1)),
  tokens_out Int64 COMMENT 'Tokens written, if the engine said' CODEC(T64, ZSTD(1)),
{DECIDED}{SAID}\
  router LowCardinality(String) COMMENT 'Version of Leaseway that wrote this row',
  INDEX by_time at_ns TYPE minmax GRANULARITY 1,
  INDEX by_request request TYPE bloom_filter(0.01) GRANULARITY 1
) {KEPT.format(order="stream, epoch, seq, item")}COMMENT 'How each request ended: one row for its one terminal event. \
Where it was lent is in decisions, kind lent'
"""

_COMMITS: Final = f"""\
CREATE TABLE IF NOT EXISTS commits (
{STAMP}\
{DECIDED}\
  term UInt64 COMMENT 'Term of the master that stored it',
  policy LowCardinality(String) COMMENT 'Rules that decided',
  lo UInt64 COMMENT 'Facts folded: after this sequence of LW_EVENTS',
  hi UInt64 COMMENT 'up to this one',
  clo UInt64 COMMENT 'Control events folded: after this sequence of LW_CONTROL',
  chi UInt64 COMMENT 'up to this one',
  owners UInt64 COMMENT 'Dirty owners decided',
  now_us Int64 COMMENT 'Domain time at hi',
  decisions UInt32 COMMENT 'Decisions in it',
  rejected UInt32 COMMENT 'Inputs of its range that were not folded',
  state String COMMENT 'Digest of the snapshot before it, if one was taken',
  prev String COMMENT 'Digest of the commit before it',
  digest String COMMENT 'Its own digest',
  void Bool COMMENT 'It does not continue the commit before it: no reader acts on it, and its decisions are in no other table'
) {KEPT.format(order="stream, epoch, seq")}COMMENT 'One row a commit: the head is a witness of the ledger'
"""

_REJECTED: Final = f"""\
CREATE TABLE IF NOT EXISTS rejected (
{STAMP}{ITEM}\
{DECIDED}\
  event_epoch UInt32 COMMENT 'Epoch of LW_EVENTS',
  event_seq UInt64 COMMENT 'Sequence of the refused message in LW_EVENTS',
  code LowCardinality(String) COMMENT 'Why it was refused'
) {KEPT.format(order="stream, epoch, seq, item")}COMMENT 'Messages of LW_EVENTS that the master did not believe; \
queries leave out the rows made from them'
"""

_STATE: Final = """\
CREATE TABLE IF NOT EXISTS projector_state (
  stream LowCardinality(String) COMMENT 'Stream',
  epoch UInt32 COMMENT 'Life of the stream',
  last_seq UInt64 COMMENT 'Everything up to here is in the tables, or was there before its age limit',
  written_ns UInt64 COMMENT 'When this was noted; the newest note holds',
  cluster LowCardinality(String) COMMENT 'Cluster that these tables are about',
  created_ns UInt64 COMMENT 'When the stream was made'
) ENGINE = ReplacingMergeTree(written_ns)
ORDER BY (stream, epoch)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Which life of each stream is read, and how far: a checkpoint that outlives the age limit of a quiet cluster''s rows'
"""

_GAPS: Final = """\
CREATE TABLE IF NOT EXISTS gaps (
  stream LowCardinality(String) COMMENT 'Stream',
  epoch UInt32 COMMENT 'Life of the stream',
  first_seq UInt64 COMMENT 'First message that was gone',
  last_seq UInt64 COMMENT 'Last message that was gone',
  seen_ns UInt64 COMMENT 'When the projector met the gap'
) ENGINE = ReplacingMergeTree(seen_ns)
ORDER BY (stream, epoch, first_seq)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Messages that a stream no longer had when they were to be projected: they are in no table'
"""

STATEMENTS: Final = (_EVENTS, _DECISIONS, _REQUESTS, _COMMITS, _REJECTED, _STATE, _GAPS)
"""In the order in which they run."""

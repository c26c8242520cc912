"""Migration 4 as text: where the ledger stood, as the master signed it each minute."""

from typing import Final

from projections.migration_1 import STAMP

_CHECKPOINTS: Final = f"""\
CREATE TABLE IF NOT EXISTS checkpoints (
{STAMP}\
  cluster LowCardinality(String) COMMENT 'Cluster that it was signed for',
  generation LowCardinality(String) COMMENT 'History of the ledger',
  version UInt64 COMMENT 'Version of the commit' CODEC(DoubleDelta, ZSTD(1)),
  digest String COMMENT 'Digest of that commit',
  hi UInt64 COMMENT 'Facts folded by it: up to this sequence of LW_EVENTS' CODEC(DoubleDelta, ZSTD(1)),
  chi UInt64 COMMENT 'Control events folded by it: up to this sequence of LW_CONTROL' CODEC(DoubleDelta, ZSTD(1)),
  state String COMMENT 'Digest of the state after it; empty if the commit states none',
  tail_hi UInt64 COMMENT 'Facts that no commit had folded yet: up to this sequence of LW_EVENTS; 0 if not stated',
  tail_chi UInt64 COMMENT 'Control events that no commit had folded yet: up to this sequence of LW_CONTROL',
  tail String COMMENT 'blake2b-16 over those; empty if there were none',
  at_us Int64 COMMENT 'Clock of the master when it signed, in microseconds since the epoch, UTC' CODEC(DoubleDelta, ZSTD(1)),
  public LowCardinality(String) COMMENT 'Public key of the master',
  signature String COMMENT 'ed25519 in hex over all of this but the place: see reference/log.md' CODEC(ZSTD(1)),
  router LowCardinality(String) COMMENT 'Version of Leaseway that wrote this row'
) ENGINE = ReplacingMergeTree
PARTITION BY day
ORDER BY (stream, epoch, seq)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Where the ledger stood, as the master signed it: whoever reads a row checks the signature. The newest is never dropped'
"""
# No TTL: ClickHouse would drop the newest one too, once a cluster was quiet for long. The projector drops days.

STATEMENTS: Final = (_CHECKPOINTS,)
"""In the order in which they run."""

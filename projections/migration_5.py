"""Migration 5 as text: which projectors write to these tables."""

from typing import Final

_WRITERS: Final = """\
CREATE TABLE IF NOT EXISTS writers (
  life String COMMENT 'Life of a projector (32 hex digits)',
  host String COMMENT 'Machine that it runs on',
  process UInt32 COMMENT 'Its process there',
  began UInt32 COMMENT 'When it began to write here: seconds since the epoch, by the clock of ClickHouse',
  beat UInt64 COMMENT 'How often it has said that it is there; the newest word holds',
  seen UInt32 DEFAULT toUnixTimestamp(now()) COMMENT 'When it said so, by the same clock; 0 for one that has left'
) ENGINE = ReplacingMergeTree(beat)
ORDER BY (life)
COMMENT 'Projectors that write to these tables: one at a time. An embedded engine has none here, its directory is locked'
"""

STATEMENTS: Final = (_WRITERS,)
"""In the order in which they run."""

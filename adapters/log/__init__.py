"""The event log over any Stream: producer, reader, ledger, feed, snapshots. It knows no broker."""

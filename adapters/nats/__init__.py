"""NATS JetStream: server, accounts, streams, and the eventsourcing persistence module."""

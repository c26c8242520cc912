"""Persistence module of the `eventsourcing` library on JetStream: `PERSISTENCE_MODULE=adapters.nats.eventsourcing`."""

from adapters.nats.eventsourcing.factory import JetStreamFactory

__all__ = ["JetStreamFactory"]

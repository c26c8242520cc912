"""Control events as they are stored: our envelope in JSON, which `nats sub` shows to anyone. The topic is the event's tag."""

import datetime as dt
from typing import Any, Final

import msgspec
from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import Mapper, MapperDeserialisationError, StoredEvent, Transcoder

from domain.events import ControlEvent, Envelope
from domain.events.base import tag_of
from domain.events.codec import decode_control, decode_envelope, encode, raw
from domain.ports import Clock

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A control event in its place: what the library calls a domain event."""

    originator_id: str
    """`<kind>.<id>` of the aggregate."""
    originator_version: int
    """From 1, without gaps."""
    event: ControlEvent


class NoTranscoder(Transcoder):
    """Stands where the library asks for one; its mapper needs none."""

    def encode(self, obj: Any) -> bytes:
        """Refuse: events are encoded whole, by the mapper."""
        raise NotImplementedError(f"{type(obj).__name__}: the mapper encodes events")

    def decode(self, data: bytes) -> Any:
        """Refuse: events are decoded whole, by the mapper."""
        raise NotImplementedError(f"{len(data)} bytes: the mapper decodes events")


class ControlMapper(Mapper[str]):
    """Between `Decided` and stored envelopes."""

    def __init__(self, *, cluster: str, producer: str, clock: Clock) -> None:
        """`producer` is the operator in whose name events are stored."""
        super().__init__(NoTranscoder())
        self._cluster, self._producer, self._clock = cluster, producer, clock

    def to_stored_event(self, domain_event: DomainEventProtocol[str]) -> StoredEvent:
        """Return the event's envelope."""
        assert isinstance(domain_event, Decided), "the control aggregates make no other events"
        aggregate, version = domain_event.originator_id, domain_event.originator_version
        envelope = Envelope(
            id=f"{aggregate}/{version}",
            source=f"/{self._cluster}/control/{aggregate}",
            type=tag_of(domain_event.event),
            time=_written(self._clock.wall_us()),
            cluster=self._cluster,
            producer=self._producer,
            data=raw(domain_event.event),
        )
        return StoredEvent(aggregate, version, envelope.type, encode(envelope))

    def to_domain_event(self, stored_event: StoredEvent) -> Decided:
        """Return the event in a stored envelope.

        Raises:
            MapperDeserialisationError: the body is no envelope, or holds no control event.
        """
        aggregate, version = str(stored_event.originator_id), stored_event.originator_version
        try:
            event = decode_control(decode_envelope(stored_event.state).data)
        except msgspec.DecodeError as error:
            raise MapperDeserialisationError(f"control event {aggregate}/{version}: {error}") from error
        return Decided(originator_id=aggregate, originator_version=version, event=event)


def _written(wall_us: int) -> str:
    """Return a moment as RFC 3339, to the microsecond, in UTC."""
    moment = _EPOCH + dt.timedelta(microseconds=wall_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

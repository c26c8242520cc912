"""Recorders of the eventsourcing library on JetStream.

Every aggregate has one literal subject, `<prefix>.<originator id>`: expectations over wildcards do not hold on a cluster.
An event is one message: its state is the body, its version and topic are the headers `Es-V` and `Es-T`; its notification id
is its sequence. Several events of one save, and the position that a projection reached by them, are one atomic batch.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Final
from uuid import UUID

import msgspec
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Tracking,
    TrackingRecorder,
)

from adapters.nats.eventsourcing.feed import Entry
from adapters.nats.eventsourcing.link import NatsLink
from adapters.nats.eventsourcing.stream import EXPECTED_LAST, EventStream, Outgoing
from adapters.nats.eventsourcing.subscription import JetStreamSubscription

VERSION, TOPIC = "Es-V", "Es-T"
NO_TOPIC: Final = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recorder keeps what it records."""

    stream: str
    events: str
    """Subject prefix of events; the originator's id follows after a dot."""
    tracking: str
    """Subject prefix of positions; the upstream application's name follows after a dot."""
    uuid_ids: bool = True
    """Originators are UUIDs; otherwise text that may hold dots."""


class JetStreamRecorder:
    """What all recorders share: appending and selecting."""

    CONTIGUOUS: ClassVar[bool] = True
    """Versions of an originator follow each other without gaps; snapshots need only rise."""

    def __init__(self, link: NatsLink, place: Place) -> None:
        self.link, self.place = link, place
        self.stream = EventStream(link, place.stream)

    def create(self, *, replicas: int = 1, storage: str = "file") -> None:
        """Make the stream if there is none."""
        subjects = (f"{self.place.events}.>", f"{self.place.tracking}.>")
        self.link.call(self.stream.create(subjects, replicas=replicas, storage=storage))

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return the events of one originator whose versions are above `gt` and up to `lte`."""
        entries = self.link.call(self._select(self._subject(originator_id), gt, lte))
        chosen = (entries[::-1] if desc else entries)[:limit]
        return [StoredEvent(originator_id, _version(entry), entry.headers[TOPIC], entry.body) for entry in chosen]

    async def _select(self, subject: str, gt: int | None, lte: int | None) -> list[Entry]:
        # The leader's newest message says where to stop: a reading replica may be behind, and is then waited for.
        last = await self.stream.last(subject)
        if last is None or (gt is not None and _version(last) <= gt):
            return []
        found: list[Entry] = []
        async with aclosing(self.stream.read(subject, start=1, stop=last.seq)) as batches:
            async for entries in batches:
                found += (entry for entry in entries if _is_between(gt, _version(entry), lte))
                if lte is not None and entries and _version(entries[-1]) >= lte:
                    break
        return found

    async def _append(self, events: Sequence[StoredEvent], tracking: Tracking | None = None) -> list[int]:
        """Store `events` and `tracking`, all or nothing; return the sequences of the events."""
        messages = await self._messages(events)
        if tracking is not None:
            messages.append(await self._tracking_message(tracking))
        if not messages:
            return []
        last = await self.stream.append(messages)
        first = last - len(messages) + 1
        return list(range(first, first + len(events)))

    async def _messages(self, events: Sequence[StoredEvent]) -> list[Outgoing]:
        messages: list[Outgoing] = []
        versions: dict[str, int | None] = {}
        for event in events:
            subject = self._subject(event.originator_id)
            headers = {VERSION: str(event.originator_version), TOPIC: event.topic}
            if subject not in versions:
                last = await self.stream.last(subject)
                versions[subject] = None if last is None else _version(last)
                # Only the first of a subject may carry it: the batch is stored as a whole.
                headers[EXPECTED_LAST] = "0" if last is None else str(last.seq)
            self._require_next(event, versions[subject])
            versions[subject] = event.originator_version
            messages.append(Outgoing(subject, event.state, headers))
        return messages

    def _require_next(self, event: StoredEvent, version: int | None) -> None:
        if version is None:
            return
        taken, gap = event.originator_version <= version, event.originator_version > version + 1
        if taken or (gap and self.CONTIGUOUS):
            raise IntegrityError(f"{event.originator_id}: is at version {version}, got {event.originator_version}")

    async def _tracking_message(self, tracking: Tracking) -> Outgoing:
        subject = f"{self.place.tracking}.{tracking.application_name}"
        last = await self.stream.last(subject)
        if last is not None and tracking.notification_id <= int(last.body):
            raise IntegrityError(
                f"{tracking.application_name}: is tracked to {int(last.body)}, got {tracking.notification_id}"
            )
        headers = {EXPECTED_LAST: "0" if last is None else str(last.seq), "Nats-Rollup": "sub"}
        return Outgoing(subject, str(tracking.notification_id).encode(), headers)

    def _subject(self, originator_id: UUID | str) -> str:
        return f"{self.place.events}.{originator_id}"


class JetStreamAggregateRecorder(JetStreamRecorder, AggregateRecorder):
    """Aggregate sequences alone: snapshots."""

    CONTIGUOUS = False

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> None:  # noqa: ARG002  # the library's
        """Store events, all or none; raise IntegrityError if a version is taken."""
        self.link.call(self._append(stored_events))


class JetStreamApplicationRecorder(JetStreamRecorder, ApplicationRecorder):
    """Aggregate sequences and the one sequence of all of them."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        """Store events, all or none, and return their sequences; raise IntegrityError if a version is not the next."""
        return self.link.call(self._append(stored_events, kwargs.get("tracking")))

    def max_notification_id(self) -> int | None:
        """Return the newest event's sequence; None if there is no event."""
        last = self.link.call(self.stream.last(f"{self.place.events}.>"))
        return None if last is None else last.seq

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Return at most `limit` events from sequence `start` (or after it) to `stop`; of some topics only, if given."""
        after = 0 if start is None else start - inclusive_of_start
        return self.link.call(self._notifications(after, limit, stop, topics))

    async def _notifications(
        self, after: int, limit: int, stop: int | None, topics: Sequence[str]
    ) -> Sequence[Notification]:
        last = await self.stream.last(f"{self.place.events}.>")
        if last is None:
            return []
        end = last.seq if stop is None else min(stop, last.seq)
        found: list[Notification] = []
        async with aclosing(self.stream.read(f"{self.place.events}.>", start=max(after + 1, 1), stop=end)) as batches:
            async for entries in batches:
                found += (self.notification(entry) for entry in entries if not topics or entry.headers[TOPIC] in topics)
                if len(found) >= limit:
                    break
        return found[:limit]

    def notification(self, entry: Entry) -> Notification:
        """Return a stored message as the library's notification."""
        originator = entry.subject.removeprefix(f"{self.place.events}.")
        return Notification(
            originator_id=UUID(originator) if self.place.uuid_ids else originator,
            originator_version=_version(entry),
            topic=entry.headers[TOPIC],
            state=entry.body,
            id=entry.seq,
        )

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> JetStreamSubscription:
        """Return an iterator over the events after sequence `gt`; after the newest it waits for the next."""
        return JetStreamSubscription(self, self.stream, f"{self.place.events}.>", self.notification, gt, topics)


class JetStreamTrackingRecorder(JetStreamRecorder, TrackingRecorder):
    """How far projections have come."""

    def insert_tracking(self, tracking: Tracking) -> None:
        """Store a position; raise IntegrityError if it is not beyond the one stored."""
        self.link.call(self._append((), tracking))

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the position in the notifications of `application_name`; None if there is none."""
        last = self.link.call(self.stream.last(f"{self.place.tracking}.{application_name}"))
        return None if last is None else int(last.body)


class JetStreamProcessRecorder(JetStreamTrackingRecorder, JetStreamApplicationRecorder, ProcessRecorder):
    """Events and positions in one stream, so that both are stored or neither."""


def _version(entry: Entry) -> int:
    return int(entry.headers[VERSION])


def _is_between(gt: int | None, version: int, lte: int | None) -> bool:
    return (gt is None or version > gt) and (lte is None or version <= lte)

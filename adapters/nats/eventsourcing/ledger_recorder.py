"""LW_LEDGER as the eventsourcing library reads it: one aggregate whose versions are the stream's sequences.

The master writes commits itself, without the library and its headers; here they are only read.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final
from uuid import UUID

import msgspec
from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import ApplicationRecorder, Mapper, Notification, NotSupportedError, StoredEvent

from adapters.nats.eventsourcing.feed import Entry
from adapters.nats.eventsourcing.link import NatsLink
from adapters.nats.eventsourcing.mapper import NoTranscoder
from adapters.nats.eventsourcing.stream import EventStream
from adapters.nats.eventsourcing.subscription import JetStreamSubscription
from domain.errors import ChainBrokenError, HistoryGapError
from domain.events.commit import Commit, decode_commit
from domain.subjects import LEDGER, ledger_subject

ORIGINATOR: Final = "ledger"
TOPIC: Final = "commit"


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A commit in its place: what the library calls a domain event."""

    originator_id: str
    originator_version: int
    commit: Commit


class CommitMapper(Mapper[str]):
    """From stored commits; nothing is written."""

    def __init__(self) -> None:
        super().__init__(NoTranscoder())

    def to_stored_event(self, domain_event: DomainEventProtocol[str]) -> StoredEvent:
        """Refuse: commits are the master's to write."""
        raise NotSupportedError(f"{domain_event.originator_id}: only the master writes commits")

    def to_domain_event(self, stored_event: StoredEvent) -> Committed:
        """Return the commit.

        Raises:
            ChainBrokenError: it is none, or its version is not its sequence.
        """
        version = stored_event.originator_version
        try:
            commit = decode_commit(stored_event.state)
        except msgspec.DecodeError as error:
            raise ChainBrokenError(f"LW_LEDGER sequence {version}: not a commit: {error}") from error
        if commit.version != version:
            raise ChainBrokenError(f"LW_LEDGER sequence {version}: must hold version {version}, holds {commit.version}")
        return Committed(originator_id=ORIGINATOR, originator_version=version, commit=commit)


class LedgerRecorder(ApplicationRecorder):
    """Reads commits by version."""

    def __init__(self, link: NatsLink, cluster: str) -> None:
        self._link, self._subject = link, ledger_subject(cluster)
        self._stream = EventStream(link, LEDGER)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:  # noqa: ARG002
        """Refuse: commits are the master's to write."""
        raise NotSupportedError(f"{ORIGINATOR}: only the master writes commits, got {len(stored_events)}")

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return commits above version `gt` up to `lte`.

        Raises:
            HistoryGapError: one of them is missing; where `gt` is not given, they begin with the oldest that is kept.
        """
        if originator_id != ORIGINATOR:
            return []
        entries = self._link.call(self._select(gt, lte, limit, newest=desc))
        return [_stored(entry) for entry in (reversed(entries) if desc else entries)]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Return at most `limit` commits from version `start` (or after it) to `stop`."""
        if topics and TOPIC not in topics:
            return []
        after = None if start is None else start - inclusive_of_start
        return [notification(entry) for entry in self._link.call(self._select(after, stop, limit))]

    async def _select(self, gt: int | None, lte: int | None, limit: int | None, *, newest: bool = False) -> list[Entry]:
        last = await self._stream.last(self._subject)
        if last is None:
            return []
        start, stop = (gt or 0) + 1, last.seq if lte is None else min(lte, last.seq)
        if limit is not None and newest:
            start = max(start, stop - limit + 1)
        if start > stop:
            return []
        found: list[Entry] = []
        async with aclosing(self._stream.read(self._subject, start=start, stop=stop)) as batches:
            async for entries in batches:
                found += entries
                if limit is not None and len(found) >= limit:
                    found, stop = found[:limit], found[limit - 1].seq
                    break
        _require_whole(found, start if gt is not None else None, stop)
        return found

    def max_notification_id(self) -> int | None:
        """Return the newest version; None if there is no commit."""
        last = self._link.call(self._stream.last(self._subject))
        return None if last is None else last.seq

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> JetStreamSubscription:
        """Return an iterator over the commits after version `gt`; after the newest it waits for the next."""
        return JetStreamSubscription(self, self._stream, self._subject, notification, gt, topics)


def notification(entry: Entry) -> Notification:
    """Return a stored commit as the library's notification."""
    return Notification(ORIGINATOR, entry.seq, TOPIC, entry.body, entry.seq)


def _stored(entry: Entry) -> StoredEvent:
    return StoredEvent(ORIGINATOR, entry.seq, TOPIC, entry.body)


def _require_whole(entries: Sequence[Entry], first: int | None, last: int) -> None:
    """Raise HistoryGapError unless `entries` run from `first` (None: from wherever they begin) to `last`."""
    wanted = first or (entries[0].seq if entries else last)
    for entry in entries:
        if entry.seq != wanted:
            raise HistoryGapError("LW_LEDGER", f"version {wanted} is missing, the next one kept is {entry.seq}")
        wanted += 1
    if wanted <= last:
        raise HistoryGapError("LW_LEDGER", f"version {wanted} is missing or no longer kept")

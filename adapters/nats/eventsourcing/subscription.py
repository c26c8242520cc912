"""The library's subscription: an iterator for one thread that waits for events and can be stopped from another."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from threading import Lock

from eventsourcing.persistence import ApplicationRecorder, Notification, OperationalError, Subscription

from adapters.nats.eventsourcing.feed import Entry, Feed
from adapters.nats.eventsourcing.stream import EventStream


class JetStreamSubscription(Subscription[ApplicationRecorder]):
    """Yields notifications in order. It pulls when it is asked, so nothing piles up while its thread works."""

    def __init__(
        self,
        recorder: ApplicationRecorder,
        stream: EventStream,
        subject: str,
        notification: Callable[[Entry], Notification],
        gt: int | None,
        topics: Sequence[str],
    ) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._stream, self._notification = stream, notification
        self._following: AbstractAsyncContextManager[Feed] = stream.follow(subject, start=(gt or 0) + 1)
        self._feed: Feed | None = None
        self._buffer: Iterator[Notification] = iter(())
        self._lock = Lock()
        self._pull: Future[Sequence[Entry]] | None = None

    def __next__(self) -> Notification:
        while True:
            if self._has_been_stopped:
                raise StopIteration
            for notification in self._buffer:
                if not self._topics or notification.topic in self._topics:
                    return notification
            self._buffer = iter([self._notification(entry) for entry in self._pulled()])

    def _pulled(self) -> Sequence[Entry]:
        with self._lock:
            if self._has_been_stopped:
                return ()
            pull = self._pull = self._stream.link.begin(self._next_entries())
        try:
            return pull.result()
        except CancelledError:
            return ()

    async def _next_entries(self) -> Sequence[Entry]:
        if self._feed is None:
            self._feed = await self._following.__aenter__()
        return await self._feed.pull()

    def stop(self) -> None:
        """End the iteration, also where another thread waits in it; may be called twice."""
        with self._lock:
            if self._has_been_stopped:
                return
            super().stop()
            if self._pull is not None:
                self._pull.cancel()
        # A link that is closed already has ended the feed with everything else.
        with contextlib.suppress(OperationalError):
            self._stream.link.call(self._end())

    async def _end(self) -> None:
        if self._feed is not None:
            await self._following.__aexit__(None, None, None)

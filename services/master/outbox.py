"""Stored commits on their way to the feed: whatever becomes of the feed, decisions go on, and nothing of them is left out."""

import asyncio
import logging
from collections import deque
from typing import Final

from adapters.log.feed import Feed
from adapters.log.history import first_of_generation, last_commit, stored_commit
from domain.errors import BusError, HistoryGapError
from domain.events.commit import Commit
from domain.ports import Stream

LOG = logging.getLogger("leaseway.master")
AHEAD_MAX: Final = 500
"""Commits kept in memory for the feed; with more, all that is missing is read from the ledger again."""
RETRY_S: Final = 1.0


class Outbox:
    """Publishes the commits of one reign, and before them what the last master left unpublished."""

    def __init__(self, ledger: Stream, feed: Feed) -> None:
        self._ledger, self._feed = ledger, feed
        self._ready: deque[Commit] = deque()
        self._some = asyncio.Event()
        self._behind = True
        self.trouble = ""
        """Why the feed takes nothing at the moment; empty while it does."""

    def put(self, stored: Commit) -> None:
        """Take a commit that is stored."""
        if len(self._ready) >= AHEAD_MAX:
            self._ready.clear()
            self._behind = True
        self._ready.append(stored)
        self._some.set()

    async def run(self) -> None:
        """Publish in order, for ever.

        Raises:
            HistoryGapError: a commit to be published is gone.
        """
        while True:
            try:
                await self._run()
            except HistoryGapError:
                raise
            except BusError as error:
                LOG.error("feed_refused", extra={"error": str(error)})  # noqa: TRY400  # the words say it all
                self._behind, self.trouble = True, str(error)
                await asyncio.sleep(RETRY_S)

    async def _run(self) -> None:
        while True:
            if self._behind:
                self._behind = False
                self._ready.clear()
                await self._from_ledger()
            self.trouble = ""
            while self._ready and not self._behind:
                await self._feed.publish(self._ready.popleft())
            self._some.clear()
            if not self._ready and not self._behind:
                await self._some.wait()

    async def _from_ledger(self) -> None:
        """Publish what the ledger holds beyond the end of the feed."""
        await self._feed.resume()
        generation, version, _ = self._feed.at
        head = await last_commit(self._ledger)
        if head is None:
            return
        if generation != head.generation:  # what is left of an older generation is void
            version = (await first_of_generation(self._ledger, head)).version
        first = max(version, (await self._ledger.bounds()).first, 1)
        async for batch in self._ledger.read(after=first - 1, until=head.version):
            for message in batch:
                await self._feed.publish(stored_commit(message))

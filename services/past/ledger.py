"""The master's state as an aggregate of the eventsourcing library: the repository of the ledger rebuilds it at any version.

The library is synchronous and rebuilds in a thread of its own; the inputs of each commit come over the caller's connection.
"""

import asyncio
from collections.abc import Iterable

from adapters.log.history import Cursor, Cursors, History, stored_commit
from adapters.log.travel import Fold
from adapters.nats.eventsourcing.grant_ledger import GrantLedger
from domain.errors import HistoryError
from domain.events.commit import Commit
from domain.ports import StoredMessage

_AT_ONCE = 200


def through_repository(ledger: GrantLedger) -> Fold:
    """Return what moves a state on along the commits that the repository of `ledger` gives; the caller closes `ledger`."""

    async def fold(history: History, target: Commit) -> None:
        if target.version <= history.position.version:
            return
        loop = asyncio.get_running_loop()
        handed = _Handed(history)
        cursors = Cursors(history.streams, history.position)
        cursors.commits = handed

        def take(commits: list[Commit]) -> None:
            handed.given += commits
            asyncio.run_coroutine_threadsafe(history.catch_up(commits[-1], cursors), loop).result()

        def project(commits: Iterable[Commit]) -> int:
            batch: list[Commit] = []
            for commit in commits:
                batch.append(commit)
                if len(batch) == _AT_ONCE:
                    take(batch)
                    batch = []
            if batch:
                take(batch)
            return target.version

        try:
            await asyncio.to_thread(ledger.rebuild, target.version, project, after=history.position.version)
        finally:
            await cursors.close()

    return fold


class _Handed(Cursor):
    """Reads the ledger as far as commits were handed over, each of which must be the one that stands there.

    Their stored bytes are needed besides: a commit's digest is over those, and another version may have written them.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history.streams.ledger, after=history.position.version)
        self.given: list[Commit] = []

    async def take(self, high: int) -> list[StoredMessage]:
        """Return the next messages, up to version `high`.

        Raises:
            HistoryError: one is not the commit that was handed over.
        """
        stored = await super().take(high)
        taken, self.given = self.given[: len(stored)], self.given[len(stored) :]
        for message, each in zip(stored, taken, strict=True):
            if stored_commit(message) != each:
                raise HistoryError(f"ledger message {message.seq}: is not the commit that the repository has read")
        return stored

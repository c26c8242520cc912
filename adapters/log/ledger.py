"""The master aggregate's stream: one message is one commit, its sequence is its version.

Of two masters that append the same version one wins, and both learn which: whatever the stream answers but a plain yes,
the message that now stands at that version is read from the leader. Only the very same bytes are a success, and only after a
try that went unanswered: two masters that take over at one moment make the same claim, and it is one of them that stored it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from domain.errors import HistoryGapError, NoAnswerError, PublishUnknownError, WrongLastSequenceError
from domain.ports import StoredMessage, Stream

_BACKOFF_S: Final = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class Ledger:
    """Appends commits, and reads them."""

    def __init__(self, stream: Stream, subject: str) -> None:
        self._stream, self.subject = stream, subject
        """The one subject of the ledger."""

    async def append(self, version: int, body: bytes, digest: str) -> bool:
        """Store `body` as `version`; return True if ours is stored there, False if another's is.

        Asks until it knows, however long the bus is away: cancel it to give up, and then the outcome is unknown.

        Raises:
            HistoryGapError: the ledger ends before `version` - 1.
            PublishRefusedError: it will never take these bytes; nothing is stored.
        """
        attempt = 0
        may_be_ours = False
        while True:
            refused = False
            try:
                stored = await self._stream.publish(
                    self.subject, body, message_id=f"{version}-{digest}", expected_last=version - 1
                )
                if not stored.duplicate and stored.seq == version:
                    return True
            except WrongLastSequenceError:
                refused = True
            except PublishUnknownError:
                may_be_ours = True
            found = await self._resolve(version, body, refused=refused)
            if found is not None:
                return found and may_be_ours
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            attempt += 1

    def read(self, after_version: int, until: int | None = None) -> AsyncIterator[Sequence[StoredMessage]]:
        """Yield the commits after `after_version` in batches, up to `until` or for ever (domain.ports.Stream.read)."""
        return self._stream.read(after=after_version, until=until)

    async def head(self) -> StoredMessage | None:
        """Return the newest commit, read from the leader; None if there is none."""
        return await self._stream.last()

    async def _resolve(self, version: int, body: bytes, *, refused: bool) -> bool | None:
        """Return whether what stands at `version` is `body`; None while nothing stands there, or nobody can say."""
        try:
            last = await self._stream.last()
            ends_at = last.seq if last else (await self._stream.bounds()).last
            if last is not None and last.seq == version:
                return last.body == body
            if ends_at >= version:
                standing = await self._stream.get(version)
                return standing is not None and standing.body == body
        except NoAnswerError:
            return None
        if refused and ends_at < version - 1:
            raise HistoryGapError(self._stream.name, f"must reach version {version - 1}, but ends at {ends_at}")
        return None

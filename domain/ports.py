"""What services need of the outside. Each port has one contract suite (tests/contract) that every adapter passes."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from domain.ids import Generation


class Clock(Protocol):
    """Tells the time. `monotonic_us` never goes back; `wall_us` is for people only."""

    def monotonic_us(self) -> int:
        """Return microseconds since some fixed moment of this process' life."""
        ...

    def wall_us(self) -> int:
        """Return microseconds since the epoch, UTC; it may be stepped at any time."""
        ...


class StoredMessage(msgspec.Struct, frozen=True, gc=False):  # there are many, and none can stand in a cycle
    """One message as a stream holds it."""

    seq: int
    """Its place in the stream, from 1; 0 for a message that came past the stream (core NATS)."""
    stamp_ns: int
    """The server's stamp, in nanoseconds since the epoch."""
    subject: str
    headers: bytes
    """The raw header block (`NATS/1.0\\r\\n...\\r\\n\\r\\n`), empty if there is none."""
    body: bytes


class Stored(msgspec.Struct, frozen=True):
    """The stream's answer to a publish."""

    seq: int
    duplicate: bool = False
    """A message with this id is stored already, at `seq`; nothing was stored now."""


class Bounds(msgspec.Struct, frozen=True):
    """What a stream holds; `first > last` when it is empty."""

    first: int
    last: int
    created_ns: int
    now_ns: int = 0
    """The time by the clock that stamps the messages; 0 where it is not known."""


class Stream(Protocol):
    """One append-only stream with one total order."""

    name: str

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        """Store `body` at the end.

        `expected_last`: store only if the whole stream's last sequence is this one.

        Raises:
            PublishUnknownError: no answer in time; it may be stored already, later or never.
            WrongLastSequenceError: `expected_last` does not hold.
            PublishRefusedError: it will never be stored (rights, size, full stream).
        """
        ...

    async def last(self) -> StoredMessage | None:
        """Return the newest message, read from the stream's leader; None if the stream is empty."""
        ...

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, read from the leader; None if it is not (or no longer) there."""
        ...

    async def bounds(self) -> Bounds:
        """Return what the stream holds now."""
        ...

    def read(self, *, after: int, until: int | None = None) -> AsyncIterator[Sequence[StoredMessage]]:
        """Yield batches in order, without gaps, from `after` + 1 to `until`, or for ever if `until` is None.

        Survives reconnects: it goes on where it was. Closing the iterator ends it.

        Raises:
            HistoryGapError: a message in the range is gone.
        """
        ...


class Follower(Protocol):
    """What a node or gateway follows: messages addressed to it, first as they are published, then again from the stream.

    A message may come twice and out of order, and its subject proves nothing: readers believe its signature and its order key.
    """

    def messages(self) -> AsyncIterator[StoredMessage]:
        """Yield messages as they come, for ever."""
        ...


class Witnessed(msgspec.Struct, frozen=True, kw_only=True):
    """The newest commit that a keeper outside the ledger has seen."""

    generation: Generation
    version: int
    digest: str
    signed: str = ""
    """A signed decision of that commit, where the keeper is a node."""


class WitnessBook(Protocol):
    """Keeps the newest commit seen, apart from the ledger, so that a lost tail is noticed."""

    async def read(self) -> Witnessed | None:
        """Return the newest commit kept; None if there never was one."""
        ...

    async def write(self, witnessed: Witnessed) -> None:
        """Keep `witnessed`; it survives kill -9 once this returns."""
        ...

    async def put_aside(self) -> str:
        """Put aside what cannot be read, which an operator's word ends as well; return where it is now, empty if all is well.

        Raises:
            HistoryError: it cannot be put aside.
        """
        ...

"""Where stored messages come from: the same questions to ClickHouse and to the streams."""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from domain.errors import CallerError
from domain.ports import StoredMessage, Stream

FOUND_MAX: Final = 5_000
"""Messages that one question may find."""


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages: all of what is given must hold."""

    since_ns: int = 0
    until_ns: int = 0
    """Stamps from and up to; 0: to the newest."""
    needles: tuple[str, ...] = ()
    """Texts of which each stands in the body."""
    tags: tuple[str, ...] = ()
    """Events, one of which it is; facts only."""
    who: tuple[str, ...] = ()
    """Nodes, one of which said it; facts only."""
    limit: int = FOUND_MAX


class Found(msgspec.Struct, kw_only=True):
    """What was found, in order."""

    messages: list[StoredMessage] = []
    incomplete: str = ""
    """Why there may be more; empty if this is all."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How far back a stream's messages are kept."""

    first: int
    last: int
    first_ns: int
    """Stamp of the oldest; 0 if there is none."""


class Span(msgspec.Struct, frozen=True):
    """When something is spoken of."""

    since_ns: int
    until_ns: int
    """0: to the newest message."""


Last = Callable[[StoredMessage], bool]
"""Tells whether little or nothing about the subject comes after a message."""


class Past(Protocol):
    """One keeper of stored messages."""

    name: str
    """As people know it: ClickHouse or NATS."""

    async def kept(self, stream: str) -> Kept:
        """Return how far back the messages of a stream are kept."""
        ...

    async def span(self, column: str, value: str, guess: Span) -> Span | None:
        """Return when the request or lease `value` is spoken of, or `guess` where nothing better is known; None: never."""
        ...

    async def facts(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_EVENTS. A keeper that reads one after the other ends a little after `last`."""
        ...

    async def commits(self, sought: Sought, last: Last | None = None) -> Found:
        """Return messages of LW_LEDGER."""
        ...

    async def commit(self, version: int) -> StoredMessage | None:
        """Return one commit; None if it is not kept."""
        ...

    def stream(self, name: str) -> Stream:
        """Return a stream as this keeper has it, to be read by sequences."""
        ...

    async def last_planned(self, node: str, model: str) -> StoredMessage | None:
        """Return the newest commit that planned an owner's queue, as far back as that is quickly found."""
        ...


class NotKnownError(CallerError):
    """No stored message is about what was asked for; the message says who was asked, and how far back that one reaches."""

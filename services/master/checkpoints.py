"""Signed checkpoints of the active master: at the beginning of its reign, each minute, and when it stops in order."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from adapters.keys import Signer
from adapters.log.checkpoints import (
    JUMP_US,
    CheckpointBook,
    Kept,
    check_signed,
    dated_ahead,
    sign,
    signed_by,
    tail_digest,
)
from domain.errors import HistoryError
from domain.events import Checkpoint, Input
from domain.ids import Generation
from domain.master.step import Position, Range
from domain.ports import Clock

LOG = logging.getLogger("leaseway.master")
EVERY_S: Final = 60.0


class Where(NamedTuple):
    """Where the ledger stands."""

    position: Position
    state: str
    """Digest of the state there; empty if no commit states it."""
    span: Range
    """What is folded beyond it."""


class Speaker(Protocol):
    """States observations (services.master.observer)."""

    async def state(self, term: int, body: Input) -> None:
        """Store one."""
        ...


class Checkpoints:
    """Signs where the ledger stands and keeps it in the book; each minute it is stated as an observation too."""

    def __init__(
        self, book: CheckpointBook, signer: Signer, cluster: str, clock: Clock, *, every_s: float = EVERY_S
    ) -> None:
        self.book, self._signer, self._cluster, self._clock, self._every_s = book, signer, cluster, clock, every_s
        self._kept: tuple[int, int, int] | None = None
        self._said = 0
        self._dated: tuple[int, int] | None = None
        """(wall clock, monotonic clock) of the last one signed."""

    async def keep(self, where: Callable[[], Where], speaker: Speaker) -> None:
        """Sign at once and then each minute if anything has changed, for ever; whatever the wall clock does meanwhile."""
        first = where()
        await self.add(first)
        self._said = first.position.version  # commits that came while it was written are yet to be stated
        while True:
            await asyncio.sleep(self._every_s)
            now = where()
            signed = await self.add(now)
            if signed is not None and now.position.version > self._said:
                self._said = now.position.version
                await speaker.state(now.position.term, signed)

    async def add(self, where: Where) -> Checkpoint | None:
        """Sign and keep where the ledger stands; return it, or None if nothing has changed since the last time."""
        signed = self._sign(where)
        at = (signed.version, signed.tail_hi, signed.tail_chi)
        if at == self._kept or not signed.version:
            return None
        try:
            await self.book.add(signed)
        except OSError as error:
            LOG.warning("checkpoint_not_kept", extra={"version": signed.version, "error": str(error)})
        self._kept = at
        return signed

    def _date(self) -> int:
        """Return the wall clock, and say so if it has jumped since the last checkpoint."""
        wall_us, mono_us = self._clock.wall_us(), self._clock.monotonic_us()
        if self._dated is not None:
            jumped_us = (wall_us - self._dated[0]) - (mono_us - self._dated[1])
            if abs(jumped_us) > JUMP_US:
                LOG.warning("clock_jumped", extra={"by_s": jumped_us // 1_000_000})
        self._dated = wall_us, mono_us
        return wall_us

    def _sign(self, where: Where) -> Checkpoint:
        position, span = where.position, where.span
        tail_hi = span.facts[-1].seq if span.facts else position.hi
        tail_chi = span.control[-1].seq if span.control else position.chi
        draft = Checkpoint(
            cluster=self._cluster,
            generation=position.generation,
            version=position.version,
            digest=position.digest,
            hi=position.hi,
            chi=position.chi,
            state=where.state,
            tail_hi=tail_hi,
            tail_chi=tail_chi,
            tail=tail_digest(span.messages()) if (tail_hi, tail_chi) != (position.hi, position.chi) else "",
            at_us=self._date(),
        )
        return sign(draft, self._signer)

    def ours(self, kept: Sequence[Kept]) -> list[Kept]:
        """Return those of `kept`, which lie where others can write, that this cluster's master has signed."""
        found = signed_by(kept, self._signer.public, self._cluster)
        if len(found) < len(kept):
            LOG.warning("checkpoints_not_believed", extra={"count": len(kept) - len(found), "source": kept[0].source})
        return found

    async def of(self, generation: Generation) -> list[Kept]:
        """Return what is kept of a generation.

        Raises:
            HistoryError: something of it is no checkpoint, or is not signed with this cluster's key.
        """
        try:
            kept = await self.book.read(generation)
        except OSError as error:
            raise HistoryError(f"checkpoints {self.book.folder}: cannot be read: {error}") from None
        check_signed(kept, self._signer.public)
        self._say_dates(kept)
        return kept

    def _say_dates(self, kept: Sequence[Kept]) -> None:
        """Say which are dated as they cannot be; by their versions they are compared all the same."""
        for what in dated_ahead(kept):
            LOG.warning("checkpoint_dated_ahead", extra={"what": what})
        newest, now_us = kept[-1].checkpoint if kept else None, self._clock.wall_us()
        if newest is not None and newest.at_us > now_us + JUMP_US:
            ahead_s = (newest.at_us - now_us) // 1_000_000
            LOG.warning("checkpoint_dated_ahead", extra={"what": f"version {newest.version}: {ahead_s} s ahead of now"})

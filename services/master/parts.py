"""What the master's loop works with, and the small pieces that know nothing of its life."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec

from adapters.keys import Signer
from adapters.log.feed import Feed
from adapters.log.generations import Beginners
from adapters.log.history import Streams
from adapters.log.ledger import Ledger
from adapters.log.reader import Reader
from adapters.log.scan import NO_AGES, Ages
from adapters.log.snapshots import Snapshots
from domain.errors import BusError, HistoryError, HistoryGapError
from domain.ids import Generation
from domain.master.step import Range
from domain.ports import Clock, StoredMessage, Stream, WitnessBook
from services.master.checkpoints import Checkpoints
from services.master.observer import Observer
from services.master.witnesses import AskArchive

RANGE_FACTS_MAX: Final = 20_000
"""A range without a decision is closed by a root commit when it is this long, so that a restart has little to fold."""
RANGE_BYTES_MAX: Final = 16 * 1024 * 1024
REJECTED_MAX: Final = 1_000
"""A range with so many refused inputs is closed too: the commit lists each."""
FOLDED_AT_ONCE: Final = 250


class Deposed(Exception):  # noqa: N818  # it ends a reign; nothing is wrong
    """Another master's commit is stored where ours was to be."""


class Parts(msgspec.Struct, frozen=True):
    """What the loop works with."""

    streams: Streams
    ledger: Ledger
    feed: Feed
    snapshots: Snapshots
    witness: WitnessBook
    reader: Reader
    observer: Observer
    clock: Clock
    new_generation: Generation
    signer: Signer
    """Of the master's decisions, and of a generation that it begins by itself."""
    operator_public: str
    """nkey public key of the operator, by whose word alone safe mode is left; empty: it is not known, and nobody is believed."""
    relaxed: bool = False
    """Durability of the bus: a power cut may lose the newest facts, and then a new generation begins by itself, named."""
    ask_clickhouse: AskArchive | None = None
    checkpoints: Checkpoints | None = None
    """Where signed checkpoints are kept; None in a simulation that has no disk."""
    ages: Ages = NO_AGES
    """After how long the streams drop a message."""

    @property
    def beginners(self) -> Beginners:
        """Return who may begin a generation of the ledger."""
        by_itself = self.signer.public if self.relaxed else ""
        return Beginners(cluster=self.reader.cluster, operator=self.operator_public, master=by_itself)


def is_long(span: Range) -> bool:
    """Tell whether a range has to end here: for a restart's sake, the commit's size, or this process' memory."""
    return (
        len(span.facts) >= RANGE_FACTS_MAX or len(span.rejected) >= REJECTED_MAX or span.size_bytes >= RANGE_BYTES_MAX
    )


async def pour(stream: Stream, after_seq: int, inbox: asyncio.Queue[tuple[Stream, Sequence[StoredMessage]]]) -> None:
    """Put what a stream holds after a sequence into the inbox, in pieces, for ever."""
    batches: AsyncIterator[Sequence[StoredMessage]] = stream.read(after=after_seq)
    async for batch in batches:
        for at in range(0, len(batch), FOLDED_AT_ONCE):
            await inbox.put((stream, batch[at : at + FOLDED_AT_ONCE]))


def first_cause(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended a reign: history in doubt before all else, since nothing may go on after it."""
    leaves = list(leaves_of(failed))
    for kind in (HistoryError, HistoryGapError, Deposed, BusError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def leaves_of(failed: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors themselves out of a group of groups."""
    for error in failed.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves_of(error)
        else:
            yield error

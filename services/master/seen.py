"""What nodes say to have seen of the ledger when they register: a ledger that is behind it has lost something.

It is looked for before a master decides, in what no commit has folded yet: a master that was put into safe mode by such a word
folded it into no commit, so that the next one would come upon it only after its first decisions.
"""

import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, cast

from adapters.log.feed import Feed
from adapters.log.history import last_commit
from domain.errors import LedgerBehindError
from domain.events import Registered, Witness
from domain.events.base import tag_of
from domain.master.inputs import FactInput, FactOrRejected
from domain.master.step import Position
from domain.ports import StoredMessage
from services.master.parts import Deposed, Parts

LOG = logging.getLogger("leaseway.master")
_REGISTERED: Final = f".{tag_of(Registered)}"
"""What the subject of such a fact ends in."""


async def check_unfolded(parts: Parts, position: Position) -> None:
    """Check what nodes have said, since the commit at `position`, to have seen.

    Raises:
        LedgerBehindError, HistoryGapError, Deposed: as of `check_seen`; facts beyond `position` are not whole.
    """
    events = parts.streams.events
    last = (await events.bounds()).last
    if last <= position.hi:
        return
    read = cast("AsyncGenerator[Sequence[StoredMessage], None]", events.read(after=position.hi, until=last))
    async with aclosing(read):
        async for batch in read:
            said = [message for message in batch if message.subject.endswith(_REGISTERED)]
            await check_seen(parts, position, (fact for fact, _ in parts.reader.facts(said)))


async def check_seen(parts: Parts, position: Position, facts: Iterable[FactOrRejected]) -> None:
    """Check what registering nodes say to have seen against where the ledger stands.

    A master that slept may be behind both: then another one decides by now. What the node does not show with our signature is
    not believed: any node's key would be enough to stop all deciding.

    Raises:
        LedgerBehindError: the ledger is behind what one of them has seen.
        Deposed: it is not, this master is.
    """
    for given in facts:
        if not isinstance(given, FactInput) or not isinstance(given.fact, Registered) or given.fact.witness is None:
            continue
        seen = given.fact.witness
        if (seen.generation, seen.version) <= (position.generation, position.version):
            continue
        if not _is_shown(parts.feed, seen):
            LOG.warning("witness_not_believed", extra={"speaker": given.speaker, "version": seen.version})
            continue
        head = await last_commit(parts.streams.ledger)
        if head is not None and (head.generation, head.version) >= (seen.generation, seen.version):
            raise Deposed
        raise LedgerBehindError(
            f"ledger: ends at version {position.version} of generation {position.generation}, "
            f"but {given.speaker} has seen version {seen.version} of generation {seen.generation}",
            seen.generation,
        )


def _is_shown(feed: Feed, seen: Witness) -> bool:
    """Tell whether a node that says to have seen a commit shows one of its decisions with our signature."""
    signed = feed.ours(seen.signed.encode())
    return signed is not None and signed.order[:2] == (seen.generation, seen.version)

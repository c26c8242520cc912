"""Whether the streams still end as the last commit saw them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from adapters.log.history import Streams, stored_commit
from domain.errors import FactsLostError, HistoryError
from domain.events.commit import Commit, is_sealed
from domain.ports import StoredMessage, Stream


async def check_inputs(streams: Streams, head: Commit | None) -> None:
    """Check that the inputs that the last commit folded are still there.

    A server that lost its newest messages gives their sequences again to what comes next, with a newer stamp than that of the
    commit that folded them. A server whose clock was set back does the same to a commit: the digest tells which it was.

    Raises:
        FactsLostError: LW_EVENTS does not hold the last facts any more.
        HistoryError: LW_CONTROL ends too early, or commits behind `head` were there and are gone.
    """
    ended = (await streams.ledger.bounds()).last
    stands = head.version if head is not None else 0
    if ended > stands and await streams.ledger.get(ended) is None:  # one that is there came meanwhile
        raise HistoryError(f"{streams.ledger.name}: ends at version {stands}, though message {ended} has stood there")
    if head is None:
        return
    for stream, high, lost in ((streams.events, head.hi, FactsLostError), (streams.control, head.chi, HistoryError)):
        last = (await stream.bounds()).last
        if last < high:
            raise lost(f"{stream.name}: ends at {last}, but commit {head.version} folded up to {high}")
    newest, folded_by = await streams.events.get(head.hi), await streams.ledger.get(head.version)
    newer = newest is not None and folded_by is not None and newest.stamp_ns > folded_by.stamp_ns
    if newer and not await _has_its_inputs(streams, head):
        raise FactsLostError(
            f"{streams.events.name}: message {head.hi} is newer than commit {head.version}, which folded it"
        )


async def _has_its_inputs(streams: Streams, head: Commit) -> bool:
    """Tell whether the last commit that folded any fact was made of the facts that stand there now."""
    message = await streams.ledger.get(head.version)
    stored = head
    while message is not None and stored.lo == stored.hi:
        message = await streams.ledger.get(stored.version - 1)
        if message is not None and (stored := stored_commit(message)).generation != head.generation:
            return True
    if message is None:
        return True  # none that is kept of this generation folded anything
    control = await _between(streams.control, stored.clo, stored.chi)
    facts = await _between(streams.events, stored.lo, stored.hi)
    return is_sealed(stored, [*control, *facts], message.body)


async def _between(stream: Stream, after: int, until: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    if until > after:
        read = stream.read(after=after, until=until)
        async with aclosing(cast("AsyncGenerator[Sequence[StoredMessage], None]", read)):
            async for batch in read:
                found += batch
    return found

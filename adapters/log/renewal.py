"""How a generation of the ledger is begun: by an operator who has looked, or by a master after what a bus may lose."""

from contextlib import suppress
from typing import Final

import msgspec

from adapters.keys import Signer
from adapters.log.generations import signed_begin
from adapters.log.history import Streams, stored_commit
from adapters.log.holes import next_after
from domain.errors import ChainBrokenError, HistoryError, HistoryGapError
from domain.events.commit import Commit, encode_commit
from domain.ids import Generation
from domain.master.step import genesis
from domain.ports import Stream
from domain.subjects import ledger_subject

_ONE_BY_ONE: Final = 1000
"""Sequences of a hole that are asked for one by one."""


async def begin_generation(
    streams: Streams, generation: Generation, reason: str, *, cluster: str, signer: Signer
) -> Commit:
    """Begin a new generation of the ledger, signed by who begins it; return its first commit.

    `signer`: of the operator's key (`nkey_seed`), who has looked; of the master's own where lost facts let it begin by itself.

    The state begins empty and folds again what LW_EVENTS holds after its last hole, and all of LW_CONTROL; nothing that is
    stored is removed.

    Raises:
        HistoryError: the ledger holds no commit, though it holds something.
        WrongLastSequenceError: a master committed meanwhile: history is not in doubt for it.
    """
    head = await newest_readable(streams.ledger)
    control = await streams.control.bounds()
    draft = genesis(
        head, generation, reason, events_first=await _whole_from(streams.events), control_first=max(1, control.first)
    )
    first = signed_begin(draft, cluster, signer)
    await streams.ledger.publish(
        ledger_subject(cluster),
        encode_commit(first),
        message_id=f"{first.version}-{first.digest}",
        expected_last=first.version - 1,
    )
    return first


async def newest_readable(ledger: Stream) -> Commit | None:
    """Return the newest message that is a commit, under the ledger's last version: what is in doubt may be none at all."""
    message = await ledger.last()
    if message is None:
        return None
    for seq in range(message.seq, (await ledger.bounds()).first - 1, -1):
        found = message if seq == message.seq else await ledger.get(seq)
        with suppress(ChainBrokenError):
            if found is not None:
                return msgspec.structs.replace(stored_commit(found), version=message.seq)
    raise HistoryError(f"{ledger.name}: holds messages, and no commit among them")


async def _whole_from(stream: Stream) -> int:
    """Return the sequence from which on nothing is missing in the stream."""
    bounds = await stream.bounds()
    first = max(1, bounds.first)
    while first <= bounds.last:
        reached = first - 1
        try:
            async for batch in stream.read(after=reached, until=bounds.last):
                reached = batch[-1].seq
        except HistoryGapError:
            first = await end_of_hole(stream, reached + 1, bounds.last)
        else:
            break
    return first


async def end_of_hole(stream: Stream, missing: int, last: int) -> int:
    """Return the first sequence after a hole; one by one at first, so that nothing between short holes is passed over."""
    for seq in range(missing + 1, min(missing + _ONE_BY_ONE, last + 1)):
        if await stream.get(seq) is not None:
            return seq
    return await next_after(stream, min(missing + _ONE_BY_ONE, last + 1) - 1, last)

"""How a generation of the ledger is begun: by an operator who has looked, or by a master after what a bus may lose."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from adapters.clock import new_generation
from adapters.keys import Signer
from adapters.log.generations import GENERATION_CHARS_MAX, signed_begin
from adapters.log.history import Streams, stored_commit
from adapters.log.holes import next_after
from domain.errors import ChainBrokenError, HistoryGapError
from domain.events.commit import Commit, encode_commit
from domain.ids import Generation
from domain.master.step import genesis
from domain.ports import Stream
from domain.subjects import ledger_subject

_COUNTED: Final = re.compile(r"[0-9a-f]{4}")
_ONE_BY_ONE: Final = 1000
"""Sequences of a hole that are asked for one by one."""


async def begin_generation(
    streams: Streams, generation: Generation, reason: str, *, cluster: str, signer: Signer
) -> Commit:
    """Begin a new generation of the ledger, signed by who begins it; return its first commit.

    `signer`: of the operator's key (`nkey_seed`), who has looked; of the master's own where lost facts let it begin by itself.

    The state begins empty and folds again what LW_EVENTS and LW_CONTROL hold after their last holes; nothing that is stored is
    removed. It stands behind all that the ledger has ever held, whatever of that is gone or is no commit.

    Raises:
        WrongLastSequenceError: a master committed meanwhile: history is not in doubt for it.
    """
    # the end before the head: what is committed in between must not be passed over
    ended, head = (await streams.ledger.bounds()).last, await newest_readable(streams.ledger)
    events_first, control_first = await _whole_from(streams.events), await _whole_from(streams.control)
    draft = genesis(head, generation, reason, events_first=events_first, control_first=control_first)
    first = signed_begin(msgspec.structs.replace(draft, version=ended + 1), cluster, signer)
    await streams.ledger.publish(
        ledger_subject(cluster),
        encode_commit(first),
        message_id=f"{first.version}-{first.digest}",
        expected_last=first.version - 1,
    )
    return first


def later_than(known: Sequence[Generation], claimed: Sequence[Generation] = ()) -> Generation:
    """Return the name of a new generation that sorts behind all of these.

    `claimed`: names that anybody may have given; one that leaves no name behind it does not count.
    """
    newest = max(known, default=Generation(""))
    later = _behind(max([newest, *claimed]))
    return later if len(later) <= GENERATION_CHARS_MAX else _behind(newest)


def _behind(before: Generation) -> Generation:
    later = new_generation(_count_of(before) + 1)
    return later if later > before else Generation(f"{before}1")  # the last name that is counted is taken


def _count_of(generation: Generation) -> int:
    """Return which history a generation names, from its first 4 hex digits; 0 if it names none."""
    return int(generation[:4], 16) if _COUNTED.match(generation) else 0


async def newest_readable(ledger: Stream) -> Commit | None:
    """Return the newest message that is a commit; None if there is none: what is in doubt may be none at all."""
    message = await ledger.last()
    if message is None:
        return None
    for seq in range(message.seq, (await ledger.bounds()).first - 1, -1):
        found = message if seq == message.seq else await ledger.get(seq)
        with suppress(ChainBrokenError):
            if found is not None:
                return stored_commit(found)
    return None


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

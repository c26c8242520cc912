"""What a master checks before it decides anything, and how it says that it will not."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from adapters.log.begun import generations, newest_begun
from adapters.log.checkpoints import Kept, signed_by
from adapters.log.generations import check_begun, safe_mode_left
from adapters.log.history import check_witness, first_of_generation, last_commit, stored_commit
from adapters.log.lost import standing
from adapters.log.scan import Scanned, scan
from adapters.log.tail import check_inputs
from adapters.nats.api import StreamMissingError
from domain.errors import BusError, ChainBrokenError, HistoryError, HistoryGapError, LedgerBehindError
from domain.events import Checkpoint, SafeModeEntered, codec
from domain.events.base import tag_of
from domain.events.commit import Commit
from domain.ids import Generation
from domain.policies import rules_of
from domain.ports import Stream, Witnessed
from services.master.parts import Parts
from services.master.witnesses import NOTHING, WHO, Archived

LOG = logging.getLogger("leaseway.master")
SAY_S: Final = 2.0
REASON_CHARS_MAX: Final = 250
_CHECKPOINT: Final = tag_of(Checkpoint).removeprefix("obs")
"""What the subject of such an observation ends in."""
MISSING_US: Final = 5_000_000
"""A server that starts may say for so long that it has no such stream."""


async def trusted_head(parts: Parts, note: Callable[[Generation], None]) -> Commit | None:
    """Return the ledger's last commit once all of its history is found to be what was digested, signed and witnessed.

    `note` is told of the newest generation that was begun by who may, before anything else is judged.

    Raises:
        HistoryError, HistoryGapError: history is in doubt.
        BusError: the bus cannot be asked.
    """
    # known whatever else cannot be read: an operator's word is one that begins a later generation than this
    await _note(parts, await last_commit(parts.streams.ledger), note)
    # witnesses before the ledger's head: an active master adds to all of them, to the ledger first
    kept = await parts.witness.read()
    fed = await _fed(parts)
    archived, vouched = await _archived(parts)
    head = await last_commit(parts.streams.ledger)
    await _note(parts, head, note)
    check_witness(kept, head)
    check_witness(fed, head, who="the feed")
    check_witness(archived.newest, head, who=WHO)
    newest = _newest(vouched)
    check_witness(newest, head, who=f"a signed checkpoint in {WHO}")
    signed = await _signed(parts, head)
    for each in (kept, archived.newest):
        await _check_stands(parts.streams.ledger, each, head)
    # not what ClickHouse has seen: anybody's commit gets there, and who believes it would take a forged generation for known
    seen = (kept, fed, newest)
    await _check_renewed(parts, head, [each.generation for each in seen if each is not None])
    await _check_word(parts, head, [*signed, *vouched])
    newer = [each for each in (*seen, archived.newest) if each is not None]
    await _check_passed_over(parts.streams.ledger, head, newer, parts.signer.public)
    await check_inputs(parts.streams, head)
    if head is not None:
        rules_of(head)
        await _scan(parts, head, _together(signed, vouched, head))
    return head


async def _note(parts: Parts, head: Commit | None, note: Callable[[Generation], None]) -> None:
    note(await newest_begun(parts.streams.ledger, head, parts.beginners))


async def _check_stands(ledger: Stream, witnessed: Witnessed | None, head: Commit | None) -> None:
    """Check that the commit that a witness has seen still stands where it stood, though others came behind it since."""
    if witnessed is None or head is None or head.generation != witnessed.generation:
        return
    message = await ledger.get(witnessed.version)
    if message is not None:
        check_witness(witnessed, stored_commit(message))


async def _archived(parts: Parts) -> tuple[Archived, list[Kept]]:
    """Return what ClickHouse has seen, and the checkpoints there that this cluster's master has signed."""
    archived = await parts.ask_clickhouse() if parts.ask_clickhouse is not None else NOTHING
    vouched = await asyncio.to_thread(parts.checkpoints.ours, archived.signed) if parts.checkpoints is not None else []
    return archived, vouched


def _together(signed: Sequence[Kept], vouched: Sequence[Kept], head: Commit) -> list[Kept]:
    """Return the checkpoints of the ledger's generation, each once."""
    known = {each.checkpoint for each in signed}
    more = [each for each in vouched if each.checkpoint.generation == head.generation]
    return [*signed, *(each for each in more if each.checkpoint not in known)]


def _newest(vouched: Sequence[Kept]) -> Witnessed | None:
    """Return the commit of the newest of these checkpoints; None if there is none."""
    found = max((each.checkpoint for each in vouched), key=lambda each: (each.generation, each.version), default=None)
    return Witnessed(generation=found.generation, version=found.version, digest=found.digest) if found else None


async def _signed(parts: Parts, head: Commit | None) -> list[Kept]:
    """Return the checkpoints of the generation that the ledger is of."""
    if parts.checkpoints is None:
        return []
    newest = max(parts.checkpoints.book.generations(), default=Generation(""))
    if newest > (head.generation if head is not None else ""):
        at = f"is of generation {head.generation}" if head is not None else "is empty"
        what = f"ledger: it {at}, but a checkpoint of the data directory was signed in generation {newest}"
        raise LedgerBehindError(what, newest)
    return await parts.checkpoints.of(newest) if head is not None and newest == head.generation else []


async def _check_renewed(parts: Parts, head: Commit | None, seen: list[Generation]) -> None:
    """Check that a generation after one that was seen begins with an operator's word.

    A master that has seen nothing begins a history by itself where the ledger is empty; whoever has seen another one must not
    take that for its successor. A word may be gone for its age; then what a master has signed in that generation speaks for it.
    """
    book = parts.checkpoints.book.generations() if parts.checkpoints is not None else []
    newest = max([*seen, *book], default=Generation(""))
    if head is None or not newest or head.generation <= newest or await renewed(parts, newest):
        return
    begins = f"generation {head.generation} begins without an operator's word"
    said = f"ledger: {begins}, though generation {newest} was seen"
    if (await first_of_generation(parts.streams.ledger, head)).version > 1:
        if any(each.checkpoint.generation == head.generation for each in await _stated(parts)):
            return
        said += "; its first commits are gone, and no checkpoint that the master has signed is of it"
    raise HistoryError(said)


async def _stated(parts: Parts) -> list[Kept]:
    """Return the checkpoints among the facts that this cluster's master has signed."""
    events, found = parts.streams.events, list[Kept]()
    bounds = await events.bounds()
    async for message in standing(events, max(0, bounds.first - 1), bounds.last):
        if message.subject.endswith(_CHECKPOINT):
            with suppress(msgspec.DecodeError, RecursionError):
                fact = codec.decode_input(codec.decode_envelope(message.body).data)
                if isinstance(fact, Checkpoint):
                    found.append(Kept(checkpoint=fact, source=events.name))
    return signed_by(found, parts.signer.public, parts.reader.cluster)


async def renewed(parts: Parts, doubted: Generation) -> Generation:
    """Return the generation that an operator has begun after `doubted`; empty if there is none, or if its beginning is gone.

    Raises:
        HistoryError: the ledger's last message is no commit, or the word that began its generation is not the operator's.
    """
    ledger = parts.streams.ledger
    head = await last_commit(ledger)
    if head is None or head.generation <= doubted:
        return Generation("")
    first = await first_of_generation(ledger, head)
    await check_begun(ledger, first, parts.beginners)
    return head.generation if safe_mode_left(first) is not None else Generation("")


async def _check_word(parts: Parts, head: Commit | None, signed: Sequence[Kept]) -> None:
    """Check that the generation was begun by who may; what a master has signed in one says that it was.

    Masters before 0.1.0 asked for no signature, and what they have decided since is no doubt by itself.
    """
    if head is not None and not any(kept.checkpoint.generation == head.generation for kept in signed):
        ledger = parts.streams.ledger
        await check_begun(ledger, await first_of_generation(ledger, head), parts.beginners)


async def _check_passed_over(ledger: Stream, head: Commit | None, seen: Sequence[Witnessed], public: str) -> None:
    """Check that no master has begun a generation by itself in place of commits that were seen.

    Lost facts alone let it, and a ledger loses nothing by a power cut: whatever else is lost is for the operator to pass over.
    `public`: the master's key.
    """
    with suppress(ChainBrokenError):  # what stands before is no commit: nobody can say what it was
        async for first, _ in generations(ledger, head):
            left = safe_mode_left(first)
            if left is None or left.public != public:
                return
            for each in seen:
                if each.generation == left.old_generation and each.version > left.old_version:
                    raise HistoryError(
                        f"ledger: the master has begun generation {first.generation} by itself after version {left.old_version} "
                        f"of generation {left.old_generation}, though version {each.version} was seen"
                    )


async def _fed(parts: Parts) -> Witnessed | None:
    """Return the newest commit of which the feed holds a decision; None where it holds none, or does not say."""
    try:
        await parts.feed.resume()
    except BusError as error:
        LOG.warning("feed_not_read", extra={"error": str(error)})
        return None
    generation, version, _ = parts.feed.at
    # version 0: nothing but a word of ours about safe mode, said before there was any commit
    return Witnessed(generation=Generation(generation), version=version, digest="") if version else None


async def _scan(parts: Parts, head: Commit, signed: Sequence[Kept], *, tail_lost: bool = False) -> Scanned:
    began_us, now_ns = parts.clock.monotonic_us(), parts.clock.wall_us() * 1000
    first = await first_of_generation(parts.streams.ledger, head)
    ages = msgspec.structs.replace(parts.ages, now_ns=now_ns)
    found = await scan(
        parts.streams, first, head, subject=parts.ledger.subject, checkpoints=signed, ages=ages, tail_lost=tail_lost
    )
    took_ms = (parts.clock.monotonic_us() - began_us) // 1000
    LOG.info("history_checked", extra={**msgspec.to_builtins(found), "checkpoints": len(signed), "took_ms": took_ms})
    return found


async def what_else(parts: Parts, lost: HistoryError | HistoryGapError) -> HistoryError | HistoryGapError | None:
    """Return what is wrong with history besides that the newest facts are `lost`, as relaxed durability allows; None: nothing.

    Raises:
        BusError: the bus cannot be asked.
    """
    try:
        head = await last_commit(parts.streams.ledger)
        if head is None:
            return lost
        _, vouched = await _archived(parts)
        found = await _scan(parts, head, _together(await _signed(parts, head), vouched, head), tail_lost=True)
    except (HistoryError, HistoryGapError) as worse:
        return worse
    return None if found.lost_from else lost


class Missing:
    """A stream that is not there: a server may still be starting, nobody may have provisioned yet, or history is gone."""

    def __init__(self) -> None:
        self._since_us: int | None = None

    async def for_good(self, error: BusError, parts: Parts) -> str:
        """Return what to doubt if a stream is gone that must be there, since this data directory has seen commits; else empty."""
        now_us = parts.clock.monotonic_us()
        if not isinstance(error, StreamMissingError):
            self._since_us = None
            return ""
        if self._since_us is None:
            self._since_us = now_us
        if now_us - self._since_us < MISSING_US or not await _has_seen_commits(parts):
            return ""
        gone = [stream.name for stream in _all(parts) if not await _is_there(stream)]
        return f"{', '.join(gone) or 'a stream'}: not there, though the data directory has seen commits ({error})"


def _all(parts: Parts) -> tuple[Stream, ...]:
    return parts.streams.events, parts.streams.control, parts.streams.ledger


async def _is_there(stream: Stream) -> bool:
    try:
        await stream.bounds()
    except BusError:
        return False
    return True


async def _has_seen_commits(parts: Parts) -> bool:
    try:
        signed = parts.checkpoints.book.generations() if parts.checkpoints is not None else []
        return bool(signed) or await parts.witness.read() is not None
    except HistoryError:
        return True  # it has seen something, though nobody can read what


async def say_safe_mode(parts: Parts, doubt: str, generation: Generation) -> bool:
    """Store `safe_mode.entered` in the feed, signed, for whoever listens; tell whether the feed has it."""
    try:
        async with asyncio.timeout(SAY_S):
            await parts.feed.alarm(SafeModeEntered(reason=doubt[:REASON_CHARS_MAX]), generation)
    except (BusError, HistoryError, TimeoutError) as error:
        LOG.warning("safe_mode_not_said", extra={"error": str(error) or "no answer"})
        return False
    return True

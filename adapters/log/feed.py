"""The public feed of decisions: what the ledger holds, published in order, each decision once.

An outbox without a store of its own: the last message of the feed says how far it has come, and the whole-stream
expectation lets only the next one in, whoever publishes. So any master may publish any commit again.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

import msgspec

from adapters.decisions import DecisionReader, SignedDecision
from adapters.headers import decode_headers, is_number
from adapters.keys import Signer
from adapters.log.pipelined import PipelinedStream
from domain.errors import (
    HistoryError,
    NoAnswerError,
    PublishRefusedError,
    PublishUnknownError,
    WrongLastSequenceError,
)
from domain.events import Decision, Envelope, OwnerPlanned, SafeModeEntered, codec
from domain.events.commit import Commit
from domain.ids import Generation
from domain.ports import Clock, Stored, Stream
from domain.subjects import decision_subject

ORDER: Final = "Lw-Order"
"""Header of every decision: `<generation>-<version>.<index>`."""
_BACKOFF_S: Final = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)

Order = tuple[str, int, int]
BEFORE_ALL: Final[Order] = ("", 0, -1)
LOOK_BACK_MAX: Final = 1000
"""Messages of somebody else behind our newest; with more, a whole generation is published again, which nodes pass over."""
LOG = logging.getLogger("leaseway.master")


class Feed:
    """Publishes the decisions of commits on LW_DECISIONS."""

    def __init__(self, stream: PipelinedStream, *, cluster: str, signer: Signer, clock: Clock) -> None:
        self._stream, self._cluster, self._signer, self._clock = stream, cluster, signer, clock
        self._reader = DecisionReader(cluster, signer.public)
        self._at: Order | None = None
        """Of the newest decision in the feed; None while that is not known."""
        self._seq = 0

    async def resume(self) -> tuple[int, int]:
        """Return (version, index) of the last decision stored, (0, -1) if there is none: publish from that commit on.

        What stands there and is not signed with our key says nothing: no decision rests on the feed, and nodes believe none.
        """
        self._seq = (await self._stream.bounds()).last
        signed, strange = await newest_signed(self._stream, self._reader)
        if strange:
            LOG.warning("feed_not_ours", extra={"stream": self._stream.name, "messages": strange})
        self._at = signed.order if signed is not None else BEFORE_ALL
        return self._at[1], self._at[2]

    @property
    def at(self) -> Order:
        """Return (generation, version, index) of the newest decision known to be in the feed, as of the last answer."""
        return self._at or BEFORE_ALL

    def ours(self, body: bytes) -> SignedDecision | None:
        """Return the decision in `body` if it was signed as this feed signs; else None."""
        return self._reader.read(body)

    async def publish(self, commit: Commit) -> None:
        """Publish every decision of `commit` but the plans, as far as they are not in the feed yet.

        Asks until it knows, however long the bus is away; cancel it to give up, and publish the commit again.

        Raises:
            PublishRefusedError: the feed will never take one of them.
        """
        attempt = 0
        while True:
            try:
                if self._at is None:
                    await self.resume()
                await self._publish_rest(commit)
            except (NoAnswerError, PublishUnknownError, WrongLastSequenceError):
                self._at = None
            else:
                return
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            attempt += 1

    async def _publish_rest(self, commit: Commit) -> None:
        """Send all that is missing at once: where one is not stored, the expectations of all later ones fail too."""
        assert self._at is not None
        at = self._at
        answers: list[tuple[Order, asyncio.Future[Stored]]] = []
        for index, decision in enumerate(commit.decisions):
            order: Order = (commit.generation, commit.version, index)
            if order > at and not isinstance(decision, OwnerPlanned):
                answers.append((order, self._send(commit.generation, order, decision, self._seq + len(answers))))
        if not answers:
            return
        outcomes = await asyncio.gather(*(answer for _, answer in answers), return_exceptions=True)
        for (order, _), outcome in zip(answers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._at = None if not isinstance(outcome, PublishRefusedError) else self._at
                raise outcome
            if outcome.duplicate:  # somebody else published it, and perhaps more: look again
                raise WrongLastSequenceError(f"{self._stream.name}: {order} is there already")
            self._at, self._seq = order, outcome.seq

    async def alarm(self, entered: SafeModeEntered, generation: Generation) -> None:
        """Store that leases end here, at the place of the newest decision: it is of no commit, and moves nothing on.

        Raises:
            BusError: it is not stored, or nobody can say.
        """
        last = await self._stream.last()
        await self.resume()
        at = self.at
        if at == BEFORE_ALL:
            at = (generation or "00000000", 0, 0)
        if last is not None and last.subject == decision_subject(self._cluster, entered) and _says(last.body, entered):
            return
        await self._send(Generation(at[0]), at, entered, self._seq, alarm=True)
        self._at = None

    def _send(
        self, generation: Generation, order: Order, decision: Decision, expected: int, *, alarm: bool = False
    ) -> "asyncio.Future[Stored]":
        name = f"{generation}-{order[1]}-{order[2]}"
        wall_us = self._clock.wall_us()
        envelope = Envelope(
            id=name,
            source=f"/{self._cluster}/master",
            type=codec.tag_of(decision),
            time=datetime.fromtimestamp(wall_us // 1_000_000, UTC).strftime(
                f"%Y-%m-%dT%H:%M:%S.{wall_us % 1_000_000:06d}Z"
            ),
            cluster=self._cluster,
            producer="master",
            mono_us=self._clock.monotonic_us(),
            cause=f"{generation}-{order[1]}",
            data=codec.raw(decision),
        )
        encoded = codec.encode(envelope)
        return self._stream.publish_soon(
            decision_subject(self._cluster, decision),
            codec.with_tag(encoded, "sig", self._signer.sign(encoded[:-1])),
            message_id=f"{name}-alarm-{expected}" if alarm else name,
            expected_last=expected,
            headers={ORDER: f"{generation}-{order[1]}.{order[2]}"},
        )


async def newest_signed(stream: Stream, reader: DecisionReader) -> tuple[SignedDecision | None, int]:
    """Return the newest decision of a feed that the master has signed, and how many messages behind it are none of its own.

    None: there is none among the newest LOOK_BACK_MAX.
    """
    last = await stream.last()
    if last is None:
        return None, 0
    strange = 0
    for seq in range(last.seq, max(0, last.seq - LOOK_BACK_MAX), -1):
        message = last if seq == last.seq else await stream.get(seq)
        if message is not None:
            if (signed := reader.read(message.body)) is not None:
                return signed, strange
            strange += 1
    return None, strange


def _says(body: bytes, entered: SafeModeEntered) -> bool:
    """Tell whether a stored decision is `entered`: a master that starts again and again says it once."""
    try:
        return codec.decode_decision(codec.decode_envelope(body).data) == entered
    except (msgspec.DecodeError, RecursionError):
        return False


def order_of(headers: bytes) -> Order:
    """Return (generation, version, index) of a stored decision, by which decisions are compared.

    Raises:
        HistoryError: it has no such header.
    """
    text = decode_headers(headers).get(ORDER, "")
    generation, dash, rest = text.partition("-")
    version, dot, index = rest.partition(".")
    if not (dash and dot and is_number(version) and is_number(index)):
        raise HistoryError(f"decision header {ORDER}: must be <generation>-<version>.<index>, got {text[:80]!r}")
    return generation, int(version), int(index)

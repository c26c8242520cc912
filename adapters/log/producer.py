"""States a node's facts on LW_EVENTS: every one, in order, however long the bus is away.

Go-back-N: facts are numbered without gaps, a window of them is under way, and an answer that did not come in time is
*unknown*, so the producer goes back to the first unacknowledged fact and sends all again, in order. The fold drops what it
has seen and refuses what comes early, so all that matters is that the stream holds each fact *after* its predecessor.

A message id alone would break that: where fact 8 was stored but 7 was not, 7 is sent again and stored, and 8, sent again,
is answered as a duplicate, stored before 7, never to be folded. Hence a duplicate counts as acknowledged only at a sequence
above its predecessor's; otherwise it is sent once more under another message id.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from adapters.keys import mac
from adapters.log.pipelined import PipelinedStream
from adapters.log.spool import Spool, SpooledFact
from domain.errors import PublishRefusedError
from domain.events import Basis, Envelope, FactsSummarised, Input, codec
from domain.ids import Incarnation, NodeId
from domain.ports import Clock, Stored
from domain.subjects import fact_subject

WINDOW: Final = 256
"""Facts under way at once."""
UNKNOWNS_MAX: Final = 3
"""So many failures in a row mean that the bus is down."""
LATE_AFTER_US: Final = 5_000_000
"""A fact that is sent first so long after it was stated is marked as late."""
SENT_TIMES_MAX: Final = 65_536
_BACKOFF_S: Final = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
_FORGET_BELOW: Final = 0.5
"""Facts are spooled again once the spool is emptier than this share of its bound."""
_LOG: Final = logging.getLogger(__name__)


class _Sent:
    """A fact in the window."""

    __slots__ = ("again", "duplicate", "fact", "seq", "spooled")

    def __init__(self, fact: SpooledFact, *, spooled: bool = True) -> None:
        self.fact = fact
        self.spooled = spooled
        """Whether it is on disk; false only where the disk refused it."""
        self.seq = 0
        """Where it is stored; 0 while that is not known."""
        self.duplicate = False
        """It was there already when it was sent last."""
        self.again = 0
        """How often it was found stored before its predecessor."""

    @property
    def message_id(self) -> str:
        name = f"{self.fact.incarnation}/{self.fact.pseq}"
        return f"{name}/{self.again}" if self.again else name


class Producer:
    """The facts of one node, for one life of its process.

    `state` may be called at any time, also before `run`; `run` is the task that keeps sending. Facts that an earlier process
    left in the spool go first, with their own incarnation.
    """

    def __init__(
        self,
        stream: PipelinedStream,
        *,
        cluster: str,
        node: NodeId,
        incarnation: Incarnation,
        mac_key: bytes,
        clock: Clock,
        spool: Spool,
    ) -> None:
        self.bus_ok = True
        """False after several failures in a row, until an answer comes: lend nothing then."""
        self.overflowed: Callable[[], None] | None = None
        """Called when facts were lost as such (a full spool, a fact too large): state a NodeSnapshot now."""
        self.acknowledged_after: Callable[[int], None] | None = None
        """Called with the microseconds between a fact's first sending and its acknowledgement."""
        self.pseq = 0
        """Of the newest fact."""
        self._stream, self._cluster, self._node, self.incarnation = stream, cluster, node, incarnation
        self._mac_key, self._clock, self._spool = mac_key, clock, spool
        self._source = f"/{cluster}/node/{node}"
        self._window: deque[_Sent] = deque()
        self._next: deque[SpooledFact] = deque()
        """Read from the spool, not in the window yet."""
        self._last_seq = spool.acknowledged_seq
        self._round = 0
        self._open = False
        """Whether new facts may be sent at once: nothing is being sent again."""
        self._probing = False
        self.unanswered = 0
        """Rounds in a row that brought no answer, or a refusal."""
        self.spoke_late = False
        """A fact of this life was marked as late since this was last set to False: state a NodeSnapshot once all is stored."""
        self._dropped: dict[str, int] = {}
        self._sent_us: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._second = (0, "")

    def state(self, fact: Input, cause: str = "") -> Basis:
        """Number `fact`, keep it on disk, send it if the bus is there; return its name.

        Never waits and never raises for trouble with bus or disk. When the spool is full the fact is only counted, and the
        number returned is that of the summary that stands for it.
        """
        if self._dropped:
            return self._drop(fact)
        spooled = self._encode(fact, self.pseq + 1, cause)
        tag = codec.tag_of(fact)
        direct = self._open and not self._probing and not self._backlog and self._may_join(self.incarnation)
        outcome = self._spool.append(spooled, urgent=tag.startswith("status."))
        if outcome == "full" or (outcome == "broken" and not direct):
            _LOG.error("spool_%s", outcome, extra={"node": self._node, "bytes": self._spool.used_bytes})
            return self._drop(fact)
        self.pseq += 1
        self._idle.clear()
        if direct:
            if outcome == "kept":
                self._spool.take_last()
            self._send(self._add(spooled, on_disk=outcome == "kept"))
        else:
            self._wake.set()
        return Basis(self._node, self.incarnation, self.pseq)

    def sent_at_us(self, basis: Basis) -> int | None:
        """Return when one of this producer's own facts was first sent, on the monotonic clock; None if unknown or too old."""
        if basis.incarnation != self.incarnation or basis.node != self._node:
            return None
        return self._sent_us.get(basis.pseq)

    async def drained(self, timeout_s: float = 10.0) -> bool:
        """Return True once every fact stated so far is acknowledged, False if it is not within `timeout_s`."""
        if not self._window and not self._backlog and not self._dropped:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Send, and send again, until cancelled."""
        self._open = not self._window
        try:
            while True:
                self._wake.clear()
                if not self._open:
                    await asyncio.sleep(_BACKOFF_S[max(0, min(self.unanswered - 1, len(_BACKOFF_S) - 1))])
                    self._go_back()
                elif not self._probing:
                    self._refill()
                await self._wake.wait()
        finally:
            self._open = False
            self._round += 1

    # -- sending

    def _refill(self) -> None:
        """Send what waits on disk, as far as the window allows; say what was left out once there is room again."""
        while self._backlog:
            if not self._next:
                self._next.extend(self._spool.take(WINDOW))
            if not self._may_join(self._next[0].incarnation):
                break
            self._send(self._add(self._as_late(self._next.popleft())))
        room = self._spool.used_bytes < self._spool.bytes_max * _FORGET_BELOW
        if self._dropped and room and not self._backlog:
            self._summarise()

    @property
    def spooled_bytes(self) -> int:
        """Bytes of the facts on disk."""
        return self._spool.used_bytes

    @property
    def _backlog(self) -> int:
        """Facts on disk that are not in the window yet."""
        return len(self._next) + self._spool.waiting

    def _may_join(self, incarnation: Incarnation) -> bool:
        """Tell whether a fact of `incarnation` may go under way now: not beside those of an earlier one.

        A newer incarnation's first fact closes the older one for good, so it may not be stored before all of the older's are.
        """
        return len(self._window) < WINDOW and (not self._window or self._window[-1].fact.incarnation == incarnation)

    def _add(self, fact: SpooledFact, *, on_disk: bool = True) -> _Sent:
        entry = _Sent(fact, spooled=on_disk)
        self._window.append(entry)
        return entry

    def _send(self, entry: _Sent) -> None:
        fact = entry.fact
        if fact.incarnation == self.incarnation and fact.pseq not in self._sent_us:
            self._sent_us[fact.pseq] = self._clock.monotonic_us()
            if len(self._sent_us) > SENT_TIMES_MAX:
                del self._sent_us[next(iter(self._sent_us))]
        answer = self._stream.publish_soon(fact.subject, fact.body, message_id=entry.message_id)
        answer.add_done_callback(partial(self._answered, entry, self._round))

    def _go_back(self) -> None:
        """Begin a new round: the first unacknowledged fact alone, to see whether the bus is there; the rest after its answer."""
        self._round += 1
        self._open = True
        for entry in self._window:
            entry.seq = 0
        if self._window:
            self._probing = True
            self._send(self._window[0])
        else:
            self._refill()

    def _answered(self, entry: _Sent, sent_in: int, answer: "asyncio.Future[Stored]") -> None:
        error = None if answer.cancelled() else answer.exception()
        if sent_in != self._round:  # an answer to a round that was given up proves nothing about the order
            return
        if answer.cancelled() or error is not None:
            self._failed(entry, error)
            return
        stored = answer.result()
        entry.seq, entry.duplicate = stored.seq, stored.duplicate
        sent_us = self._sent_us.get(entry.fact.pseq) if entry.fact.incarnation == self.incarnation else None
        if sent_us is not None and self.acknowledged_after is not None:
            self.acknowledged_after(self._clock.monotonic_us() - sent_us)
        self._advance()

    def _failed(self, entry: _Sent, error: BaseException | None) -> None:
        self._interrupt()
        self.unanswered += 1
        if self.unanswered >= UNKNOWNS_MAX and self.bus_ok:
            self.bus_ok = False
            _LOG.warning("bus_not_ok", extra={"node": self._node, "why": str(error), "unacked": len(self._window)})
        if isinstance(error, PublishRefusedError) and error.reason == "too_large":
            self._replace(entry)

    def _interrupt(self) -> None:
        """End this round: what is under way is unknown from here on, and is sent again from the first unacknowledged fact."""
        self._round += 1
        self._open = self._probing = False
        self._wake.set()

    def _advance(self) -> None:
        """Take the facts off the window that are stored, each after its predecessor."""
        on_disk = count = 0
        while self._window and (entry := self._window[0]).seq:
            # judged only here, for a replicated server may answer a duplicate before the new fact that was sent before it
            if entry.duplicate and entry.seq <= self._last_seq:
                entry.again += 1
                self._interrupt()
                break
            self._last_seq = entry.seq
            self._window.popleft()
            count += 1
            on_disk += entry.spooled
        if count:
            self._acknowledged(on_disk)
        if not self._window and not self._backlog and not self._dropped:
            self._idle.set()
        elif self._dropped or (self._backlog and len(self._window) <= WINDOW // 2):
            self._wake.set()

    def _acknowledged(self, on_disk: int) -> None:
        if on_disk:
            self._spool.acknowledge(on_disk, self._last_seq)
        self.unanswered = 0
        """Rounds in a row that brought no answer, or a refusal."""
        if not self.bus_ok:
            self.bus_ok = True
            _LOG.info("bus_ok", extra={"node": self._node, "spooled": self._backlog})
        if self._probing:
            self._probing = False
            for entry in self._window:
                self._send(entry)

    # -- bytes

    def _encode(self, fact: Input, pseq: int, cause: str = "") -> SpooledFact:
        self.spoke_late = self.spoke_late or not self.bus_ok
        envelope = Envelope(
            id=f"{self.incarnation}/{pseq}",
            source=self._source,
            type=codec.tag_of(fact),
            time=self._wall_time(),
            cluster=self._cluster,
            producer=self._node,
            incarnation=self.incarnation,
            pseq=str(pseq),
            mono_us=self._clock.monotonic_us(),
            cause=cause,
            late=not self.bus_ok,
            data=codec.raw(fact),
        )
        subject = fact_subject(self._cluster, self._node, fact)
        return SpooledFact(self.incarnation, pseq, subject, self._authenticated(envelope))

    def _authenticated(self, envelope: Envelope) -> bytes:
        encoded = codec.encode(envelope)
        return codec.with_tag(encoded, "mac", mac(self._mac_key, encoded[:-1]))

    def _as_late(self, fact: SpooledFact) -> SpooledFact:
        """Return `fact`, never sent before, marked as late if it waited for long. What an earlier process said stays as it is."""
        if fact.incarnation != self.incarnation:
            return fact
        tagged = codec.split_tag(fact.body, "mac")
        assert tagged is not None
        envelope = codec.decode_envelope(tagged[0] + b"}")
        if envelope.late or self._clock.monotonic_us() - envelope.mono_us < LATE_AFTER_US:
            return fact
        self.spoke_late = True
        body = self._authenticated(msgspec.structs.replace(envelope, late=True))
        return msgspec.structs.replace(fact, body=body)

    def _wall_time(self) -> str:
        second, micro = divmod(self._clock.wall_us(), 1_000_000)
        if self._second[0] != second:
            self._second = (second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        return f"{self._second[1]}.{micro:06d}Z"

    # -- facts that are lost as such

    def _drop(self, fact: Input) -> Basis:
        tag = codec.tag_of(fact)
        self._dropped[tag] = self._dropped.get(tag, 0) + 1
        self._idle.clear()
        self._wake.set()
        return Basis(self._node, self.incarnation, self.pseq + 1)

    def _summarise(self) -> None:
        """State in the place of the dropped facts how many they were, and ask for a snapshot of what is."""
        counts, self._dropped = self._dropped, {}
        place = self.pseq + 1
        self.state(FactsSummarised(counts=counts, first_pseq=place, last_pseq=place))
        if self._dropped:  # the disk refuses even that: count on
            self._dropped = counts
        elif self.overflowed is not None:
            self.overflowed()

    def _replace(self, entry: _Sent) -> None:
        """Put a summary in the place of a fact that the stream will never take."""
        fact = entry.fact
        tagged = codec.split_tag(fact.body, "mac")
        assert tagged is not None, "every fact was tagged here"
        lost = codec.decode_envelope(tagged[0] + b"}")
        _LOG.error(
            "fact_too_large", extra={"node": self._node, "fact": lost.id, "tag": lost.type, "bytes": len(fact.body)}
        )
        summary = FactsSummarised(counts={lost.type: 1}, first_pseq=fact.pseq, last_pseq=fact.pseq)
        body = self._authenticated(msgspec.structs.replace(lost, type=codec.tag_of(summary), data=codec.raw(summary)))
        subject = fact_subject(self._cluster, self._node, summary)
        entry.fact = SpooledFact(fact.incarnation, fact.pseq, subject, body)
        # a snapshot that is too large itself would ask for the next one, for ever; what an earlier process had open is closed
        # by the next `registered`
        if self.overflowed is not None and fact.incarnation == self.incarnation and lost.type != "status.snapshot":
            self.overflowed()

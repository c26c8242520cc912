"""The master's life: standby (apply commits) or active (fold, decide, commit), and safe mode when history is in doubt.

Nothing elects a master. Whoever holds the right last version gets its commit stored; who does not drops its state and follows.
Heartbeats only keep standbys from competing.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress

import msgspec

from adapters.log.generations import GAP
from adapters.log.history import History, first_of_generation, stored_commit
from adapters.log.renewal import begin_generation, later_than, newest_readable
from domain.errors import BusError, FactsLostError, HistoryError, HistoryGapError, LedgerBehindError
from domain.events.commit import Commit, encode_commit
from domain.ids import Generation
from domain.master.decide import Decided, Head, decide
from domain.master.health import next_due_us
from domain.master.state import State, encode_state
from domain.master.step import Range, after, commit, fold_into
from domain.policies import CURRENT
from domain.ports import StoredMessage, Stream, Witnessed
from domain.subjects import EVENTS
from services.master.alarm import Alarm
from services.master.checkpoints import Where
from services.master.following import Following
from services.master.observer import LOOK_EVERY_S
from services.master.outbox import Outbox
from services.master.parts import Deposed, Parts, first_cause, is_long, pour
from services.master.seen import check_seen, check_unfolded
from services.master.trust import Missing, renewed, say_safe_mode, trusted_head, what_else

__all__ = ["Deposed", "MasterLoop", "Parts"]
LOG = logging.getLogger("leaseway.master")
TAKEOVER_SILENCE_US = 2_000_000
"""A standby takes over when no active master was heard for so long."""
FIRST_WAIT_US = 700_000
"""At its start a master listens this long for another one; masters beat every half second."""
SNAPSHOT_EVERY = 500
SNAPSHOTS_TRIED = 3
BATCHES_AHEAD = 16
SIDE_EVERY_S = 0.2
RING_EVERY_S = 0.02
"""Timers are looked at no more often, however many commits there are."""
SAFE_LOOK_EVERY_S = 0.5
NO_OPERATOR = (
    "this master's credentials do not name the operator, whose word alone ends safe mode: bring it master.json again, as "
    "`leaseway provision` has written it, and start it anew"
)
"""What a master says that would believe nobody."""


class MasterLoop:
    """One master process: `run` lives its life, `mode` and `history` say where it is."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.mode = "starting"
        """starting, standby, active or safe_mode."""
        self.doubt = ""
        """Why history is in doubt; empty outside safe mode."""
        self.history = self._blank()
        self.ready = asyncio.Event()
        """Set once the master follows, decides, or knows that it may not."""
        self._outbox = Outbox(parts.streams.ledger, parts.feed)
        self._committed = asyncio.Event()
        """A commit was stored: the earliest timer may be another one."""
        self._span = Range()
        """What is folded since the last commit."""
        self._snapshot: tuple[int, bytes] | None = None
        """(version, content) to be saved next; an older one that was not saved yet is not worth it any more."""
        self._vouched = ""
        """Digest of the state that the last commit of this reign states; empty if it states none."""
        self._missing = Missing()
        self._loaded = Generation("")
        """The newest generation of the ledger, when it was loaded, that was begun by who may."""
        self.behind = Generation("")
        """In safe mode: the generation behind which the ledger is; what an operator begins has to sort behind it. Else empty."""

    def _blank(self) -> History:
        return History(self.parts.streams, self.parts.reader, complaint=self.parts.beginners.complaint)

    @property
    def feed_trouble(self) -> str:
        """Why decisions do not reach the feed; empty while they do."""
        return self._outbox.trouble

    @property
    def state(self) -> State:
        """The state as far as it is folded."""
        state: State = self.history.state
        return state

    async def run(self) -> None:
        """Load, follow, and decide whenever no other master does; for ever, or in safe mode if history is in doubt."""
        while True:
            try:
                await self._load()
                await self._stand_by()
                await self._reign()
            except Deposed:
                LOG.warning("deposed", extra={"version": self.history.position.version})
            except (HistoryError, HistoryGapError) as error:
                await self._doubt_history(error)
            except BusError as error:
                LOG.warning("bus_failed", extra={"error": str(error)})
                if doubt := await self._missing.for_good(error, self.parts):
                    await self._safe_mode(doubt)
                await asyncio.sleep(0.5)

    async def _doubt_history(self, error: HistoryError | HistoryGapError) -> None:
        """Begin anew if nothing is wrong but what a bus of relaxed durability may lose; else be in safe mode."""
        worse: HistoryError | HistoryGapError | None = error
        try:
            if self._may_be_lost(error):
                worse = await what_else(self.parts, error)
            if worse is None:
                await self._begin_anew(str(error))
        except BusError as failed:
            LOG.warning("bus_failed", extra={"error": str(failed)})
            await asyncio.sleep(0.5)  # and all of it again
            return
        if worse is not None:
            self.behind = Generation(worse.generation if isinstance(worse, LedgerBehindError) else "")
            await self._safe_mode(str(worse))

    def _may_be_lost(self, error: HistoryError | HistoryGapError) -> bool:
        """Tell whether it may be what a bus of relaxed durability may lose, before this master decided anything."""
        lost = isinstance(error, FactsLostError) or (isinstance(error, HistoryGapError) and error.stream == EVENTS)
        return lost and self.parts.relaxed and self.mode != "active"

    async def _begin_anew(self, gap: str) -> None:
        """Begin a new generation over what is left, as a bus of relaxed durability has been promised to: never silently."""
        LOG.error("history_gap", extra={"gap": gap})
        cluster, signer = self.parts.reader.cluster, self.parts.signer
        # also behind one that was believed for a checkpoint, its beginner's key being gone or another one
        head = await newest_readable(self.parts.streams.ledger)
        later = later_than([self._loaded], [head.generation] if head is not None else [])
        await begin_generation(self.parts.streams, later, GAP + gap, cluster=cluster, signer=signer)

    async def _safe_mode(self, doubt: str) -> None:
        """Decide nothing, say so loudly, and stay until an operator has begun a new generation of the ledger."""
        if not self.parts.operator_public:
            doubt += f"; {NO_OPERATOR}"
        self.mode, self.doubt = "safe_mode", doubt
        self.ready.set()
        LOG.error("safe_mode", extra={"doubt": doubt, "version": self.history.position.version})
        doubted = max(self._loaded, self.history.position.generation)
        generation, aside, said, why = Generation(""), "", False, ""
        while not generation:
            said = said or await say_safe_mode(self.parts, doubt, self._loaded)
            await asyncio.sleep(SAFE_LOOK_EVERY_S)
            try:
                begun = await self._renewed(doubted)
                # else it would hold this master in safe mode whatever generation begins
                aside = await self.parts.witness.put_aside() if begun else ""
                generation = begun
            except HistoryError as error:
                if str(error) not in {why, doubt}:
                    why = str(error)
                    self.doubt = f"{doubt}; not left: {why}"
                    LOG.error("safe_mode_not_left", extra={"why": why})  # noqa: TRY400  # the words say it all
            except BusError:
                pass
        LOG.warning("safe_mode_left", extra={"doubt": doubt, "generation": generation, "put_aside": aside})
        self.doubt, self.behind = "", Generation("")

    async def _renewed(self, doubted: Generation) -> Generation:
        """Return the generation that an operator has begun; empty if there is none."""
        begun = await renewed(self.parts, doubted)
        if begun and begun <= self.behind:
            what = f"generation {begun} was begun, but {self.behind} was seen, and it must sort behind that"
            raise HistoryError(f"{what}: let this process run, and begin another one")
        return begun

    # ---- loading and standing by -------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Restore the newest snapshot that a commit vouches for, and apply what follows it."""
        self.mode, self.history = "starting", self._blank()
        head = await trusted_head(self.parts, self._note)
        if head is None:
            return
        await self._restore(head)
        await self.history.catch_up(head)

    def _note(self, begun: Generation) -> None:
        self._loaded = begun

    async def _restore(self, head: Commit) -> None:
        """Begin at the newest snapshot of this generation that a commit vouches for, or at the generation's first commit."""
        first = await first_of_generation(self.parts.streams.ledger, head)
        self.history.begin_at(first)
        upto = head.version
        for _ in range(SNAPSHOTS_TRIED):
            newest = await self.parts.snapshots.newest(not_after=upto)
            if newest is None or newest[0] < first.version:
                return
            message = await self.parts.streams.ledger.get(newest[0])
            if message is not None and self.history.restore(newest[1], stored_commit(message)):
                return
            LOG.warning("snapshot_unusable", extra={"version": newest[0]})
            upto = newest[0] - 1

    async def _stand_by(self) -> None:
        """Apply the commits of the active master until none is heard of for a while."""
        self.mode = "standby"
        since_us = self.parts.clock.monotonic_us()
        wait_us = FIRST_WAIT_US
        async with aclosing(Following(self.history, self.parts.clock)) as following:
            while True:
                await following.catch_up()
                now_us = self.parts.clock.monotonic_us()
                heard_us = self.parts.observer.master_seen_us
                if heard_us is not None:
                    since_us, wait_us = max(since_us, heard_us), TAKEOVER_SILENCE_US
                    self.ready.set()
                if now_us - since_us >= wait_us:
                    return
                await asyncio.sleep(0.1)

    # ---- deciding ----------------------------------------------------------------------------------------------------

    async def _reign(self) -> None:
        """Be the active master until another commit is found where ours was to be."""
        await check_unfolded(self.parts, self.history.position)
        self.history.adopt(CURRENT)  # an older policy's state: the claim below is the commit that switches
        self.state.term = self.history.position.term + 1
        self._span = Range()
        self.parts.observer.begin()
        self._outbox = Outbox(self.parts.streams.ledger, self.parts.feed)
        await self._claim()
        LOG.info("active", extra={"term": self.state.term, "version": self.history.position.version})
        self.mode = "active"
        self.ready.set()
        inbox: asyncio.Queue[tuple[Stream, Sequence[StoredMessage]]] = asyncio.Queue(BATCHES_AHEAD)
        position = self.history.position
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pour(self.parts.streams.events, position.hi, inbox))
                group.create_task(pour(self.parts.streams.control, position.chi, inbox))
                group.create_task(self._beat())
                group.create_task(self._watch())
                group.create_task(self._ring())
                group.create_task(self._outbox.run())
                group.create_task(self._keep_witness())
                group.create_task(self._keep_snapshots())
                if self.parts.checkpoints is not None:
                    group.create_task(self.parts.checkpoints.keep(self.where, self.parts.observer))
                group.create_task(self._decide(inbox))
        except BaseExceptionGroup as failed:
            raise first_cause(failed) from failed

    async def _claim(self) -> None:
        """Store the term's first commit, over no input, before anything is observed or decided in its name.

        So no two masters ever share a term, and a master that is stale learns it now. The commit carries the state's digest,
        and what the last master left unsaid about nodes.
        """
        position = self.history.position
        if not position.generation:
            position = msgspec.structs.replace(position, generation=self.parts.new_generation)
            self.history.position = position
        decided = decide(self.state, Head(position.generation, position.version + 1), 0)
        await self._store(commit(self.state, position, Range(), decided, with_state=True))

    async def _decide(self, inbox: asyncio.Queue[tuple[Stream, Sequence[StoredMessage]]]) -> None:
        while True:
            while (
                made := self._cut(self._span)
            ) is not None:  # one commit can leave something for the next; so can a master
                await self._store(made)
                self._span = Range()
            await self._fold(self._span, *await inbox.get())
            while not inbox.empty() and not is_long(self._span):
                await self._fold(self._span, *inbox.get_nowait())

    async def _fold(self, span: Range, stream: Stream, batch: Sequence[StoredMessage]) -> None:
        reader = self.parts.reader
        if stream is self.parts.streams.control:
            fold_into(self.state, span, [(reader.control(message), message) for message in batch], [])
        else:
            facts = reader.facts(batch)
            await check_seen(self.parts, self.history.position, (fact for fact, _ in facts))
            fold_into(self.state, span, [], facts)

    def _cut(self, span: Range) -> Commit | None:
        """Return the commit over what is folded, if anything follows from it."""
        position = self.history.position
        decided: Decided = decide(self.state, Head(position.generation, position.version + 1))
        long = is_long(span)
        if not decided.decisions and not long:
            return None
        with_state = long or (position.version + 1) % SNAPSHOT_EVERY == 0
        return commit(self.state, position, span, decided, with_state=with_state)

    async def _store(self, made: Commit) -> None:
        snapshot = encode_state(self.state) if made.state else b""
        if not await self.parts.ledger.append(made.version, encode_commit(made), made.digest):
            raise Deposed
        self.history.position, self._vouched = after(made), made.state
        self._committed.set()
        self._outbox.put(made)
        if snapshot:
            self._snapshot = (made.version, snapshot)

    def where(self) -> Where:
        """Return where the ledger stands and what is read beyond it, as of this moment."""
        return Where(self.history.position, self._vouched, self._span)

    async def sign_off(self) -> None:
        """Sign where the ledger stands, and what is read beyond it, once `run` has ended: nothing of it can be lost unseen."""
        if self.mode == "active" and self.parts.checkpoints is not None:
            await self.parts.checkpoints.add(self.where())

    # ---- beside the decisions ----------------------------------------------------------------------------------------

    async def _keep_snapshots(self) -> None:
        """Save the newest snapshot that a commit vouches for. Where that fails a restart only has more to fold."""
        while True:
            if self._snapshot is not None:
                (version, snapshot), self._snapshot = self._snapshot, None
                try:
                    await self.parts.snapshots.save(version, snapshot)
                except BusError as error:
                    LOG.warning("snapshot_not_saved", extra={"version": version, "error": str(error)})
            await asyncio.sleep(SIDE_EVERY_S)

    async def _keep_witness(self) -> None:
        """Remember the newest stored commit outside the ledger, not more often than a disk likes to be synced."""
        kept = 0
        while True:
            position = self.history.position
            if position.version > kept:
                seen = Witnessed(generation=position.generation, version=position.version, digest=position.digest)
                try:
                    await self.parts.witness.write(seen)
                except OSError as error:
                    LOG.warning("witness_not_kept", extra={"version": position.version, "error": str(error)})
                else:
                    kept = position.version
            await asyncio.sleep(SIDE_EVERY_S)

    async def _beat(self) -> None:
        while True:
            self.parts.observer.beat()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _watch(self) -> None:
        """Look at heartbeats."""
        while True:
            await self.parts.observer.look(self.state)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _ring(self) -> None:
        """State when the earliest timer ran out, at its moment: what is decided at a time is not decided at the next look."""
        alarm = Alarm()
        while True:
            self._committed.clear()
            due_us, now_us = next_due_us(self.state), self.parts.clock.monotonic_us()
            elapsed_us = alarm.rings(self.state.now_us, due_us, now_us)
            if elapsed_us is not None:
                await self.parts.observer.due(self.state.term, elapsed_us, self.state.now_us)
            left_s = alarm.left_us(due_us, now_us) / 1_000_000
            # not wait_for: on Python 3.11 it can lose a cancellation, and a master that was asked to stop would go on for ever
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                    await self._committed.wait()
            await asyncio.sleep(RING_EVERY_S)

"""Bugs to plant, each by name: what the campaign must find. They replace a method while a run lasts; the product has no switch.

with planted("desk_without_depth"): run_seed(7)
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from adapters.log.feed import Feed
from adapters.log.ledger import Ledger
from adapters.log.producer import Producer
from domain import runtime as runtime_module
from domain.actions import CancelEngine, CancelLend, Refuse
from domain.engine_room import EngineRoom
from domain.errors import PublishUnknownError
from domain.events import BorrowFinished
from domain.helper.desk import HelperDesk
from domain.machines import Machines
from domain.master import breaker, fold, health, leases, registration, slots, timers
from domain.owner import queue as queue_module
from domain.owner.custody import Custody
from domain.owner.leases import LeaseBook
from domain.owner.queue import OwnerQueue
from domain.owner.request import OwnRequest
from domain.runtime import ModelRuntime
from services.master.outbox import Outbox

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


class Swap(msgspec.Struct, frozen=True):
    """One function to be replaced: `change(original)` takes its place."""

    target: Any
    name: str
    change: Change


class Bug(msgspec.Struct, frozen=True):
    """A mistake that could be in the product."""

    about: str
    swaps: tuple[Swap, ...]


BUGS: dict[str, Bug] = {}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while this lasts; an empty name plants none."""
    with ExitStack() as stack:
        for swap in BUGS[name].swaps if name else ():
            stack.enter_context(patch.object(swap.target, swap.name, swap.change(getattr(swap.target, swap.name))))
        yield


def _bug(name: str, about: str, *swaps: Swap) -> None:
    BUGS[name] = Bug(about, swaps)


def _nothing(_original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_arguments, **_options: None


def _without(kind: type) -> Change:
    """Let a method that appends to `out` append nothing of a kind."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            out = next(each for each in (*arguments, *options.values()) if isinstance(each, list))
            before = len(out)
            result = original(self, *arguments, **options)
            out[before:] = [each for each in out[before:] if not isinstance(each, kind)]
            return result

        return method

    return change


def _always(value: Any) -> Change:
    return lambda _original: lambda *_arguments, **_options: value


# ---- owners ----------------------------------------------------------------------------------------------------------


def _lease_from_arrival(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: LeaseBook, event: Any, order: Any, basis_sent_us: int | None, now_us: int) -> Any:
        return original(self, event, order, basis_sent_us if basis_sent_us is None else now_us, now_us)

    return take


def _lease_too_long(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: LeaseBook, event: Any, order: Any, basis_sent_us: int | None, now_us: int) -> Any:
        result = original(self, event, order, basis_sent_us, now_us)
        if event.link in self.live:
            self.live[event.link].ends_us += event.ttl_us
        return result

    return take


def _older_lease(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: LeaseBook, event: Any, order: Any, basis_sent_us: int | None, now_us: int) -> Any:
        self.track(event.link).newest = None
        return original(self, event, order, basis_sent_us, now_us)

    return take


def _one_slot_more(_original: Callable[..., Any]) -> Callable[..., Any]:
    def free(self: LeaseBook) -> Any:
        return [one for link, one in sorted(self.live.items()) if one.takes and self.out(link) <= one.grant.slots]

    return free


def _said_twice(original: Callable[..., Any]) -> Callable[..., Any]:
    def end(self: Custody, own: Any, terminal: Any, now_us: int, out: Any) -> None:
        original(self, own, terminal, now_us, out)
        if own.gone:
            out.append(terminal)

    return end


def _forgotten(_original: Callable[..., Any]) -> Callable[..., Any]:
    def expire_held(self: Custody, now_us: int, out: Any) -> None:
        while (own := self._held.first_due()) is not None and own.deadline_us <= now_us:
            self._held.remove(own)
            del self._requests[own.new.request]

    return expire_held


def _keeps_all(_original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, own, pipe, now_us: bool(own.lendable and self.leases.live)


def _unbounded(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: ModelRuntime, config: Any) -> None:
        original(self, msgspec.structs.replace(config, held_max=1_000_000))

    return init


_bug("owner_lends_again", "a returned request is lent again", Swap(OwnRequest, "keep_from_lending", _nothing))
_bug(
    "owner_reruns_streams",
    "a stream that a helper took runs again",
    *(
        Swap(module, "may_run_again", lambda _original: lambda own: own.new.replayable)
        for module in (queue_module, runtime_module)
    ),
)
_bug("owner_cuts_unfenced", "what is late or stalled runs again with its connection open",
     Swap(OwnerQueue, "_cut_off", _without(CancelLend)))  # fmt: skip
_bug(
    "owner_lease_from_arrival",
    "a lease counts from its arrival, not from its basis",
    Swap(LeaseBook, "take", _lease_from_arrival),
)
_bug("owner_lease_too_long", "a lease lives twice as long", Swap(LeaseBook, "take", _lease_too_long))
_bug("owner_takes_older_lease", "an older lease event replaces a newer one", Swap(LeaseBook, "take", _older_lease))
_bug("owner_one_slot_more", "one more is lent than there are slots", Swap(LeaseBook, "free", _one_slot_more))
_bug("owner_ends_twice", "a cancelled request has two ends", Swap(OwnerQueue, "_end", _said_twice))
_bug("owner_forgets_expired", "what waited too long is dropped in silence", Swap(Custody, "expire_held", _forgotten))
_bug(
    "owner_keeps_beside_idle",
    "requests are kept for a helper though the engine is idle",
    Swap(OwnerQueue, "keeps", _keeps_all),
)
_bug("owner_unbounded", "the queue has no bound", Swap(ModelRuntime, "__init__", _unbounded))
_bug("owner_leaves_helper_running", "a client that left is not taken back from the helper",
     Swap(OwnerQueue, "client_gone", _without(CancelLend)))  # fmt: skip
_bug("owner_leaves_engine_running", "a client that left is not cancelled at the engine",
     Swap(OwnerQueue, "client_gone", _without(CancelEngine)))  # fmt: skip
_bug("owner_fails_in_silence", "a failed request's client is told nothing", Swap(OwnerQueue, "_fail", _without(Refuse)))


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _no_depth(original: Callable[..., Any]) -> Callable[..., Any]:
    def offer(self: HelperDesk, offered: Any, now_us: int, out: Any, **options: Any) -> Any:
        return original(self, msgspec.structs.replace(offered, slots=99), now_us, out, **{**options, "depth": 99})

    return offer


def _copies(original: Callable[..., Any]) -> Callable[..., Any]:
    def offer(self: HelperDesk, offered: Any, now_us: int, out: Any, **options: Any) -> Any:
        self._started.clear()
        return original(self, offered, now_us, out, **options)

    return offer


def _dead_leases(original: Callable[..., Any]) -> Callable[..., Any]:
    def offer(self: HelperDesk, offered: Any, now_us: int, out: Any, **options: Any) -> Any:
        alive = msgspec.structs.replace(offered, lease_live=True, slots=9, remaining_us=60_000_000)
        return original(self, alive, now_us, out, **options)

    return offer


def _never_yields(original: Callable[..., Any]) -> Callable[..., Any]:
    def hand_back(self: HelperDesk, reason: str, out: Any, **options: Any) -> None:
        if reason != "own_work":
            original(self, reason, out, **options)

    return hand_back


def _closed_not_by_own(original: Callable[..., Any]) -> Callable[..., Any]:
    def why_closed(self: Any, *arguments: Any) -> str:
        why: str = original(self, *arguments)
        return "" if why == "own_work" else why

    return why_closed


def _borrowed_first(_original: Callable[..., Any]) -> Callable[..., Any]:
    def fill(self: Machines, now_us: int, out: Any, *, borrowed: bool) -> None:
        while self.may_start(now_us):
            ready, own = self.desk.next_ready(), self.owner.first_held()
            if ready is not None:
                self.desk.start(ready, 0, now_us, out)
                self.pipe.enter(ready.offer.request, now_us, work=ready.offer.work, borrowed=True)
            elif own is not None:
                self.start(own, now_us, out)
            else:
                return

    return fill


def _runs_on(original: Callable[..., Any]) -> Callable[..., Any]:
    def owner_gone(self: HelperDesk, request: Any, out: Any) -> None:
        if request not in self._running:
            original(self, request, out)

    return owner_gone


_bug("desk_without_depth", "the desk takes whatever comes", Swap(HelperDesk, "offer", _no_depth))
_bug("desk_takes_copies", "a copy of a lend starts a second time", Swap(HelperDesk, "offer", _copies))
_bug("desk_takes_dead_leases", "a lend under a lease that is over is taken", Swap(HelperDesk, "offer", _dead_leases))
_bug(
    "desk_borrowed_first",
    "borrowed work goes before the node's own",
    Swap(HelperDesk, "hand_back_unstarted", _never_yields),
    Swap(Machines, "why_closed", _closed_not_by_own),
    Swap(Machines, "fill", _borrowed_first),
)
_bug("desk_runs_on", "what an owner gave up runs on at the helper", Swap(HelperDesk, "owner_gone", _runs_on))
_bug("desk_forgets_ends", "the helper does not say that a borrowed request ended",
     Swap(HelperDesk, "finished", _without(BorrowFinished)))  # fmt: skip


# ---- rooms -----------------------------------------------------------------------------------------------------------

_bug("room_loads_beside_work", "a model is loaded while another's requests are inside",
     Swap(EngineRoom, "inside", _always(0)))  # fmt: skip
_bug("room_serves_what_is_not_in", "a request goes to an engine that holds another model",
     Swap(EngineRoom, "serves", _always(True)))  # fmt: skip
_bug("room_waits_for_failed_load", "a load that failed is waited for", Swap(EngineRoom, "load_failed", _always([])))


# ---- the master ------------------------------------------------------------------------------------------------------


def _gaps(original: Callable[..., Any]) -> Callable[..., Any]:
    def in_turn(state: Any, given: Any, node: Any) -> Any:
        if given.incarnation == node.incarnation and given.pseq > node.pseq + 1:
            node.pseq = given.pseq - 1
        return original(state, given, node)

    return in_turn


def _twice(original: Callable[..., Any]) -> Callable[..., Any]:
    def in_turn(state: Any, given: Any, node: Any) -> Any:
        last = node.pseq
        if given.incarnation == node.incarnation and 1 < given.pseq <= last:
            node.pseq = given.pseq - 1
            taken = original(state, given, node)
            node.pseq = last
            return taken
        return original(state, given, node)

    return in_turn


def _no_orphans(original: Callable[..., Any]) -> Callable[..., Any]:
    def orphan_all(state: Any, key: str) -> None:
        known = dict(state.orphans)
        original(state, key)
        state.orphans.clear()
        state.orphans.update(known)

    return orphan_all


def _others_ignored(_original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_arguments, **_options: 2


def _only_opens(original: Callable[..., Any]) -> Callable[..., Any]:
    def changes(state: Any) -> Any:
        for change in original(state):
            if change.state == breaker.OPENED:
                yield change

    return changes


_bug("fold_takes_gaps", "a fact is folded though the one before it is missing", Swap(fold, "_in_turn", _gaps))
_bug("fold_takes_twice", "a fact that is stored twice is folded twice", Swap(fold, "_in_turn", _twice))
_bug(
    "fold_forgets_orphans", "what a dead process had open is forgotten", Swap(registration, "_orphan_all", _no_orphans)
)
_bug("fold_never_closes_slots", "the owner's end of a lend closes no slot", Swap(slots, "closed_by_owner", _nothing))
_bug("fold_keeps_dead_slots", "what a dead process had borrowed keeps its slots", Swap(slots, "began_anew", _nothing))
_bug("fold_keeps_slots_of_snapshots", "a snapshot closes no slots", Swap(registration, "_replace_slots", _nothing))
_bug("master_never_offline", "a silent node is waited for without end", Swap(health, "missed", _nothing))
_bug("master_never_back", "a node that beats again stays silent", Swap(health, "seen", _nothing))
_bug("master_leases_for_ever", "a lease is never over", *(
    Swap(module, "lease_life_us", _always(10**15)) for module in (leases, timers)))  # fmt: skip
_bug("breaker_stays_open", "a breaker that opened never closes", Swap(breaker, "changes", _only_opens))


# ---- what is stored ---------------------------------------------------------------------------------------------------


def _unknown_is_stored(original: Callable[..., Any]) -> Callable[..., Any]:
    def failed(self: Producer, entry: Any, error: Any) -> None:
        if isinstance(error, PublishUnknownError):
            entry.seq, entry.duplicate = self._last_seq + 1, False
            self._advance()
        else:
            original(self, entry, error)

    return failed


def _any_duplicate(original: Callable[..., Any]) -> Callable[..., Any]:
    def advance(self: Producer) -> None:
        for entry in self._window:
            entry.duplicate = False
        original(self)

    return advance


def _no_backlog(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Producer, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self._spool.take(1_000_000)

    return init


def _no_expectation(_original: Callable[..., Any]) -> Callable[..., Any]:
    async def append(self: Ledger, version: int, body: bytes, digest: str) -> bool:
        while True:
            try:
                await self._stream.publish(self.subject, body, message_id=f"{version}-{digest}")
            except PublishUnknownError:
                await asyncio.sleep(0.1)
            else:
                return True

    return append


def _timeouts_are_yes(original: Callable[..., Any]) -> Callable[..., Any]:
    async def resolve(self: Ledger, version: int, body: bytes, *, refused: bool) -> Any:
        return True if not refused else await original(self, version, body, refused=refused)

    return resolve


def _any_duplicate_is_ours(_original: Callable[..., Any]) -> Callable[..., Any]:
    async def append(self: Ledger, version: int, body: bytes, digest: str) -> bool:
        while True:
            try:
                await self._stream.publish(self.subject, body, message_id=f"{version}", expected_last=version - 1)
            except PublishUnknownError:
                await asyncio.sleep(0.1)
            except Exception:  # noqa: BLE001  # a planted bug is not choosy
                return False
            else:
                return True

    return append


def _feed_unordered(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Feed, generation: Any, order: Any, decision: Any, expected: int) -> Any:
        plain = self._stream.publish_soon

        def publish_soon(*arguments: Any, **options: Any) -> Any:
            return plain(*arguments, **{**options, "expected_last": None})

        with patch.object(self._stream, "publish_soon", publish_soon):
            return original(self, generation, order, decision, expected)

    return send


def _rest_forgotten(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Outbox, *arguments: Any) -> None:
        original(self, *arguments)
        self._behind = False

    return init


_bug(
    "producer_unknown_is_stored",
    "a publish without an answer counts as stored",
    Swap(Producer, "_failed", _unknown_is_stored),
)
_bug("producer_any_duplicate", "a duplicate counts wherever it is stored", Swap(Producer, "_advance", _any_duplicate))
_bug(
    "producer_forgets_spool",
    "what the last process could not say is never said",
    Swap(Producer, "__init__", _no_backlog),
)
_bug(
    "ledger_without_expectation",
    "a commit is stored whatever stands before it",
    Swap(Ledger, "append", _no_expectation),
)
_bug(
    "ledger_timeouts_are_yes",
    "a commit without an answer counts as stored",
    Swap(Ledger, "_resolve", _timeouts_are_yes),
)
_bug("ledger_any_duplicate_is_ours", "a commit is told from another by its version alone",
     Swap(Ledger, "append", _any_duplicate_is_ours))  # fmt: skip
_bug("feed_unordered", "decisions go to the feed whatever stands there", Swap(Feed, "_send", _feed_unordered))
_bug(
    "outbox_forgets_rest",
    "what a dead master did not publish is never published",
    Swap(Outbox, "__init__", _rest_forgotten),
)

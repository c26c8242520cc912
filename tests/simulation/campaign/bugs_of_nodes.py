"""Bugs of owners, helpers and engine rooms."""

from collections.abc import Callable
from typing import Any

import msgspec

from domain import runtime as runtime_module
from domain.actions import CancelEngine, CancelLend, Refuse
from domain.engine_room import EngineRoom
from domain.events import BorrowFinished
from domain.helper.accepted import AcceptedBook
from domain.helper.desk import HelperDesk
from domain.machines import Machines
from domain.owner import queue as queue_module
from domain.owner.custody import Custody
from domain.owner.leases import LeaseBook
from domain.owner.queue import OwnerQueue
from domain.owner.request import OwnRequest
from domain.runtime import ModelRuntime
from services.node.grants import LeaseCopies
from tests.simulation.campaign.planting import Swap, always, bug, nothing, without

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


def _older_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: LeaseCopies, signed: Any, now_us: int) -> bool:
        self._newest.pop(signed.lease.link, None)
        taken: bool = original(self, signed, now_us)
        return taken

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


bug("owner_lends_again", "a returned request is lent again", Swap(OwnRequest, "keep_from_lending", nothing))
bug(
    "owner_reruns_streams",
    "a stream that a helper took runs again",
    *(
        Swap(module, "may_run_again", lambda _original: lambda own: own.new.replayable)
        for module in (queue_module, runtime_module)
    ),
)
bug("owner_cuts_unfenced", "what is late or stalled runs again with its connection open",
     Swap(OwnerQueue, "_cut_off", without(CancelLend)))  # fmt: skip
bug(
    "owner_lease_from_arrival",
    "a lease counts from its arrival, not from its basis",
    Swap(LeaseBook, "take", _lease_from_arrival),
)
bug("owner_lease_too_long", "a lease lives twice as long", Swap(LeaseBook, "take", _lease_too_long))
bug(
    "owner_takes_older_lease",
    "an older lease event replaces a newer one",
    Swap(LeaseBook, "take", _older_lease),
    Swap(LeaseCopies, "take", _older_copy),
)
bug("owner_one_slot_more", "one more is lent than there are slots", Swap(LeaseBook, "free", _one_slot_more))
bug("owner_ends_twice", "a cancelled request has two ends", Swap(OwnerQueue, "_end", _said_twice))
bug("owner_forgets_expired", "what waited too long is dropped in silence", Swap(Custody, "expire_held", _forgotten))
bug(
    "owner_keeps_beside_idle",
    "requests are kept for a helper though the engine is idle",
    Swap(OwnerQueue, "keeps", _keeps_all),
)
bug("owner_unbounded", "the queue has no bound", Swap(ModelRuntime, "__init__", _unbounded))
bug("owner_leaves_helper_running", "a client that left is not taken back from the helper",
     Swap(OwnerQueue, "client_gone", without(CancelLend)))  # fmt: skip
bug("owner_leaves_engine_running", "a client that left is not cancelled at the engine",
     Swap(OwnerQueue, "client_gone", without(CancelEngine)))  # fmt: skip
bug("owner_fails_in_silence", "a failed request's client is told nothing", Swap(OwnerQueue, "_fail", without(Refuse)))


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _no_depth(original: Callable[..., Any]) -> Callable[..., Any]:
    def offer(self: HelperDesk, offered: Any, now_us: int, out: Any, **options: Any) -> Any:
        return original(self, msgspec.structs.replace(offered, slots=99), now_us, out, **{**options, "depth": 99})

    return offer


def _copies(original: Callable[..., Any]) -> Callable[..., Any]:
    def offer(self: HelperDesk, offered: Any, now_us: int, out: Any, **options: Any) -> Any:
        self.accepted = AcceptedBook()
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


bug("desk_without_depth", "the desk takes whatever comes", Swap(HelperDesk, "offer", _no_depth))
bug("desk_takes_copies", "a copy of a lend starts a second time", Swap(HelperDesk, "offer", _copies))
bug("desk_takes_dead_leases", "a lend under a lease that is over is taken", Swap(HelperDesk, "offer", _dead_leases))
bug(
    "desk_borrowed_first",
    "borrowed work goes before the node's own",
    Swap(HelperDesk, "hand_back_unstarted", _never_yields),
    Swap(Machines, "why_closed", _closed_not_by_own),
    Swap(Machines, "fill", _borrowed_first),
)
bug("desk_runs_on", "what an owner gave up runs on at the helper", Swap(HelperDesk, "owner_gone", _runs_on))
bug("desk_forgets_ends", "the helper does not say that a borrowed request ended",
     Swap(HelperDesk, "finished", without(BorrowFinished)))  # fmt: skip


# ---- rooms -----------------------------------------------------------------------------------------------------------

bug("room_loads_beside_work", "a model is loaded while another's requests are inside",
     Swap(EngineRoom, "inside", always(0)))  # fmt: skip
bug("room_serves_what_is_not_in", "a request goes to an engine that holds another model",
     Swap(EngineRoom, "serves", always(True)))  # fmt: skip
bug("room_waits_for_failed_load", "a load that failed is waited for", Swap(EngineRoom, "load_failed", always([])))

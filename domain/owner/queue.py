"""An owner's queue: what is held, what is in its own engine, what is lent. One object for one model at its owner.

Custody never moves: whatever happens, a request is at exactly one place and ends with exactly one terminal fact, said here.
"""

import heapq
from collections.abc import Collection
from functools import partial

import msgspec

from domain.actions import CancelEngine, CancelLend, Lend, OrderKey, Output
from domain.events import Fact, LeaseChecked, LeaseStalled
from domain.events.decision import LeaseEvent, LinkWord
from domain.events.status import OpenRequest
from domain.ids import LeaseId, LinkId, NodeId, RequestId
from domain.inputs import LendFailure, LendResult, RuntimeConfig
from domain.owner.custody import Custody
from domain.owner.facts import open_request
from domain.owner.keeping import Estimate, estimate, helper_price_us
from domain.owner.leases import LeaseBook, LiveLease
from domain.owner.request import KeptFor, OwnRequest
from domain.pipe import Pipe

_LOOK_AT_MOST = 32
"""Lendable requests looked at for one that a free helper can serve."""
_CUT_FACTOR, _CUT_US = 3, 30_000_000
_ALIVE_US = 10_000_000
"""An answer of which something came so lately goes on, whatever its helper does not say to the master."""
_UNWATCHED_FACTOR = 4
"""Stall timeouts for which neither a helper nor the master may say anything to the owner of what is lent."""
_PENDING_US = 1_000_000
"""How long a request waits for a decision in flight, at most."""
_STALE_ALLOWED = 64


class OwnerQueue(Custody):
    """The requests that this node received for one model. Methods append facts and actions to `out`."""

    def __init__(self, config: RuntimeConfig) -> None:
        super().__init__(config)
        self._lent = 0
        self._lends = 0
        """Ever, with a price."""
        self._cuts: list[tuple[int, int, OwnRequest]] = []
        """A heap: when lent requests are cut off."""
        self._listen_us = 0
        """When what is lent is looked at next for a helper that has been silent for too long."""
        self._stall_since_us = 0
        """When the stall timeout became what it is: by a shorter one the master has not asked yet."""
        self._release_us: int | None = None
        """When the request that is kept now is looked at again."""
        self._kept: tuple[OwnRequest, Estimate] | None = None
        self.leases = LeaseBook()
        self.hold_on = config.hold_for_faster_helper

    @property
    def out(self) -> int:
        """How many requests are lent."""
        return self._lent

    # -- keeping for a faster helper --------------------------------------------------------------------------------

    def keeps(self, own: OwnRequest, pipe: Pipe, now_us: int) -> bool:
        """Tell whether `own`, the next for the engine, had better wait for a helper than inside the engine.

        Never while the engine could begin it at once. The release is due at a time of its own (`next_timer_us`).
        """
        if not self.hold_on or not self.enrolled or not own.lendable or len(pipe) < pipe.slots:
            return False
        best = self._faster(own, pipe, now_us)
        if best is not None:
            self._kept = own, best
            assert own.kept is not None, "noted when it was found faster"
            self._release_us = own.kept[best.link].until_us
            return True
        decided_us = own.arrived_us + _PENDING_US
        if own.lease_events == self._lease_events and now_us < decided_us and self.leases.has_faster():
            self._release_us = decided_us
            return True
        return False

    def tell_kept(self, now_us: int, out: list[Output]) -> None:
        """State that a request is kept, once a request and link, unless it could be lent at once."""
        if self._kept is None:
            return
        own, best = self._kept
        self._kept = None
        kept = own.kept[best.link] if own.kept is not None else None
        if own.place == "held" and kept is not None and not kept.told:
            kept.told = True
            self._say(self._facts.kept(own, best, now_us), now_us, out)

    def _faster(self, own: OwnRequest, pipe: Pipe, now_us: int) -> Estimate | None:
        """Return the estimate of the helper that ends `own` first, if it does so before the own engine."""
        best: Estimate | None = None
        for link, lease in sorted(self.leases.live.items()):
            if not lease.takes or not lease.grant.slots or not lease.suits(own):
                continue
            track = self.leases.track(link)
            found = estimate(own, lease, track, pipe, now_us)
            if found is None or found.helper_finish_us >= found.owner_finish_us:
                continue
            if self._waits_in_vain(own, found, track.left_us, now_us):
                continue
            if best is None or found.helper_finish_us < best.helper_finish_us:
                best = found
        return best

    @staticmethod
    def _waits_in_vain(own: OwnRequest, found: Estimate, left_us: int, now_us: int) -> bool:
        """Tell whether the helper has taken a job longer than predicted when `own` was first kept, or since its last answer."""
        if own.kept is None:
            own.kept = {}
        kept = own.kept.get(found.link)
        until_us = now_us + found.helper_finish_us + found.helper_job_us
        if kept is None:
            own.kept[found.link] = KeptFor(at_us=now_us, until_us=until_us)
            return False
        if left_us > kept.at_us:
            kept.at_us, kept.until_us = now_us, until_us
        return kept.until_us <= now_us

    # -- lending ----------------------------------------------------------------------------------------------------

    def take_lease(
        self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int, out: list[Output]
    ) -> None:
        """Take a lease event that names this queue."""
        news, fact = self.leases.take(event, order, basis_sent_us, now_us)
        self._lease_events += news
        if fact is not None:
            self._say(fact, now_us, out)

    def take_word(self, word: LinkWord, order: OrderKey, now_us: int, out: list[Output]) -> None:
        """Take another word of the master on a link: after LeaseStalled all that was lent over it before comes back.

        An answer of which something came in the last ten seconds goes on: the helper works, it only cannot say so to the master.
        """
        if not self.leases.take_word(word, order):
            return
        if isinstance(word, LeaseChecked):
            self.leases.track(word.link).heard_us = now_us
        elif isinstance(word, LeaseStalled):
            for own in list(self.leases.track(word.link).out.values()):
                heard = own.answering and now_us - own.heard_us < _ALIVE_US
                if own.order is not None and own.order < order and not heard:
                    self._cut_off(own, "stalled", now_us, out)

    def lend(self, now_us: int, out: list[Output]) -> None:
        """Lend held requests, first come first, while a lease that suits has a free slot."""
        while self.leases.live and self._held.first_lendable() is not None:
            free = self.leases.free()
            if not free:
                return
            found = self._held.first_that(partial(_first_suiting, free), _LOOK_AT_MOST)
            if found is None:
                return
            self._lend(*found, now_us, out)

    def _lend(self, own: OwnRequest, lease: LiveLease, now_us: int, out: list[Output]) -> None:
        grant = lease.grant
        self._held.remove(own)
        own.place, own.since_us = "lent", now_us
        own.link, own.lease, own.helper, own.order = grant.link, grant.lease, grant.helper, lease.order
        own.taken = own.answering = False
        if not self._lent:
            self._listen_us = now_us + self._silence_us
        self._lent += 1
        out_count = self.leases.opened(own, lease, now_us)
        if grant.job_us and not grant.probe:
            jobs_us = sum(helper_price_us(grant, one.new.work) for one in self.leases.track(grant.link).out.values())
            own.cut_us = now_us + _CUT_FACTOR * (grant.switch_us + jobs_us) + _CUT_US
            self._lends += 1
            heapq.heappush(self._cuts, (own.cut_us, self._lends, own))
        self._say(self._facts.lent(own, grant, out_count, now_us), now_us, out)
        out.append(
            Lend(
                request=own.new.request,
                link=grant.link,
                lease=grant.lease,
                grant=grant,
                order=lease.order,
                remaining_us=lease.ends_us - now_us,
            )
        )

    def lent(self, request: RequestId) -> OwnRequest | None:
        """Return `request` if it is lent now."""
        own = self._requests.get(request)
        return own if own is not None and own.place == "lent" else None

    def lend_answered(self, own: OwnRequest, result: LendResult, now_us: int, out: list[Output]) -> None:
        """The helper's answer was passed on whole."""
        link, lease = self._lend_over(own, now_us)
        self._say(self._facts.answered(own, link, lease, result), now_us, out)
        self.leases.answered(link, now_us)
        self._answered(own, result, now_us, out)

    def lend_returned(self, own: OwnRequest, reason: str, now_us: int, out: list[Output]) -> None:
        """Handed back unstarted: held again, never lent again."""
        link, lease = self._lend_over(own, now_us)
        slots, out_count = self.leases.slots(link), self.leases.out(link)
        self._say(self._facts.returned(own, link, lease, reason, slots=slots, out=out_count), now_us, out)
        self.leases.returned(link, now_us)
        self._hold_again(own, "returned", now_us, out)

    def lend_refused(self, own: OwnRequest, reason: str, now_us: int, out: list[Output]) -> None:
        """It could not be passed on: the owner runs it itself."""
        link, lease = self._lend_over(own, now_us)
        self._say(self._facts.relay_refused(own, link, lease, reason), now_us, out)
        self.leases.failed(link, now_us)
        self._hold_again(own, "relay_refused", now_us, out)

    def lend_busy(self, own: OwnRequest, now_us: int, out: list[Output]) -> None:
        """The desk was full: held again, and as lendable as before."""
        link, lease = self._lend_over(own, now_us)
        self._say(self._facts.busy(own, link, lease), now_us, out)
        self.leases.desk_full(link, now_us)
        self._hold_again(own, "", now_us, out)

    def lend_failed(self, own: OwnRequest, failure: LendFailure, now_us: int, out: list[Output]) -> None:
        """The helper is fenced: the request runs again here if it may, else it fails."""
        link, lease = self._lend_over(own, now_us)
        cut = self._facts.cut_off(own, link, lease, failure.reason, may_have_run=failure.may_have_run)
        self._say(cut, now_us, out)
        self.leases.failed(link, now_us)
        again = not failure.may_have_run or (may_run_again(own) and not failure.poison)
        if not again or failure.sent:
            self._fail(own, 0, "engine_failed", now_us, out)
            return
        if failure.may_have_run:
            own.may_have_run = True
            own.deadline_us = now_us + self._config.wait_us_max
        self._hold_again(own, "cut_off", now_us, out)

    # -- ends -------------------------------------------------------------------------------------------------------

    def client_gone(self, request: RequestId, now_us: int, out: list[Output]) -> None:
        """The client left: the request ends where it is; in the engine, once the engine is done with it."""
        own = self._requests[request]
        if own.place == "engine":
            if not own.gone:
                own.gone = True
                out.append(CancelEngine(request=request))
            return
        if own.place == "held":
            self._held.remove(own)
            self._end(own, self._facts.cancelled(own, 0, "held", now_us), now_us, out)
            return
        link, lease = self._lend_over(own, now_us)
        out.append(CancelLend(request=request, lease=lease))
        self._say(self._facts.cut_off(own, link, lease, "client_gone", may_have_run=True), now_us, out)
        self._end(own, self._facts.cancelled(own, 0, "lent", now_us), now_us, out)

    def expire(self, now_us: int, out: list[Output]) -> None:
        """End the leases, the lends and the held requests whose time is over."""
        self._release_us = None
        if not self._requests and not self.leases.live:
            return
        for fact in self.leases.expire(now_us):
            self._say(fact, now_us, out)
        while (own := self._first_cut()) is not None and own.cut_us is not None and own.cut_us <= now_us:
            self._cut_off(own, "answer_late", now_us, out)
        if self._lent and self._listen_us <= now_us:
            self._take_back_unwatched(now_us, out)
        self.expire_held(now_us, out)

    def set_stall(self, stall_us: int, now_us: int) -> None:
        """Change `offload_lent_stall_timeout`; silence counts from now."""
        if stall_us != self._config.stall_us:
            self._config = msgspec.structs.replace(self._config, stall_us=stall_us)
            self._listen_us, self._stall_since_us = 0, now_us

    # -- links, time, snapshot --------------------------------------------------------------------------------------

    def set_links(self, links: Collection[LinkId], now_us: int, out: list[Output]) -> None:
        """Set the links of which the model is the owner."""
        news, said = self.leases.set_links(links, now_us)
        self._lease_events += news
        for fact in said:
            self._say(fact, now_us, out)

    def set_enrolled(self, *, enrolled: bool, now_us: int, out: list[Output]) -> None:
        """Say whether the master is told of every request. On enrolling, what is open is stated as if it came now."""
        newly = enrolled and not self.enrolled
        self.enrolled = enrolled
        if not newly:
            return
        inside = sorted((own for own in self._requests.values() if own.place == "engine"), key=lambda own: own.seq)
        for count, own in enumerate(inside, 1):
            self._say(self._facts.started(own, count), now_us, out)
        for count, own in enumerate(self._held.in_order(), 1):
            self._say(self._facts.held(own, count), now_us, out)

    def give_sign_of_life(self, now_us: int, out: list[Output]) -> None:
        """State a snapshot if the queue should have said something by now."""
        due_us = self._sign_due_us()
        if due_us is not None and due_us <= now_us:
            fact = self._facts.snapshot(
                held=self.held, in_engine=self._in_engine, lent=self._lent, lease=self.leases.first_lease()
            )
            self._say(fact, now_us, out)

    def next_timer_us(self) -> int | None:
        """Return when something of this queue is due next."""
        due = self._held.first_due()
        cut = self._first_cut()
        moments = (
            due.deadline_us if due is not None else None,
            self.leases.next_timer_us(),
            self._sign_due_us(),
            cut.cut_us if cut is not None else None,
            self._listen_us if self._lent else None,
            self._release_us,
        )
        return min((moment for moment in moments if moment is not None), default=None)

    def snapshot(self, now_us: int) -> tuple[OpenRequest, ...]:
        """Return the open requests that facts told of, in order of arrival."""
        told = (own for own in self._requests.values() if self.enrolled or own.place == "lent")
        return tuple(open_request(own, now_us) for own in sorted(told, key=lambda own: own.seq))

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _silence_us(self) -> int:
        return _UNWATCHED_FACTOR * self._config.stall_us

    def _take_back_unwatched(self, now_us: int, out: list[Output]) -> None:
        """Take back what a helper says nothing of for so long, while no master asks it: nobody else would ever notice.

        A master that watches over a quiet link asks its helper several times in that time, and the owner hears it ask; over a
        busy one it does not ask, and the owner hears of leases or of other requests.
        """
        self._listen_us = now_us + self._silence_us
        for own in [own for own in self._requests.values() if own.place == "lent"]:
            assert own.link is not None, f"request {own.new.request}: is lent over no link"
            heard_us = max(own.since_us, own.heard_us, self.leases.track(own.link).heard_us, self._stall_since_us)
            if heard_us + self._silence_us <= now_us:
                self._cut_off(own, "unwatched", now_us, out)
            else:
                self._listen_us = min(self._listen_us, heard_us + self._silence_us)

    def _sign_due_us(self) -> int | None:
        if not self.enrolled or not (self.held or len(self.leases)):
            return None
        ttl_us = min(self._config.lease_ttl_us, self.leases.ttl_us_min() or self._config.lease_ttl_us)
        return self._said_us + ttl_us // 3

    def _lend_over(self, own: OwnRequest, now_us: int) -> tuple[LinkId, LeaseId]:
        """Close the slot of `own`; return what it was lent under."""
        assert own.link is not None, f"request {own.new.request}: is lent over no link"
        assert own.lease is not None, f"request {own.new.request}: is lent under no lease"
        self._lent -= 1
        self.leases.closed(own.link, own.new.request, now_us)
        own.cut_us = None
        return own.link, own.lease

    def _first_cut(self) -> OwnRequest | None:
        """Return the lent request that is cut off first if its helper does not begin to answer; None if there is none."""
        cuts = self._cuts
        if len(cuts) > 2 * self._lent + _STALE_ALLOWED:
            cuts[:] = [entry for entry in cuts if _is_awaited(entry)]
            heapq.heapify(cuts)
        while cuts and not _is_awaited(cuts[0]):
            heapq.heappop(cuts)
        return cuts[0][2] if cuts else None

    def _cut_off(self, own: OwnRequest, reason: str, now_us: int, out: list[Output]) -> None:
        """Fence the helper and take the request back; one whose answer has begun to reach the client fails."""
        assert own.lease is not None, f"request {own.new.request}: is lent under no lease"
        out.append(CancelLend(request=own.new.request, lease=own.lease))
        self.lend_failed(own, LendFailure(reason=reason, sent=own.answering), now_us, out)

    def _hold_again(self, own: OwnRequest, not_lendable: str, now_us: int, out: list[Output]) -> None:
        own.link, own.lease, own.helper = None, None, NodeId("")
        if not_lendable:
            own.keep_from_lending(not_lendable)
        self.hold(own, now_us, out)

    def _end(self, own: OwnRequest, terminal: Fact, now_us: int, out: list[Output]) -> None:
        self.leases.something_ended()
        super()._end(own, terminal, now_us, out)


def may_run_again(own: OwnRequest) -> bool:
    """Tell whether a lent request may run at its owner after its helper failed, if no byte went to the client."""
    return own.new.replayable and not (own.new.streaming and own.taken)


def _first_suiting(free: list[LiveLease], own: OwnRequest) -> LiveLease | None:
    return next((lease for lease in free if lease.suits(own)), None)


def _is_awaited(cut: tuple[int, int, OwnRequest]) -> bool:
    """Tell whether an entry of the heap is still true: lent under that lend, and not being answered."""
    cut_us, _, own = cut
    return own.cut_us == cut_us and own.place == "lent" and not own.answering

"""What surrounds one model's machines in their property test: it believes actions for what is where, folds facts apart from
that, and checks every output as it comes.
"""

from typing import Any

from domain.actions import (
    AcceptBorrow,
    Action,
    CancelEngine,
    CancelLend,
    Dispatch,
    Lend,
    LoadModel,
    Output,
    Refuse,
    RefuseBorrow,
)
from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Cancelled,
    CutOff,
    Expired,
    Failed,
    Finished,
    Held,
    Kept,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    NativeWaited,
    Rejected,
    RelayRefused,
    Started,
)
from tests.unit.machine_rig import LINK, OTHER_LINK, SECOND

TERMINAL = Finished | Failed | Cancelled | Rejected | Expired
LEND_OVER = LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused
LINKS = (LINK, OTHER_LINK)
WAIT_US = 120 * SECOND
RETRY_US = SECOND


def _comes_before(one: str, other: str) -> bool:
    return int(one[1:]) < int(other[1:])


class World:
    """What is where, as the machine's outputs tell it; every output is checked as it comes."""

    def __init__(self) -> None:
        self.now_us = 0
        self.depth = 2
        self.owner_links: set[str] = {*LINKS}
        self.helps = True
        self.up, self.paused_until_us = True, 0
        self.open: set[str] = set()
        self.ended: set[str] = set()
        self.engine: dict[str, bool] = {}
        self.lends: dict[str, Lend] = {}
        self.never_again: set[str] = set()
        self.bodies: set[str] = set()
        self.behind: dict[str, int] = {}
        self.waited: set[str] = set()
        self.cancelled: set[str] = set()
        """Told to leave the engine."""
        self.held_fold: dict[str, bool] = {}
        self.engine_fold: set[str] = set()
        self.lent_fold: dict[str, str] = {}
        self.desk_fold: dict[str, str] = {}
        self.leases: dict[str, tuple[Any, Any, int]] = {}
        self.newest: dict[str, Any] = {}
        self.kept: set[tuple[str, str]] = set()
        self.hold_on, self.hinted = True, False

    @property
    def enrolled(self) -> bool:
        return bool(self.owner_links) or self.helps

    @property
    def limit(self) -> int:
        return self.depth if self.enrolled else 1

    @property
    def least(self) -> int:
        """Return how many requests the engine has at least while one is held: a place may be kept for a faster helper."""
        priced = any(grant.owner_job_us for grant, _, _ in self.leases.values())
        return 1 if self.hold_on and (priced or self.hinted) else self.limit

    @property
    def held(self) -> set[str]:
        return {request for request in self.open if request not in self.engine and request not in self.lends}

    @property
    def engine_usable(self) -> bool:
        return self.up and self.paused_until_us <= self.now_us

    def see(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Dispatch | Lend | CancelLend | CancelEngine | AcceptBorrow | RefuseBorrow | Refuse):
                self._action(output)
            elif isinstance(output, TERMINAL):
                self._terminal(output)
            elif isinstance(output, Held | Started | Lent):
                self._queue_fact(output)
            elif isinstance(output, LEND_OVER):
                self._lend_over(output)
            elif isinstance(output, BorrowAccepted | BorrowStarted | BorrowReturned | BorrowFinished):
                self._desk_fact(output)
            elif isinstance(output, Kept):
                assert output.request in self.held_fold, "kept, but not held"
                assert self.held_fold[output.request], "kept for a helper that may not have it"
                assert (output.request, output.link) not in self.kept, "told twice"
                assert output.helper_finish_us < output.owner_finish_us
                self.kept.add((output.request, output.link))
            elif isinstance(output, NativeWaited):
                assert output.borrowed_in_engine == self.behind[output.request] <= 3  # the greatest depth of this test
                assert output.request not in self.waited, "waited twice"
                self.waited.add(output.request)

    def _action(self, action: Action) -> None:
        assert not isinstance(action, LoadModel), "this model has its engine for itself"
        request = action.request
        match action:
            case Dispatch():
                assert request not in self.engine, "runs already"
                assert request not in self.lends, "runs at a helper already"
                assert self.engine_usable
                self.engine[request] = action.borrowed
                self.cancelled.discard(request)
                assert len(self.engine) <= self.limit, "over the depth"
            case Lend():
                assert request in self.open
                assert request not in self.engine
                assert request not in self.lends
                assert action.remaining_us > 0
                assert not self.engine_usable or len(self.engine) >= self.least, "lent while the engine had room"
                self.lends[request] = action
            case CancelLend():
                del self.lends[request]
            case CancelEngine():
                assert request in self.engine
                assert request not in self.cancelled, "cancelled twice"
                self.cancelled.add(request)
            case AcceptBorrow():
                self.bodies.add(request)
            case RefuseBorrow():
                assert request not in self.engine or action.code == "offload_duplicate", "started, then refused"
                if action.code != "offload_duplicate":
                    self.bodies.discard(request)
            case Refuse():
                assert request in self.ended, "a client is told of an error that no fact tells"

    def _terminal(self, fact: Finished | Failed | Cancelled | Rejected | Expired) -> None:
        assert fact.request not in self.ended, "two terminal facts"
        self.ended.add(fact.request)
        self.open.discard(fact.request)
        self.held_fold.pop(fact.request, None)
        self.engine_fold.discard(fact.request)
        assert fact.request not in self.lent_fold, "ended with its slot open"
        assert min(fact.wait_us, fact.service_us) >= 0

    def _queue_fact(self, fact: Held | Started | Lent) -> None:
        request = fact.request
        assert request not in self.ended
        assert self.enrolled or isinstance(fact, Lent)
        match fact:
            case Held():
                self.engine_fold.discard(request)
                self.held_fold[request] = fact.lendable
                assert not (fact.lendable and request in self.never_again)
                assert fact.waiting == len(self.held_fold) or self.restating
            case Started():
                self.held_fold.pop(request, None)
                assert self.restating or not any(_comes_before(held, request) for held in self.held_fold), (
                    "out of order"
                )
                self.engine_fold.add(request)
                assert request not in self.lent_fold
            case Lent():
                assert self.held_fold.pop(request), "not lendable"
                earlier = [
                    held for held, lendable in self.held_fold.items() if lendable and _comes_before(held, request)
                ]
                assert not earlier, "lent out of order"
                assert request not in self.never_again, "lent again"
                grant, _, ends_us = self.leases[fact.link]
                assert fact.lease == grant.lease
                assert ends_us > self.now_us, "the lease is over"
                self.lent_fold[request] = fact.link
                out = sum(link == fact.link for link in self.lent_fold.values())
                assert fact.out == out <= grant.slots, "over the lease's slots"

    restating = False

    def _lend_over(self, fact: LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused) -> None:
        assert self.lent_fold.pop(fact.request) == fact.link, "a slot was closed twice"
        self.lends.pop(fact.request, None)
        if not isinstance(fact, LendBusy):
            self.never_again.add(fact.request)

    def _desk_fact(self, fact: BorrowAccepted | BorrowStarted | BorrowReturned | BorrowFinished) -> None:
        match fact:
            case BorrowAccepted():
                assert fact.request not in self.desk_fold
                self.desk_fold[fact.request] = "waiting"
                assert len(self.desk_fold) <= self.depth, "the desk took more than the depth"
            case BorrowStarted():
                assert self.desk_fold[fact.request] == "waiting"
                assert not self.held, "borrowed work went before own work"
                self.desk_fold[fact.request] = "running"
                self.bodies.discard(fact.request)
            case BorrowReturned():
                assert self.desk_fold.pop(fact.request, "new") in {"waiting", "new"}, "returned after its start"
                self.bodies.discard(fact.request)
            case BorrowFinished():
                assert self.desk_fold.pop(fact.request) == "running"
                assert not (fact.ok and fact.request in self.cancelled), "an answer for nobody teaches"

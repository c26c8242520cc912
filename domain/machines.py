"""The parts of one model on one node, and what they do of themselves: its owner's queue, its desk, its engine's pipe.

Inputs come through ModelRuntime (domain.runtime); where models share a runtime, their engine room (domain.engine_room)
decides whose turn it is. Methods append facts and actions to `out`.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from domain.actions import Output
from domain.events import Accepting, NotAccepting
from domain.helper.desk import HelperDesk
from domain.ids import RequestId
from domain.inputs import RuntimeConfig
from domain.owner.queue import OwnerQueue
from domain.owner.request import OwnRequest
from domain.pipe import Pipe

if TYPE_CHECKING:
    from domain.engine_room import EngineRoom

_RETRY_ENGINE_US = 1_000_000
"""After the engine provably did not take a request, the next one is tried this much later, or when it is said to be up."""


class Machines:
    """One model's queue, desk and pipe."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.model = config.model
        self.owner = OwnerQueue(config)
        self.desk = HelperDesk(config)
        self.pipe = Pipe(config.slots)
        self.room: EngineRoom | None = None
        self.depth = config.depth
        self.helps = False
        self.linked = False
        """Whether it is in any link, as owner or as helper."""
        self.draining = False
        self.engine_up = True
        self.borrow_seen_us: int | None = None
        """When a borrowed request last came or left."""
        self._retry_engine_us: int | None = None
        self._announced = ""

    # -- looking

    @property
    def own_waits(self) -> bool:
        """Whether a request of the node's own is held, or inside the engine and not in service yet."""
        return bool(self.owner.held) or self.pipe.own_pending

    @property
    def paused(self) -> bool:
        """Whether the engine cannot be given anything: it is down, or has just refused a request."""
        return not self.engine_up or self._retry_engine_us is not None

    def is_busy(self, now_us: int, delay_us: int) -> bool:
        """Tell whether work waits or runs here, or borrowed work came or left less than `delay_us` ago."""
        seen_us = self.borrow_seen_us
        recently = seen_us is not None and now_us - seen_us < delay_us
        return recently or bool(self.owner.held or len(self.pipe) or len(self.desk))

    def may_start(self, now_us: int) -> bool:
        """Tell whether the engine takes one more request of this model now."""
        limit = self.depth if self.linked else self.config.slots
        return len(self.pipe) < limit and not self.paused and (self.room is None or self.room.serves(self, now_us))

    def why_closed(self) -> str:
        """Return why borrowed work is not taken now; empty if it is."""
        if self.room is not None:
            return self.room.why_closed(self)
        if self.draining:
            return "draining"
        if self.paused:
            return "engine_down"
        return "own_work" if self.own_waits else ""

    def next_timer_us(self) -> int | None:
        """Return when `tick` is due next; None if nothing waits for time."""
        due_us, retry_us = self.owner.next_timer_us(), self._retry_engine_us
        if due_us is None or retry_us is None:
            return retry_us if due_us is None else due_us
        return min(due_us, retry_us)

    # -- settling

    def settle(self, now_us: int, out: list[Output]) -> list[Output]:
        """Do what the state now allows: end what is over, fill the engine, lend, say whether borrowed work is welcome."""
        if self.room is not None:
            self.room.settle(now_us, out)
            return out
        self.prepare(now_us, out)
        self.fill(now_us, out, borrowed=True)
        self.lend_held(now_us, out)
        if self.helps:
            self.announce(self.why_closed(), out)
        return out

    def prepare(self, now_us: int, out: list[Output]) -> None:
        """End what is over."""
        self.owner.expire(now_us, out)
        self.resume(now_us)

    def resume(self, now_us: int) -> None:
        """Try the engine again when its pause is over."""
        if self._retry_engine_us is not None and self._retry_engine_us <= now_us:
            self._retry_engine_us = None

    def fill(self, now_us: int, out: list[Output], *, borrowed: bool) -> None:
        """Top the engine up: own work from the held requests first, then borrowed work, if it may."""
        while self.may_start(now_us):
            own = self.owner.first_held()
            if own is not None:
                if self.owner.keeps(own, self.pipe, now_us):
                    return
                self.start(own, now_us, out)
                continue
            ready = self.desk.next_ready() if borrowed else None
            if ready is None:
                return
            load_us = 0 if self.room is None else self.room.take_load_us()
            self.desk.start(ready, load_us, now_us, out)
            self.pipe.enter(ready.offer.request, now_us, work=ready.offer.work, borrowed=True)
            if self.room is not None:
                self.room.claimed(ready.offer)

    def lend_held(self, now_us: int, out: list[Output]) -> None:
        """Lend what is held and leases have slots for; tell what is kept for one of them."""
        self.owner.lend(now_us, out)
        self.owner.tell_kept(now_us, out)

    def start(self, own: OwnRequest, now_us: int, out: list[Output]) -> None:
        """Give an own request to the engine."""
        request = own.new.request
        serves = self.pipe.enter(request, now_us, work=own.new.work, borrowed=False)
        self.owner.start(own, len(self.pipe), now_us, out)
        if serves:
            self.owner.served(request, now_us, out)

    def served(self, requests: Collection[RequestId], now_us: int, out: list[Output]) -> None:
        """The engine's service of these begins."""
        for request in requests:
            if request in self.owner:
                self.owner.served(request, now_us, out)

    def announce(self, closed: str, out: list[Output]) -> None:
        """Say once that borrowed work is not taken, and why, and once that it is again (`closed` is empty then)."""
        if closed != self._announced:
            out.append(NotAccepting(model=self.model, reason=closed) if closed else Accepting(model=self.model))
            self._announced = closed

    def announced(self) -> Accepting | NotAccepting | None:
        """Return what was said last of whether borrowed work is welcome; None for a model that helps nobody.

        Said again with a snapshot: the fact itself may be among those that were lost.
        """
        if not self.helps:
            return None
        reason = self._announced
        return NotAccepting(model=self.model, reason=reason) if reason else Accepting(model=self.model)

    # -- the engine's health

    def borrow_left(self, now_us: int) -> None:
        """Note that a borrowed request left the engine."""
        self.borrow_seen_us = now_us
        if self.room is not None:
            self.room.borrow_left(now_us)

    def pause(self, now_us: int) -> None:
        """The engine provably did not take a request: try it again in a second."""
        self._retry_engine_us = now_us + _RETRY_ENGINE_US

    def set_up(self, *, up: bool) -> None:
        """Note that the engine is up or dead."""
        self.engine_up, self._retry_engine_us = up, None

    def empty_dead_engine(self, now_us: int, out: list[Output]) -> None:
        """End what was inside the engine when it died, and hand back what has not started."""
        for request, left in self.pipe.clear(now_us):
            if request in self.owner:
                self.owner.engine_died(request, left, now_us, out)
            else:
                self.borrow_left(now_us)
                self.desk.engine_died(request, left, out)
        self.desk.hand_back_unstarted("engine_down", out)

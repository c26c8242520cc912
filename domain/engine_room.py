"""The runtime that several models of a node share: one of them is loaded at a time, and this decides whose turn it is.

A load begins only while no request is inside the engine. Own work goes first: the loaded model is served until nothing of its
own waits, or until another model's first own request has waited long enough for the swap to be worth it; then that one is
loaded. A model is loaded for borrowed work only while no own work is here, and what that drives out is loaded back once the
whole node has been quiet.

    room = EngineRoom(RoomConfig(node=..., runtime="gpu0"))
    room.join(runtime_a); room.join(runtime_b); room.watch(others_of_the_node)
    outputs = room.begin(ModelId("a"), now_us)
    outputs = runtime_b.submit(new, now_us)              # [..., LoadStarted, LoadModel] once the engine is empty
    outputs = room.loaded(ModelId("b"), load_us, now_us)  # [Loaded, Dispatch]
    ... and at next_timer_us(): outputs = room.tick(now_us)
"""

from collections.abc import Iterable

import msgspec

from domain.actions import LoadModel, Output
from domain.events import (
    Loaded,
    LoadFailed,
    LoadStarted,
    RestoreCancelled,
    Restored,
    RestoreScheduled,
    RuntimeState,
    Unloaded,
)
from domain.helper.restore import Restore
from domain.ids import ModelId
from domain.inputs import BorrowOffer, RoomConfig
from domain.loads import LoadBook
from domain.machines import Machines
from domain.runtime import ModelRuntime

_PATIENCE_US = 30_000_000
_PATIENCE_LOADS = 4
"""So many times the swap there and back may own work of another model wait, so that loading takes a small part of the time."""
_FAILURES_MAX = 3  # failed loads in a row after which those that wait for the model are refused


class EngineRoom:
    """The models of one runtime, which of them is loaded, and which is next. Pure: same inputs, same outputs."""

    def __init__(self, config: RoomConfig) -> None:
        self.config = config
        self.resident: ModelId | None = None
        """The model that is loaded; None while one is being loaded, and when none is."""
        self.loading: ModelId | None = None
        self._cause = ""
        self._since_us = 0
        """When the resident was loaded, or the load began."""
        self._members: dict[ModelId, Machines] = {}
        self._others: tuple[ModelRuntime, ...] = ()
        self._loads = LoadBook()
        self._restore = Restore(config)
        self._fresh_load_us = 0

    def join(self, runtime: ModelRuntime) -> None:
        """Let `runtime` share this room: right after it is made."""
        assert runtime.model not in self._members, f"model {runtime.model}: has joined this room before"
        self._members[runtime.model] = runtime
        runtime.room = self

    def remember_load(self, model: ModelId, load_us: int) -> None:
        """Take a load that was measured before this room began, oldest first."""
        self._loads.succeeded(model, load_us)

    def watch(self, runtimes: Iterable[ModelRuntime]) -> None:
        """Name the node's models with runtimes of their own: a restore waits until they are quiet too."""
        self._others = tuple(runtime for runtime in runtimes if runtime.room is not self)

    @property
    def displaced(self) -> ModelId | None:
        """What borrowed work drove out, and what a restore would load back."""
        return self._restore.displaced

    # -- what the node tells it

    def set_restore(self, *, delay_us: int, keep_while_likely: bool) -> None:
        """Change `offload_restore_delay` and `offload_keep_while_likely`; a restore that is scheduled keeps its moment."""
        self.config = msgspec.structs.replace(
            self.config, restore_delay_us=delay_us, keep_while_likely=keep_while_likely
        )
        self._restore.delay_us, self._restore.keep = delay_us, keep_while_likely

    def begin(self, resident: ModelId | None, now_us: int, *, starting: ModelId | None = None) -> list[Output]:
        """Say what is loaded at the start; None if nothing is. `starting`: what the node loads by itself from now on."""
        self.resident, self._since_us = resident, now_us
        self._restore.begin(now_us, starting)
        return self.tick(now_us)

    def loaded(self, model: ModelId, load_us: int, now_us: int) -> list[Output]:
        """The load that `LoadModel` asked for is done; an echo of another one changes nothing."""
        if model != self.loading:
            return []
        cause, restore = self._cause, self._restore
        self.resident, self.loading, self._since_us = model, None, now_us
        self._loads.succeeded(model, load_us)
        displaced = restore.displaced if cause == "borrowed" and restore.displaced != model else None
        out: list[Output] = [Loaded(model=model, load_us=load_us, cause=cause, displaced=displaced)]
        if cause == "restore":
            out.append(Restored(model=model, load_us=load_us))
            restore.forget()
        elif model == restore.displaced:  # borrowed work brought it back
            self._forget_restore("loaded", out, told=True)
        if cause == "borrowed":
            self._fresh_load_us = load_us
        return self._settled(now_us, out)

    def load_failed(self, model: ModelId, reason: str, now_us: int) -> list[Output]:
        """The load that `LoadModel` asked for failed, and nothing is loaded now.

        Own requests wait for the next try, 1 s later and doubling to 30 s; after the third failure in a row: `Refuse` 503
        model_unavailable. Borrowed ones are handed back, and what they drove out is loaded again.
        """
        if model != self.loading:
            return []
        self.loading = None
        failures = self._loads.failed(model, now_us)
        out: list[Output] = [LoadFailed(model=model, cause=self._cause, reason=reason)]
        member = self._members[model]
        member.desk.hand_back_unstarted("load_failed", out)
        if failures >= _FAILURES_MAX:
            member.owner.refuse_held(f"it could not be loaded {failures} times in a row", now_us, out)
        if self._cause == "borrowed":
            self._restore.at_once = self.displaced is not None
        elif self._cause == "restore":
            self._restore_failed(failures, out)
        return self._settled(now_us, out)

    def tick(self, now_us: int) -> list[Output]:
        """Do what is due at `now_us`: look whether the node is quiet, try a failed load again."""
        return self._settled(now_us, [])

    def next_timer_us(self) -> int | None:
        """Return when `tick` is due next; None if nothing of the room's own waits for time."""
        # a restore that comes due in a load is looked at when the load is over
        due = (self._restore.due_us if self.loading is None else None, self._loads.next_try_us())
        return min((moment_us for moment_us in due if moment_us is not None), default=None)

    def state(self, now_us: int) -> RuntimeState:
        """Return what is loaded, for the node's snapshot."""
        return RuntimeState(
            runtime=self.config.runtime,
            resident=self.resident,
            loading=self.loading,
            loading_us=now_us - self._since_us if self.loading is not None else 0,
            displaced=self.displaced,
        )

    # -- what its models ask and tell

    def settle(self, now_us: int, out: list[Output]) -> None:
        """Do what the state now allows, for all models: fill the engine, lend, load, restore, say who is welcome."""
        members = self._members.values()
        self._loads.pass_time(now_us)
        for member in members:
            member.prepare(now_us, out)
        if self.resident is not None:
            self._members[self.resident].fill(now_us, out, borrowed=self._is_borrowed_turn(now_us))
        for member in members:
            member.lend_held(now_us, out)
        self._load_next(now_us, out)
        self._look_at_restore(now_us, out)
        own_waits = any(member.own_waits for member in members)
        for member in members:
            if member.helps:
                member.announce(self._why_closed(member, own_waits=own_waits), out)

    def serves(self, member: Machines, now_us: int) -> bool:
        """Tell whether requests of `member` may go to the engine now."""
        return self.resident == member.model and self._impatient(now_us) is None

    def why_closed(self, member: Machines) -> str:
        """Return why no borrowed work of `member` is taken: draining, restoring, own_work or engine_down; empty if it is."""
        return self._why_closed(member, own_waits=any(one.own_waits for one in self._members.values()))

    def _why_closed(self, member: Machines, *, own_waits: bool) -> str:
        if member.draining:
            return "draining"
        if self._restore.at_once or (self.loading is not None and self._cause == "restore"):
            return "restoring"
        if own_waits:
            return "own_work"
        if member.model == self.loading:
            return ""
        ready = not member.paused if member.model == self.resident else self._loads.may_try(member.model)
        return "" if ready else "engine_down"

    def why_not_loaded(self, member: Machines, offer: BorrowOffer) -> str:
        """Return load_needed if `offer` would need a load that its link does not allow; empty otherwise."""
        here = member.model in (self.resident, self.loading)
        return "" if here or offer.may_load else "load_needed"

    @property
    def loads_for_borrowed(self) -> bool:
        """Whether a model is being loaded for borrowed work."""
        return self.loading is not None and self._cause == "borrowed"

    def inside(self) -> int:
        """Return how many requests are inside the engine."""
        return sum(len(member.pipe) for member in self._members.values())

    def borrowed_inside(self) -> int:
        """Return how many borrowed requests are inside the engine."""
        return sum(member.pipe.borrowed for member in self._members.values())

    def borrowed_here(self) -> int:
        """Return how many borrowed requests are at the desks, waiting or running."""
        return sum(len(member.desk) for member in self._members.values())

    def enrol(self, now_us: int, out: list[Output]) -> None:
        """Let all models state their requests if one of them is in a link, and none if none is."""
        enrolled = any(member.linked for member in self._members.values())
        for member in self._members.values():
            member.owner.set_enrolled(enrolled=enrolled, now_us=now_us, out=out)

    def own_came(self, model: ModelId, now_us: int, out: list[Output]) -> None:
        """A request of the node's own came for `model`: what is borrowed and has not started goes back, for whichever model."""
        for member in self._members.values():
            member.desk.hand_back_unstarted("own_work", out)
        self._fresh_load_us = 0
        self._restore.own_came(now_us)
        # with no borrowed work left, own work for the loaded model makes it the node's own choice
        chosen = model == self.resident and not self.borrowed_here()
        if chosen or self._restore.due_us is not None:
            self._forget_restore("own_work", out)

    def borrow_came(self, now_us: int) -> None:
        """A borrowed request was accepted."""
        self._restore.borrow_came(now_us, alone=self.borrowed_here() == 1)

    def borrow_left(self, now_us: int) -> None:
        """A borrowed request left the engine."""
        self._restore.borrow_left(now_us)

    def claimed(self, offer: BorrowOffer) -> None:
        """A borrowed request claimed the engine."""
        self._restore.wanted |= offer.restore

    def take_load_us(self) -> int:
        """Return what the last load for borrowed work took, to the first that claims the engine after it; 0 to others."""
        load_us, self._fresh_load_us = self._fresh_load_us, 0
        return load_us

    def engine_is_up(self, member: Machines, now_us: int, out: list[Output]) -> None:
        """The engine of `member` came up by itself: it is the loaded model, if none is and none is being loaded."""
        if self.resident is None and self.loading is None:
            self.resident, self._since_us, self._restore.starting = member.model, now_us, None
            self._loads.came_up(member.model)
            if member.model == self.displaced:
                self._forget_restore("loaded", out)

    def engine_died(self, member: Machines, now_us: int, out: list[Output]) -> None:
        """The engine of the loaded model is gone: nothing is loaded, and it may be loaded again in a second."""
        if self.resident != member.model:
            return
        self.resident, self._since_us = None, now_us
        self._loads.died(member.model, now_us)
        out.append(LoadFailed(model=member.model, cause="own", reason="engine_down"))
        member.empty_dead_engine(now_us, out)

    # -- inside

    def _settled(self, now_us: int, out: list[Output]) -> list[Output]:
        self.settle(now_us, out)
        return out

    def _own_turns(self) -> list[tuple[int, ModelId]]:
        """Return the models, but the loaded one, whose own requests wait and that may be loaded, by first arrival."""
        turns = []
        for model, member in self._members.items():
            first = member.owner.first_held() if model != self.resident else None
            if first is not None and self._loads.may_try(model):
                turns.append((first.arrived_us, model))
        return sorted(turns)

    def _impatient(self, now_us: int) -> ModelId | None:
        """Return the model whose own work has waited long enough to be swapped in though the loaded one has work left."""
        for arrived_us, model in self._own_turns():
            if self._has_waited(arrived_us, model, now_us):
                return model
        return None

    def _has_waited(self, arrived_us: int, model: ModelId, now_us: int) -> bool:
        """Tell whether work of `model` has waited its share, counted from when the loaded model came in at the earliest.

        Without that a model whose queue is old would be driven out before it has served anything.
        """
        there_and_back_us = self._loads.median_us(model) + self._loads.median_us(self.resident)
        waited_us = now_us - max(arrived_us, self._since_us)
        return waited_us > max(_PATIENCE_US, _PATIENCE_LOADS * there_and_back_us)

    def _is_borrowed_turn(self, now_us: int) -> bool:
        """Tell whether borrowed work of the loaded model may start: no own work waits, nor another's borrowed too long."""
        if any(member.owner.held for member in self._members.values()):
            return False
        return not any(self._has_waited(since_us, model, now_us) for since_us, model in self._borrowed_turns())

    def _borrowed_turns(self) -> list[tuple[int, ModelId]]:
        """Return the models, but the loaded one, whose borrowed requests wait and that may be loaded, by acceptance."""
        turns = []
        for model, member in self._members.items():
            ready = member.desk.next_ready() if model != self.resident else None
            if ready is not None and self._loads.may_try(model):
                turns.append((ready.since_us, model))
        return sorted(turns)

    def _load_next(self, now_us: int, out: list[Output]) -> None:
        """Begin the load that is due, if the engine is empty: for own work, back after a failed one, for borrowed work."""
        if self.loading is not None or self.inside():
            return
        if any(member.owner.held for member in self._members.values()):
            model = self._next_own(now_us)
            if model is not None:
                self._load(model, "own", now_us, out)
            return
        displaced = self.displaced
        if self._restore.at_once and displaced is not None:
            if self._loads.may_try(displaced):
                self._load(displaced, "restore", now_us, out)
            return
        model = self._next_borrowed(now_us)
        if model is not None:
            self._load(model, "borrowed", now_us, out)

    def _next_own(self, now_us: int) -> ModelId | None:
        if self.resident is not None and self._members[self.resident].owner.held:
            return self._impatient(now_us)
        turns = self._own_turns()
        return turns[0][1] if turns else None

    def _next_borrowed(self, now_us: int) -> ModelId | None:
        turns = self._borrowed_turns()
        if not turns:
            return None
        since_us, model = turns[0]
        busy = self.resident is not None and self._members[self.resident].desk.next_ready() is not None
        return None if busy and not self._has_waited(since_us, model, now_us) else model

    def _load(self, model: ModelId, cause: str, now_us: int, out: list[Output]) -> None:
        """Ask for `model` in place of the loaded one."""
        leaving, member = self.resident, self._members[model]
        if cause == "own":
            self._forget_restore("own_work", out, told=True)
        elif cause == "borrowed":
            self._restore.displace(leaving)
            self._restore.wanted |= member.desk.wants_restore
        self.resident, self.loading, self._cause, self._since_us = None, model, cause, now_us
        if cause == "restore":
            self._restore.due_us = None
        self._restore.at_once = False
        self._fresh_load_us = 0
        for other in self._members.values():
            if other is not member:
                other.desk.hand_back_unstarted("load_needed", out, loadable=False)
        if leaving is not None:
            out.append(Unloaded(model=leaving, cause=cause))
        out.append(LoadStarted(model=model, cause=cause))
        out.append(LoadModel(model=model, runtime=self.config.runtime, cause=cause))

    def _look_at_restore(self, now_us: int, out: list[Output]) -> None:
        """Schedule the restore once the desks are empty; load back what was driven out once the node has been quiet."""
        restore = self._restore
        if restore.displaced is None or not restore.wanted or restore.at_once or self.loading is not None:
            return
        if restore.due_us is None:
            if not self.borrowed_here():
                restore.schedule(now_us)
                out.append(RestoreScheduled(model=restore.displaced, delay_us=self.config.restore_delay_us))
            return
        if restore.due_us > now_us:
            return
        switch_us, back_us = self._loads.median_us(self.resident), self._loads.median_us(restore.displaced)
        unwise = self._is_busy(now_us) or restore.keeps(now_us, switch_us, back_us or switch_us)
        if unwise or not self._loads.may_try(restore.displaced):
            restore.put_off(now_us)
        else:
            self._load(restore.displaced, "restore", now_us, out)

    def _is_busy(self, now_us: int) -> bool:
        delay_us = self.config.restore_delay_us
        return any(one.is_busy(now_us, delay_us) for one in (*self._members.values(), *self._others))

    def _restore_failed(self, failures: int, out: list[Output]) -> None:
        """Try the restore again after its wait; give it up after the third failure in a row."""
        if failures >= _FAILURES_MAX:
            self._forget_restore("load_failed", out)
        else:
            self._restore.at_once = True

    def _forget_restore(self, reason: str, out: list[Output], *, told: bool = False) -> None:
        """Owe nothing any more, and say so; where the fact of a load tells it (`told`), only if a restore was expected."""
        scheduled = self._restore.due_us is not None or self._restore.at_once
        if self.displaced is not None and (scheduled or self._cause == "restore" or not told):
            out.append(RestoreCancelled(model=self.displaced, reason=reason))
        self._restore.forget()

"""Promises of two models that share a runtime, under any order of requests, loads, failures and restores.

The world plays the loader, engine, owners, helpers and clients.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain.actions import Output
from domain.engine_room import EngineRoom
from domain.events import Loaded, LoadFailed, LoadStarted, ModelInfo, RestoreCancelled, Restored, Unloaded
from domain.ids import LinkId, ModelId, NodeId
from domain.inputs import EngineResult, LendFailure, LendResult, RoomConfig, RuntimeConfig
from domain.master import rooms
from domain.master.state import Node, State
from domain.runtime import ModelRuntime
from tests.property.room_world import RoomWorld
from tests.unit.machine_rig import LINK, SECOND, lease, new, offer, rid

N1 = NodeId("n1")
A, B = ModelId("a"), ModelId("b")
MODELS = (A, B)
HELPS = {A: LinkId("dddd"), B: LinkId("eeee")}
MODEL = st.sampled_from(MODELS)
ROOM_FACTS: dict[type, Callable[[State, NodeId, Any], None]] = {
    LoadStarted: rooms.load_started,
    Loaded: rooms.loaded,
    Restored: rooms.loaded,
    Unloaded: rooms.unloaded,
    LoadFailed: rooms.unloaded,
    RestoreCancelled: rooms.restore_cancelled,
}
OFTEN = st.sampled_from([True, True, True, True, False])


class RoomMachine(RuleBasedStateMachine):
    """Any order of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.world = RoomWorld(MODELS, A)
        infos = {model: ModelInfo(id=model, local_id=model, ready=model == A, runtime="gpu") for model in MODELS}
        self.master = State(nodes={N1: Node(models=infos)})
        rooms.furnish(self.master.nodes[N1])
        self.room, self.models = self._make()
        self.inputs: list[tuple[str, str, tuple[Any, ...]]] = []
        self.outputs: list[list[Output]] = []
        self.numbers = self.version = 0
        self.broken = False
        for model in MODELS:
            self.call(model, "set_links", [LINK] if model == A else [], [HELPS[model]])
        self.call("", "begin", A)

    @staticmethod
    def _make() -> tuple[EngineRoom, dict[str, ModelRuntime]]:
        room = EngineRoom(RoomConfig(node=N1, runtime="gpu", restore_delay_us=2 * SECOND, keep_while_likely=False))
        config = {"node": N1, "runtime": "gpu", "wait_us_max": 300 * SECOND}
        models: dict[str, ModelRuntime] = {}
        for model in MODELS:
            models[model] = ModelRuntime(RuntimeConfig(model=model, **config))  # type: ignore[arg-type]
            room.join(models[model])
        return room, models

    def call(self, model: str, name: str, *args: Any, before: Callable[[], None] | None = None) -> list[Output]:
        target: Any = self.models[model] if model else self.room
        outputs: list[Output] = getattr(target, name)(*args, self.world.now_us)
        self.inputs.append((model, name, (*args, self.world.now_us)))
        self.outputs.append(outputs)
        if before is not None:
            before()
        self.tell_master(outputs)
        self.broken = True  # what is left of a world that saw a fault proves nothing more
        self.world.see(outputs)
        self.broken = False
        return outputs

    def tell_master(self, outputs: list[Output]) -> None:
        for output in outputs:
            handler = ROOM_FACTS.get(type(output))
            if handler is not None:
                handler(self.master, N1, output)

    # -- clients

    @rule(model=MODEL, count=st.sampled_from([1, 1, 2, 4]))
    def submit(self, model, count):
        for _ in range(count):
            self.numbers += 1
            self.world.open[rid(self.numbers)] = model
            self.call(model, "submit", new(self.numbers))
            assert all(at == "running" for _, at in self.world.desk.values()), "own work came and did not get the place"

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def client_gone(self, data):
        request = data.draw(st.sampled_from(sorted(self.world.held)))
        self.call(self.world.open[request], "client_gone", request)

    # -- the loader and the engine

    @precondition(lambda self: self.world.loading)
    @rule(fails=st.sampled_from([False, False, True]), takes_us=st.integers(0, 20 * SECOND))
    def load_ends(self, fails, takes_us):
        self.pass_time(self.world.now_us + takes_us)
        self.end_load(fails=fails)

    def end_load(self, *, fails: bool) -> None:
        world = self.world
        model = world.loading
        assert model is not None

        def before() -> None:
            world.resident, world.loading = (None if fails else model), None

        if fails:
            self.call("", "load_failed", model, "out of memory", before=before)
        else:
            self.call("", "loaded", model, 5 * SECOND, before=before)

    @rule(model=MODEL)
    def echo_of_a_load(self, model):
        if model != self.world.loading:
            assert self.call("", "loaded", model, 5) == []

    @precondition(lambda self: self.world.engine)
    @rule(data=st.data(), kind=st.sampled_from(["ok", "ok", "ok", "broken", "not_started"]))
    def engine_finished(self, data, kind):
        self.finish(data.draw(st.sampled_from(sorted(self.world.engine))), kind)

    def finish(self, request: str, kind: str = "ok") -> None:
        model, _ = self.world.engine[request]
        result = {
            "ok": EngineResult(),
            "broken": EngineResult(complete=False),
            "not_started": EngineResult(status=0, complete=False, not_started=True),
        }[kind]
        self.call(model, "engine_finished", request, result, before=lambda: self._left(request))

    def _left(self, request: str) -> None:
        del self.world.engine[request]

    @rule(model=MODEL, up=st.booleans())
    def engine_of_a_model_comes_or_goes(self, model, up):
        world = self.world
        before = world.resident

        def change() -> None:
            if up and before is None and world.loading is None:
                world.resident = model
            if not up and before == model:
                world.resident = None
                world.engine.clear()

        self.call(model, "set_engine_up", up, before=change)

    # -- lending and borrowing

    @rule(slots=st.integers(0, 2))
    def take_lease(self, slots):
        self.version += 1
        grant = lease(slots=slots, name=f"l{self.version}", job_us=SECOND)
        self.call(A, "take_lease", grant, ("00010000", self.version, 0), self.world.now_us)

    @precondition(lambda self: self.world.lends)
    @rule(data=st.data(), kind=st.sampled_from(["answered", "returned", "failed"]))
    def lend_outcome(self, data, kind):
        lend = self.world.lends[data.draw(st.sampled_from(sorted(self.world.lends)))]
        more = {"answered": LendResult(), "returned": "own_work", "failed": LendFailure(reason="helper_failed")}
        self.call(A, f"lend_{kind}", lend.request, lend.lease, more[kind])

    @rule(model=MODEL, may_load=OFTEN, restore=st.booleans(), whole=OFTEN)
    def borrow(self, model, may_load, restore, whole):
        self.numbers += 1
        request = rid(self.numbers)
        if not may_load:
            self.world.no_load.add(request)
        self.call(model, "borrow", offer(self.numbers, link=HELPS[model], may_load=may_load, restore=restore))
        if whole and request in self.world.bodies:
            self.call(model, "borrow_body", request)

    @precondition(lambda self: self.world.bodies)
    @rule(data=st.data())
    def borrow_body(self, data):
        request = data.draw(st.sampled_from(sorted(self.world.bodies)))
        self.call(self.world.bodies[request], "borrow_body", request)

    @precondition(lambda self: self.world.desk)
    @rule(data=st.data())
    def borrower_gone(self, data):
        request = data.draw(st.sampled_from(sorted(self.world.desk)))
        self.call(self.world.desk[request][0], "borrower_gone", request)

    # -- time

    @rule(step_us=st.integers(0, 20 * SECOND))
    def time_passes(self, step_us):
        self.pass_time(self.world.now_us + step_us)

    def next_timer(self) -> tuple[int, str] | None:
        timers = [(self.room.next_timer_us(), "")] + [
            (made.next_timer_us(), name) for name, made in self.models.items()
        ]
        return min(((due_us, name) for due_us, name in timers if due_us is not None), default=None)

    def pass_time(self, until_us: int) -> None:
        """Tick at every timer on the way."""
        for _ in range(10_000):
            due = self.next_timer()
            if due is None or due[0] > until_us:
                break
            assert due[0] >= self.world.now_us, "a timer that was due already"
            self.world.now_us = due[0]
            self.call(due[1], "tick")
        else:
            raise AssertionError("a timer that never gets done")
        self.world.now_us = until_us

    # -- what always holds

    @invariant()
    def the_room_says_what_is_loaded(self):
        state = self.room.state(self.world.now_us)
        assert (state.resident, state.loading) == (self.world.resident, self.world.loading)

    @invariant()
    def the_master_knows_what_is_owed_back(self):
        known = self.master.nodes[N1].rooms["=gpu"]
        assert (known.displaced or None) == self.room.displaced == self.room.state(self.world.now_us).displaced

    @invariant()
    def no_model_takes_borrowed_work_while_own_work_of_any_waits(self):
        if self.world.held:
            assert all(self.world.closed.values())

    @invariant()
    def own_work_never_waits_for_nothing(self):
        """It waits for what is inside, for a load, or for a time at which something is tried again."""
        if self.world.held and not self.world.engine and self.world.loading is None:
            due = self.next_timer()
            assert due is not None
            assert due[0] <= self.world.now_us + 30 * SECOND

    @invariant()
    def the_counts_are_what_the_actions_did(self):
        for model, made in self.models.items():
            counts = made.counts()
            inside = [request for request, (of, _) in self.world.engine.items() if of == model]
            held = [request for request in self.world.held if self.world.open[request] == model]
            desk = [request for request, (of, _) in self.world.desk.items() if of == model]
            assert (counts.held, counts.in_engine, counts.borrowed) == (len(held), len(inside), len(desk))

    def teardown(self) -> None:
        if not self.broken:
            self.everything_ends_once_the_faults_end()
            self.the_same_inputs_give_the_same_outputs()

    def everything_ends_once_the_faults_end(self) -> None:
        world = self.world
        for _ in range(300):
            if world.loading is not None:
                self.end_load(fails=False)
            for lend in list(world.lends.values()):
                self.call(A, "lend_answered", lend.request, lend.lease, LendResult())
            for request, model in sorted(world.bodies.items()):
                if request in world.bodies:
                    self.call(model, "borrow_body", request)
            for request in sorted(world.engine):
                self.finish(request)
            if not world.open and not world.desk and world.loading is None:
                break
            self.pass_time(world.now_us + SECOND)
        assert all(made.idle for made in self.models.values()), "something never ends"
        for _ in range(10):
            self.pass_time(world.now_us + 100 * SECOND)
            if world.loading is not None:
                self.end_load(fails=False)
        assert self.next_timer() is None, "something waits for nothing"
        assert world.scheduled is None, "a restore that never comes"

    def the_same_inputs_give_the_same_outputs(self) -> None:
        room, models = self._make()
        for (model, name, args), outputs in zip(self.inputs, self.outputs, strict=True):
            target: Any = models[model] if model else room
            assert msgspec.json.encode(getattr(target, name)(*args)) == msgspec.json.encode(outputs)


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)

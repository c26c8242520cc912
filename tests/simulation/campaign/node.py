"""A node: the product's machines, producer, spool and lease copies, driven as services.node drives them, without HTTP.

What is a driver of ours here and not the product's code: who calls the machines when (services.node.serving, ingress, desk and
lending speak aiohttp), and the keeper of the engine. It is kept as thin as that.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adapters.decisions import DecisionReader, SignedDecision
from adapters.keys import derive_mac_key
from adapters.log.producer import Producer
from adapters.log.spool import Spool
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
from domain.control.view import ControlView
from domain.engine_room import EngineRoom
from domain.events import (
    BorrowReturned,
    DeskState,
    Draining,
    Fact,
    LeaseChecked,
    Loaded,
    LoadFailed,
    ModelInfo,
    NodeSnapshot,
    QueueState,
    Registered,
    Stopped,
    Witness,
    codec,
)
from domain.ids import Incarnation, ModelId, RequestId
from domain.inputs import EngineResult, NewRequest
from domain.runtime import ModelRuntime
from domain.subjects import CONTROL, DECISIONS, EVENTS, heartbeat_subject
from services.node.grants import LeaseCopies
from tests.simulation.campaign.bus import Draft, Port
from tests.simulation.campaign.engine import Entry
from tests.simulation.campaign.loop import pass_time
from tests.simulation.campaign.master import SIGNER
from tests.simulation.campaign.specs import ModelSpec, model_info, rooms_of, runtime_config
from tests.support.history import CLUSTER, SECRET

if TYPE_CHECKING:
    from tests.simulation.campaign.machine import NodeMachine
    from tests.simulation.campaign.wire import Connection

BEAT_S = 1.0
KEEPER_US = 400_000
"""Until the keeper has looked at an engine that broke a connection."""
NOT_STARTED = EngineResult(status=0, complete=False, not_started=True)
BROKEN = EngineResult(status=0, complete=False, code="engine_failed")


Timed = ModelRuntime | EngineRoom
"""What is due at times of its own."""


class NodeLife:
    """One life of the node's process."""

    def __init__(self, machine: "NodeMachine") -> None:
        self.machine, self.world, self.name = machine, machine.world, machine.name
        world, spec = self.world, machine.spec
        self.process = world.loop.process(f"{self.name}.{machine.lives}")
        self.port = Port(world.server, self.process)
        self.port.wants = (f".lease.{self.name}.", f".{self.name}.", ".safe_mode.")
        self.incarnation = Incarnation(f"{self.name}-{machine.lives:04d}")
        self.spool = Spool(machine.data / self.name, bytes_max=spec.spool_bytes)
        self.producer = Producer(
            self.port.stream(EVENTS),
            cluster=CLUSTER,
            node=self.name,
            incarnation=self.incarnation,
            mac_key=bytes.fromhex(derive_mac_key(SECRET, self.name)),
            clock=machine.clock,
            spool=self.spool,
        )
        self.producer.overflowed = lambda: self.snapshot("overflow")
        self.view, self.copies = ControlView(), LeaseCopies()
        self.reader = DecisionReader(CLUSTER, SIGNER.public)
        self.runtimes = {model.id: ModelRuntime(runtime_config(spec, model)) for model in spec.models}
        self.up = {model.id: machine.engines[model.id].up for model in spec.models}
        self.rooms = rooms_of(spec, self.runtimes)
        self.draining = False
        self.inside: dict[RequestId, Entry] = {}
        self.borrowed: dict[RequestId, Connection] = {}
        self.offering: Connection | None = None
        self.models: dict[RequestId, ModelId] = {}
        """Of every request of its own."""
        self._returned: dict[RequestId, str] = {}
        self._was_away = False
        self._timer: object = None
        self._due_us: int | None = None

    def begin(self) -> None:
        """Register, then do what a node does."""
        now = self.now()
        for model, up in self.up.items():
            if not up and not self.machine.model(model).runtime:
                self.runtimes[model].set_engine_up(up=False, now_us=now)
        self.producer.state(
            Registered(
                url=f"http://{self.name}",
                models=tuple(self._info(model) for model in self.machine.spec.models),
                version="1",
                depth=self.machine.spec.depth,
                witness=self.machine.witness,
            )
        )
        for name, room in sorted(self.rooms.items()):
            resident = self.machine.engines[self._members(name)[0]].resident
            self.do(room.begin(resident, self.now()))
        self.port.core = self._hear_core
        for task in (self.producer.run(), self._follow_control(), self._follow_decisions(), self._beat()):
            self.world.loop.spawn(self.process, task)

    def _members(self, runtime: str) -> list[ModelId]:
        return [model.id for model in self.machine.spec.models if model.runtime == runtime]

    def _info(self, model: ModelSpec) -> ModelInfo:
        ready = self.up[model.id] and self.machine.engines[model.id].resident == model.id
        return model_info(model, ready=ready)

    def now(self) -> int:
        return self.machine.clock.monotonic_us()

    # -- what it hears

    def _hear_core(self, draft: Draft) -> None:
        self._decision(draft.body)

    async def _follow_decisions(self) -> None:
        async for message in self.machine.durables[DECISIONS].messages(self.port, self.world.net):
            self._decision(message.body)

    async def _follow_control(self) -> None:
        async for message in self.machine.durables[CONTROL].messages(self.port, self.world.net):
            self.view.apply(codec.decode_control(codec.decode_envelope(message.body).data))
            for model, runtime in sorted(self.runtimes.items()):
                lent = [on.link for on in self.view.links_lent_by(self.name, model)]
                borrowed = [on.link for on in self.view.links_borrowed_by(self.name, model)]
                self.do(runtime.set_links(lent, borrowed, self.now()))
                hold = bool(self.view.setting("offload_hold_for_faster_helper"))
                self.do(runtime.set_hold(hold, self.now()))
                streams = bool(self.view.setting("offload_streams"))
                self.do(runtime.set_lending(self.view.setting("offload_lease_ttl"), streams, self.now()))
                self.do(runtime.set_stall(self.view.setting("offload_lent_stall_timeout"), self.now()))

    def _decision(self, body: bytes) -> None:
        signed = self.reader.read(body)
        if signed is None:
            return
        generation, version, _ = signed.order
        seen = self.machine.witness
        if seen is None or (generation, version) > (seen.generation, seen.version):
            self.machine.witness = Witness(generation=signed.generation, version=version, signed=signed.body.decode())
        self._heed(signed)

    def _heed(self, signed: SignedDecision) -> None:
        event, word = signed.lease, signed.word
        if event is not None:
            newer = self.copies.take(signed, self.now())
            if event.owner == self.name and newer and event.owner_model in self.runtimes:
                sent_us = self.producer.sent_at_us(event.basis)
                self.do(self.runtimes[event.owner_model].take_lease(event, signed.order, sent_us, self.now()))
        elif word is not None:
            ends = [(word.owner, word.owner_model)]
            if isinstance(word, LeaseChecked):
                ends.append((word.helper, word.helper_model))
            for node, model in ends:
                if node == self.name and model in self.runtimes:
                    self.do(self.runtimes[model].take_word(word, signed.order, self.now()))

    async def _beat(self) -> None:
        while True:
            self.port.beat(heartbeat_subject(CLUSTER, self.name))
            if not self.port.connected or not self.producer.bus_ok or self.producer.spoke_late:
                self._was_away, self.producer.spoke_late = True, False
            elif self._was_away and await self.producer.drained(timeout_s=BEAT_S):
                self._was_away = False
                self.snapshot("gap")
            await pass_time(BEAT_S)

    def snapshot(self, reason: str) -> None:
        shares: list[QueueState | DeskState] = []
        for _, runtime in sorted(self.runtimes.items()):
            shares += runtime.snapshot(self.now())
        for at, share in enumerate(shares, 1):
            self.producer.state(
                NodeSnapshot(
                    part=at,
                    parts=len(shares),
                    queues=(share,) if isinstance(share, QueueState) else (),
                    desks=(share,) if isinstance(share, DeskState) else (),
                    reason=reason,
                    accepting=not self.draining,
                    runtimes=tuple(room.state(self.now()) for _, room in sorted(self.rooms.items()))
                    if at == len(shares)
                    else (),
                )
            )
        for _, runtime in sorted(self.runtimes.items()):
            if (welcome := runtime.announced()) is not None:
                self.producer.state(welcome)

    # -- clients

    def submit(self, new: NewRequest, model: ModelId) -> None:
        self.models[new.request] = model
        self.do(self.runtimes[model].submit(new, self.now()))

    def client_gone(self, request: RequestId) -> None:
        self.do(self.runtimes[self.models[request]].client_gone(request, self.now()))

    async def drain(self) -> None:
        """SIGTERM: take nothing new, let end what is here, say so, and leave."""
        self.draining = True
        self.producer.state(Draining())
        for _, runtime in sorted(self.runtimes.items()):
            self.do(runtime.drain(self.now()))
        while True:
            await pass_time(0.05)
            if not self.borrowed and all(runtime.idle for runtime in self.runtimes.values()):
                break
        self.producer.state(Stopped())
        await self.producer.drained(5.0)
        self.world.say(self.name, "has drained")
        self.world.loop.after(0, self.machine.leave, self)

    # -- the engine

    def engine_began(self, entry: Entry) -> None:
        connection = self.borrowed.get(entry.request)
        if self.inside.get(entry.request) is entry and connection is not None:
            connection.answer_begins()

    def engine_left(self, entry: Entry, whole: bool) -> None:
        if self.inside.get(entry.request) is not entry:
            return
        del self.inside[entry.request]
        result = EngineResult(status=self.world.status_of(entry.request)) if whole else BROKEN
        self._engine_result(entry.request, entry.model, result, entry.ended_us - max(entry.begun_us, 0))
        if entry.how == "died":
            self.world.loop.after(KEEPER_US, self._look_at, entry.model, process=self.process)

    def _engine_result(self, request: RequestId, model: ModelId, result: EngineResult, took_us: int) -> None:
        connection = self.borrowed.get(request)
        if connection is None and result.complete:
            self.world.clients.answered(self, request, result.status)
        self.do(self.runtimes[model].engine_finished(request, result, self.now()))
        if connection is not None:
            connection.engine_left(result, took_us)

    def _look_at(self, model: ModelId) -> None:
        """The keeper looks at an engine that somebody could not reach."""
        engine = self.machine.engines[model]
        if self.machine.model(model).runtime:
            if not engine.up:
                self.do(self.runtimes[model].set_engine_up(up=False, now_us=self.now()))
        elif not engine.up and self.up[model]:
            self._engine_is(model, up=False)

    def engine_back(self, model: ModelId) -> None:
        """The keeper has started the engine anew."""
        self._look_at(model)
        if not self.up[model]:
            self._engine_is(model, up=True)

    def _engine_is(self, model: ModelId, *, up: bool) -> None:
        self.up[model] = up
        if up:
            self.producer.state(Loaded(model=model, load_us=self.machine.model(model).load_us, cause="own"))
        else:
            self.producer.state(LoadFailed(model=model, cause="own", reason="exited"))
        self.do(self.runtimes[model].set_engine_up(up, self.now()))

    # -- doing

    def do(self, outputs: Sequence[Output]) -> None:
        """State the facts and do the actions, in their order."""
        for output in outputs:
            if isinstance(output, Action):
                self.world.note(self, output)
                self._act(output)
            else:
                self._state(output)
        self._arm()
        self.world.monitor.look_at(self)

    def _state(self, fact: Fact) -> None:
        if isinstance(fact, BorrowReturned):
            self._returned[fact.request] = fact.reason
        self.world.note(self, fact)
        self.producer.state(fact)

    def _act(self, action: Action) -> None:
        world = self.world
        match action:
            case Dispatch():
                self._dispatch(action)
            case Lend():
                world.monitor.lends(self, action)
                world.wire.lend(self, action)
            case Refuse():
                world.clients.refused(self, action)
            case CancelEngine():
                if action.request in self.inside:
                    self.machine.engines[self.inside[action.request].model].cancel(action.request)
            case CancelLend():
                world.wire.close(action.request, action.lease)
            case AcceptBorrow():
                assert self.offering is not None
                self.borrowed[action.request] = self.offering
                world.monitor.accepts(self, action.request)
                self.offering.accepted()
            case RefuseBorrow():
                self._refuse_borrow(action)
            case LoadModel():
                self._load(action)

    def _load(self, action: LoadModel) -> None:
        room, takes_us = self.rooms[action.runtime], self.machine.model(action.model).load_us

        def ended(why: str) -> None:
            self.world.loop.after(0, done, why, process=self.process)

        def done(why: str) -> None:
            if why:
                self.do(room.load_failed(action.model, why, self.now()))
            else:
                self.do(room.loaded(action.model, takes_us, self.now()))

        self.machine.engines[action.model].load(action.model, takes_us, action.cause, ended)

    def _refuse_borrow(self, action: RefuseBorrow) -> None:
        connection = self.borrowed.pop(action.request, None)
        if connection is None:
            connection = self.offering
        if connection is not None:
            connection.refused(action, self._returned.pop(action.request, ""))

    def _dispatch(self, action: Dispatch) -> None:
        request = action.request
        connection = self.borrowed.get(request) if action.borrowed else None
        model = connection.model if connection is not None else self.models[request]
        engine = self.machine.engines[model]
        entry = Entry(
            request=request,
            node=self.name,
            model=model,
            borrowed=action.borrowed,
            given_us=self.world.loop.now_us,
            connection=connection.number if connection is not None else 0,
        )
        self.inside[request] = entry
        if engine.take(entry, self.world.takes_us(request, self.machine.model(model))):
            self.world.monitor.starts(self, entry)
        else:
            self.world.loop.after(1_000, self._not_started, entry, process=self.process)

    def _not_started(self, entry: Entry) -> None:
        if self.inside.pop(entry.request, None) is entry:
            self.world.monitor.took_nothing(self, entry.model)
            self._engine_result(entry.request, entry.model, NOT_STARTED, 0)
            self.world.loop.after(KEEPER_US, self._look_at, entry.model, process=self.process)

    # -- time

    def _arm(self) -> None:
        timed: tuple[Timed, ...] = (*self.runtimes.values(), *self.rooms.values())
        dues = [due for each in timed if (due := each.next_timer_us()) is not None]
        due_us = min(dues, default=None)
        if due_us == self._due_us and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()  # type: ignore[attr-defined]
        self._due_us, self._timer = due_us, None
        if due_us is not None:
            self._timer = self.world.loop.after(self.machine.clock.until(due_us), self._tick, process=self.process)

    def _tick(self) -> None:
        self._timer = self._due_us = None
        timed: tuple[Timed, ...] = (*self.runtimes.values(), *self.rooms.values())
        for each in timed:
            due = each.next_timer_us()
            if due is not None and due <= self.now():
                self.do(each.tick(self.now()))
        self._arm()

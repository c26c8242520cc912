"""What must hold at every moment, judged by the engines' and the clients' journals and by what the streams took."""

from typing import TYPE_CHECKING

import msgspec

from domain.actions import Lend, OrderKey
from domain.events import Cancelled, CutOff, Expired, Failed, Finished, LendReturned, Rejected, codec
from domain.events.commit import decode_commit
from domain.ids import ModelId, RequestId
from domain.ports import StoredMessage
from domain.subjects import LEDGER
from tests.simulation.campaign.clients import Client
from tests.simulation.campaign.engine import Entry

if TYPE_CHECKING:
    from tests.simulation.campaign.machine import NodeMachine
    from tests.simulation.campaign.node import NodeLife
    from tests.simulation.campaign.world import World

IDLE_US = 50_000
CANCEL_US = 1_000_000
RETRY_US = 1_300_000
"""An engine that provably took nothing is left alone for a second, on a clock that may be a tenth off."""
TERMINAL = Finished | Failed | Cancelled | Rejected | Expired


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was killed, and for how long nothing else is known to go wrong."""

    at_us: int
    node: str
    down_us: int


class Monitor:
    """Watches a run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.orders: dict[OrderKey, bytes] = {}
        """Every decision of the ledger."""
        self.stored_us: dict[int, int] = {}
        """True time at which each commit was stored, by version."""
        self.lend_count = 0
        self.healed_us = -1
        self.kills: list[Killed] = []
        self.bus_bad_us: list[tuple[int, int]] = []
        self.master_bad_us: list[tuple[int, int]] = []
        self.engine_bad_us: dict[str, int] = {}
        self._newest: dict[tuple[str, str], OrderKey] = {}
        self._never_again: dict[RequestId, str] = {}
        self._refused_us: dict[tuple[str, str], int] = {}
        self._idle_us: dict[tuple[str, str], int] = {}
        self._trouble_us: dict[str, int] = {}

    # -- what goes wrong, so that a promise with a limit is asked for where it was given

    def trouble(self, *nodes: str) -> None:
        for node in nodes:
            self._trouble_us[node] = self.world.loop.now_us

    def bus_trouble(self, for_us: int) -> None:
        now_us = self.world.loop.now_us
        self.bus_bad_us.append((now_us, now_us + for_us + 5_000_000))

    def master_trouble(self, for_us: int) -> None:
        now_us = self.world.loop.now_us
        self.master_bad_us.append((now_us, now_us + for_us + 10_000_000))

    def engine_trouble(self, node: str, for_us: int) -> None:
        self.engine_bad_us[node] = max(self.engine_bad_us.get(node, 0), self.world.loop.now_us + for_us + 2_000_000)

    def killed(self, node: "NodeMachine", down_us: int) -> None:
        self.kills.append(Killed(at_us=self.world.loop.now_us, node=node.name, down_us=down_us))

    # -- the ledger

    def stored(self, name: str, message: StoredMessage) -> None:
        if name != LEDGER:
            return
        made = decode_commit(message.body)
        self.stored_us[made.version] = self.world.loop.now_us
        for index, decision in enumerate(made.decisions):
            self.orders[made.generation, made.version, index] = codec.encode(decision)
        if self.world.trace is not None:
            kinds = [type(decision).__name__ for decision in made.decisions]
            self.world.say("LEDGER", f"{made.version} term {made.term} hi {made.hi}: {' '.join(kinds)}")

    # -- owners

    def note(self, life: "NodeLife", output: object) -> None:
        if isinstance(output, LendReturned):
            self._never_again[output.request] = "returned"
        elif isinstance(output, CutOff):
            self._never_again[output.request] = "cut off"

    def lends(self, life: "NodeLife", lend: Lend) -> None:
        """A lend is sent: the lease must be the master's, alive, the newest that this owner knows, and have a free slot."""
        self.lend_count += 1
        violate, grant = self.world.violate, lend.grant
        if lend.request in self._never_again:
            violate(f"RULE {life.name}: {lend.request} lent again after it was {self._never_again[lend.request]}")
        if self.orders.get(lend.order) != codec.encode(grant):
            violate(f"P4 {life.name}: {lend.request} lent under {lend.order}, which the ledger does not hold")
        key = (life.process.name, lend.link)
        if lend.order < self._newest.get(key, lend.order):
            violate(f"P4 {life.name}: {lend.request} lent under {lend.order}, though {self._newest[key]} was acted on")
        self._newest[key] = lend.order
        sent_us = life.producer.sent_at_us(grant.basis)
        if sent_us is None or life.now() >= sent_us + grant.ttl_us:
            violate(f"P13 {life.name}: {lend.request} lent under {lend.lease}, which is over on the owner's own clock")
        out = sum(
            connection.owner_open and connection.lend.link == lend.link and connection.owner is life
            for connections in self.world.wire.by_request.values()
            for connection in connections
        )
        if out + 1 > grant.slots:
            violate(f"SLOTS {life.name}: {lend.request} is number {out + 1} over a link with {grant.slots} slots")
        client = self.world.clients.all[lend.request]
        if client.stream and not client.replayable:
            violate(f"RULE {life.name}: {lend.request} cannot run again and was lent")

    # -- helpers

    def accepts(self, life: "NodeLife", request: RequestId) -> None:
        model = life.borrowed[request].model
        here = sum(connection.model == model for connection in life.borrowed.values())
        if here > life.machine.spec.depth:
            self.world.violate(
                f"SLOTS {life.name}: {request} is borrowed number {here}, depth {life.machine.spec.depth}"
            )
        live = life.copies.live(life.borrowed[request].lend.link, life.borrowed[request].lend.lease, life.now())
        if live is None:
            self.world.violate(f"P4 {life.name}: {request} accepted under a lease that is dead here")

    # -- engines

    def starts(self, life: "NodeLife", entry: Entry) -> None:
        """An engine was given a request: the first time, or the second after fencing."""
        client, before = self.world.clients.all[entry.request], self.world.journal.by_request[entry.request][:-1]
        self._p12(entry, client)
        if not before:
            return
        last = before[-1]
        violate = self.world.violate
        if client.stream or not client.replayable:
            violate(
                f"P1 {life.name}: {entry.request}, unrepeatable, starts again; first at {last.node} ({last.how or 'inside'})"
            )
        elif entry.borrowed and self.world.wire.is_given_up(entry):
            # a helper that was frozen finds the body before the end of the connection; whoever gave it up hears no answer
            self.world.loop.after(CANCEL_US, self._is_cancelled, entry)
        elif entry.borrowed or not last.borrowed:
            violate(f"P2 {life.name}: {entry.request} starts a second time, after {last.node} ({last.how or 'inside'})")
        elif not self.world.wire.fenced(entry.request) or self._never_again.get(entry.request) != "cut off":
            violate(f"P2 {life.name}: {entry.request} runs again though {last.node} is not fenced")

    def _is_cancelled(self, entry: Entry) -> None:
        life = self.world.nodes[entry.node].life
        if entry.ended_us < 0 and life is not None and not life.process.frozen:
            self.world.violate(f"P2 {entry.node}: {entry.request}, given up by its owner, runs on for a second")

    def _p12(self, entry: Entry, client: Client) -> None:
        if entry.borrowed or client.taken_us < 0 or entry.request in self.world.wire.by_request:
            return
        depth = self.world.nodes[entry.node].spec.depth
        if self.engine_bad_us.get(entry.node, -1) > client.taken_us:
            return
        engine = self.world.nodes[entry.node].engines[entry.model]
        before = [
            other
            for other in self.world.journal.entries
            if other.borrowed
            and other.node == entry.node
            and other.model in engine.models
            and (other.ended_us < 0 or other.ended_us > client.taken_us)
        ]
        if len(before) > depth:
            self.world.violate(
                f"P12 {entry.node}: {entry.request} waits for {len(before)} borrowed jobs, depth {depth}"
            )

    # -- time

    def look_at(self, life: "NodeLife") -> None:
        """An owner whose engine is up does not idle while it holds work of its own."""
        now_us = self.world.loop.now_us
        for model, runtime in life.runtimes.items():
            key = (life.process.name, model)
            if not runtime.counts().held or self._may_wait(life, model):
                self._idle_us.pop(key, None)
            elif key not in self._idle_us:
                self._idle_us[key] = now_us
                self.world.loop.after(IDLE_US, self._still_idle, life, model, now_us)

    def _may_wait(self, life: "NodeLife", model: ModelId) -> bool:
        """Whether the engine of a model works, is down, or is being loaded."""
        engine = life.machine.engines[model]
        inside = sum(life.runtimes[each].counts().in_engine for each in engine.models)
        ready = engine.up and life.up[model] and engine.resident is not None and engine.loading is None
        return bool(inside) or not ready

    def took_nothing(self, life: "NodeLife", model: str) -> None:
        """The engine provably took nothing: the node leaves it alone for a second."""
        self._refused_us[life.process.name, model] = self.world.loop.now_us

    def _still_idle(self, life: "NodeLife", model: str, since_us: int) -> None:
        key = (life.process.name, model)
        refused_us = self._refused_us.get(key, -RETRY_US)
        if self._idle_us.get(key) != since_us or life.process.frozen or life.process.dead:
            return
        now_us = self.world.loop.now_us
        engine = life.machine.engines[model]  # type: ignore[index]
        waits = len(engine.models) > 1 and now_us < engine.waits_until_us
        if waits or now_us - refused_us < RETRY_US or now_us - self._trouble_us.get(life.name, -RETRY_US) < IDLE_US:
            self.world.loop.after(IDLE_US, self._still_idle, life, model, since_us)
            return
        held = life.runtimes[model].counts().held  # type: ignore[index]
        self.world.violate(f"IDLE {life.name}: {held} of its own held for {IDLE_US} us beside an idle engine")

    def left(self, client: Client) -> None:
        """A client left: within a second its request occupies nothing anywhere."""
        self.world.loop.after(CANCEL_US * 11 // 10, self._freed, client)

    def _freed(self, client: Client) -> None:
        connections = self.world.wire.by_request.get(client.request, [])
        nodes = {client.node, *(connection.lend.grant.helper for connection in connections)}
        if any(self._was_troubled(node, client.gone_us) for node in nodes) or any(
            c.fate == "slow" for c in connections
        ):
            return
        for entry in self.world.journal.by_request.get(client.request, ()):
            if entry.ended_us < 0 or entry.ended_us > client.gone_us + CANCEL_US * 11 // 10:
                self.world.violate(f"P9 {entry.node}: {client.request} still runs a second after its client left")
        for node in sorted(nodes):
            life = self.world.nodes[node].life
            if life is not None and (client.request in life.borrowed or client.request in life.inside):
                self.world.violate(f"P9 {node}: {client.request} still has a place a second after its client left")

    def _was_troubled(self, node: str, since_us: int) -> bool:
        life = self.world.nodes[node].life
        parted = any(node in pair for pair in self.world.wire.partitions)
        return life is None or life.process.frozen or parted or self._trouble_us.get(node, -1) >= since_us

    # -- the end

    def unquiet(self) -> str:
        """Return what has not ended yet; empty when all is quiet."""
        for client in self.world.clients.all.values():
            if not client.outcomes:
                return f"{client.request} at {client.node} got no outcome"
        for node in self.world.nodes.values():
            if why := self._busy(node):
                return why
        return self._master_unquiet()

    def _busy(self, node: "NodeMachine") -> str:
        life = node.life
        if life is None:
            return f"{node.name} is down"
        for model, runtime in life.runtimes.items():
            if not runtime.idle:
                return f"{node.name}/{model} holds {runtime.counts()}"
            if not life.up[model] and not node.model(model).runtime:
                return f"{node.name}/{model}: its engine is down"
        if life.inside or life.borrowed:
            return f"{node.name}: {sorted(life.inside)} inside, {sorted(life.borrowed)} borrowed"
        if life.producer._window or life.producer._backlog:
            return f"{node.name}: facts wait to be stored"
        return ""

    def _master_unquiet(self) -> str:
        active = [master.loop for master in self.world.masters if master.active and master.loop is not None]
        if len(active) != 1:
            return f"{len(active)} masters are active"
        state = active[0].state
        for name, node in sorted(state.nodes.items()):
            if node.incomplete or node.late or node.silent_us or node.draining or not node.incarnation:
                return f"master: {name} is not planned: incomplete {node.incomplete}, late {node.late}, silent {node.silent_us}"
        for key, queue in sorted(state.queues.items()):
            if queue.held or queue.engine or queue.lent:
                return f"master: {key} has {len(queue.held)} held, {len(queue.engine)} in its engine, {len(queue.lent)} lent"
        for key, uses in sorted(state.uses.items()):
            return f"master: {len(uses)} slots of {key} are not closed: {min(uses.items())}"
        for key, each in sorted(state.breakers.items()):
            if each.state == "opened" and each.since_us + each.quarantine_us + 5_000_000 < state.now_us:
                return f"master: the breaker of {key} stays open"
        if state.leases:
            return f"master: leases live on: {sorted(state.leases)}"
        return f"master: orphans unsaid: {sorted(state.orphans)}" if state.orphans else ""

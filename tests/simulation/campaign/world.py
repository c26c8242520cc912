"""One run: a cluster drawn from a seed, its traffic and its faults, then healing, then judgement."""

import hashlib
import random
import tempfile
import traceback
from pathlib import Path

import msgspec

from domain.actions import Action
from domain.events import ControlEvent, Envelope, codec
from domain.events.base import tag_of
from domain.ids import NodeId, RequestId
from domain.subjects import CONTROL, EVENTS, LEDGER, control_aggregate, control_subject
from tests.simulation.campaign import faults
from tests.simulation.campaign.bus import CALM, WALL_US, Draft, Server
from tests.simulation.campaign.clients import MEAN_WORK, Clients
from tests.simulation.campaign.engine import Journal
from tests.simulation.campaign.judge import judge
from tests.simulation.campaign.loop import SimLoop, SkewedClock
from tests.simulation.campaign.machine import NodeMachine
from tests.simulation.campaign.master import MasterMachine
from tests.simulation.campaign.monitor import Monitor
from tests.simulation.campaign.node import NodeLife
from tests.simulation.campaign.readers import SharedReader
from tests.simulation.campaign.scenario import Scenario, draw
from tests.simulation.campaign.specs import ModelSpec
from tests.simulation.campaign.wire import CALM_HTTP, Wire
from tests.support.history import CLUSTER, SECRET

QUIET_S = 130
"""So long after healing everything must have ended."""


class Violated(Exception):  # noqa: N818  # it ends a run; nothing is wrong with the campaign
    """Something that must hold does not."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

    seed: int
    digest: str
    """Of everything that was stored, run and answered: the same for the same seed and code."""
    violations: tuple[str, ...]
    virtual_s: float
    requests: int
    lends: int
    starts: int
    commits: int
    faults: tuple[str, ...]
    trace: tuple[str, ...] = ()


class World:
    """Everything there is in a run."""

    def __init__(self, seed: int, data: Path, *, trace: bool = False) -> None:
        self.seed = seed
        self.scenario: Scenario = draw(seed)
        self.loop = SimLoop()
        self.net, self.work, self.fate = (random.Random(f"{seed}/{part}") for part in ("net", "work", "fate"))
        self.violations: list[str] = []
        self.trace: list[str] | None = [] if trace else None
        self.reader = SharedReader(CLUSTER, SECRET)
        self.journal = Journal()
        self.server = Server(self.loop, self.net)
        self.monitor = Monitor(self)
        self.server.stored.append(self.monitor.stored)
        self.wire = Wire(self, self.net)
        self.clients = Clients(self)
        self._decreed = 0
        self.nodes: dict[str, NodeMachine] = {
            spec.name: NodeMachine(self, spec, self._clock(), data) for spec in self.scenario.nodes
        }
        self.masters = [MasterMachine(self, f"master{n}", self._clock()) for n in range(self.scenario.masters)]

    def _clock(self) -> SkewedClock:
        dice = self.fate
        rate = dice.choice((1_000_000, 1_000_000, dice.randint(910_000, 1_100_000)))
        offset = dice.choice((0, dice.randrange(10**12)))
        return SkewedClock(self.loop, offset, rate, WALL_US + dice.choice((0, dice.randint(-(10**10), 10**10))))

    # -- what a run is made of

    def decree(self, event: ControlEvent) -> None:
        """Let the operator decide something: it is stored, whatever the weather."""
        self._decreed += 1
        body = codec.encode(
            Envelope(id=f"c{self._decreed}", source=f"/{CLUSTER}/control", type=tag_of(event), cluster=CLUSTER,
                     producer="operator", data=codec.raw(event))
        )  # fmt: skip
        draft = Draft(control_subject(CLUSTER, control_aggregate(event)), body, "", None, None)
        self.server.take(CONTROL, draft, twice=False)

    def work_of(self, request: RequestId) -> int:
        return MEAN_WORK * self.clients.all[request].size // 1000

    def takes_us(self, request: RequestId, model: ModelSpec) -> int:
        noise = self.work.randint(900, 1150)
        return model.job_us * self.clients.all[request].size // 1000 * noise // 1000

    def status_of(self, request: RequestId) -> int:
        return self.clients.all[request].status

    # -- what is seen

    def violate(self, what: str) -> None:
        self.violations.append(f"{self.loop.now_us / 1e6:.3f}s {what}")
        self.say("VIOLATION", what)

    def say(self, who: str, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.loop.now_us / 1e6:11.6f} {who:10} {what}")

    def note(self, life: NodeLife, output: object) -> None:
        self.monitor.note(life, output)
        if self.trace is not None:
            kind = "does" if isinstance(output, Action) else "says"
            self.say(life.name, f"{kind} {_brief(output)}")

    # -- a run

    def run(self) -> None:
        scenario = self.scenario
        for event in scenario.control:
            self.decree(event)
        for node in self.nodes.values():
            self.loop.after(self.work.randint(1_000, 400_000), node.start)
        for master in self.masters:
            self.loop.after(self.work.randint(1_000, 300_000), master.start)
        for burst in scenario.bursts:
            self.loop.after(burst.at_us, self._burst, burst.node, burst.model, burst.count, burst.gap_us, burst.leave)
        for fault in scenario.faults:
            self.loop.after(fault.at_us, faults.strike, self, fault)
        self._run_to(scenario.heal_us)
        faults.heal(self)
        self._run_to(self.loop.now_us + 4_000_000)
        for owner, model in scenario.owners:
            self._burst(owner, model, 5, 1_000, 0)
        self._until_quiet()

    def _burst(self, node: str, model: str, count: int, gap_us: int, leave: int) -> None:
        for number in range(count):
            leaves = self.work.randint(10_000, 6_000_000) if self.work.randrange(1000) < leave else 0
            self.loop.after(number * gap_us, self._ask, node, model, leaves)

    def _ask(self, node: str, model: str, leaves_us: int) -> None:
        self.clients.ask(node, model, leaves_after_us=leaves_us)  # type: ignore[arg-type]

    def _run_to(self, until_us: int) -> None:
        while self.loop.now_us < until_us:
            self.loop.run(min(until_us, self.loop.now_us + 1_000_000))
            if self.loop.failed:
                self.violate(f"CRASH {self.loop.failed[0]}")
            if self.violations:
                raise Violated

    def _until_quiet(self) -> None:
        end_us = self.loop.now_us + QUIET_S * 1_000_000
        while why := self.monitor.unquiet():
            if self.loop.now_us >= end_us:
                self.violate(f"P17 {QUIET_S} s after healing: {why}")
                raise Violated
            self._run_to(self.loop.now_us + 3_000_000)

    def digest(self) -> str:
        """Return the digest of all that happened."""
        hasher = hashlib.blake2b(digest_size=16)
        for name in (EVENTS, CONTROL, LEDGER):
            for message in self.server.streams[name]._messages:
                assert message is not None
                hasher.update(b"%d %b" % (message.stamp_ns, message.body))
        for entry in self.journal.entries:
            hasher.update(msgspec.json.encode(entry))
        for client in self.clients.all.values():
            hasher.update(repr(client.outcomes).encode())
        return hasher.hexdigest()


def run_seed(seed: int, *, trace: bool = False) -> Result:
    """Run one seed from the beginning to its judgement."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as data:
        world = World(seed, Path(data), trace=trace)
        with world.loop.running():
            try:
                world.run()
                judge(world)
            except Violated:
                pass
            except Exception as error:  # noqa: BLE001  # whatever a process ends by is a finding, with its seed
                world.violate(f"CRASH {_where(error)}")
            result = _result(world)
            _close(world)
    return result


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {Path(last.filename).name}:{last.lineno}"


def _result(world: World) -> Result:
    return Result(
        seed=world.seed,
        digest=world.digest(),
        violations=tuple(world.violations),
        virtual_s=world.loop.now_us / 1e6,
        requests=len(world.clients.all),
        lends=world.monitor.lend_count,
        starts=len(world.journal.entries),
        commits=len(world.server.streams[LEDGER]._messages),
        faults=tuple(fault.kind for fault in world.scenario.faults),
        trace=tuple(world.trace or ()),
    )


def _close(world: World) -> None:
    world.server.weather, world.wire.weather = CALM, CALM_HTTP
    world.loop.close()
    for node in world.nodes.values():
        if node.life is not None:
            node.life.spool.close()


def _brief(output: object) -> str:
    fields = {name: getattr(output, name) for name in getattr(output, "__struct_fields__", ())}
    kept = {
        name: value for name, value in fields.items() if isinstance(value, str | int) and value not in ("", 0, None)
    }
    return type(output).__name__ + " " + " ".join(f"{name}={_short(value)}" for name, value in kept.items())


def _short(value: object) -> str:
    text = str(value)
    return f"#{int(text[4:], 16)}" if text.startswith("req_") else text[-12:]


__all__ = ["NodeId", "Result", "World", "run_seed"]

"""A master process: the product's own loop, ledger, feed, outbox, observer and reader over a port to the bus."""

from typing import TYPE_CHECKING

import nkeys

from adapters.keys import Signer
from adapters.log.feed import Feed
from adapters.log.history import Streams
from adapters.log.ledger import Ledger
from adapters.log.snapshots import Snapshots
from domain.ids import Generation, Incarnation
from domain.ports import Witnessed
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS, ledger_subject
from services.master.loop import MasterLoop, Parts
from services.master.observer import Observer
from tests.simulation.campaign.bus import Port
from tests.simulation.campaign.loop import Process, SkewedClock
from tests.support.history import CLUSTER, SECRET

if TYPE_CHECKING:
    from tests.simulation.campaign.world import World

SIGNER = Signer(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode())
"""The same key in every run: a run must be the same to the last byte."""


class Book:
    """The witness in a master's data directory: survives its process."""

    def __init__(self) -> None:
        self.kept: Witnessed | None = None

    async def read(self) -> Witnessed | None:
        return self.kept

    async def put_aside(self) -> str:
        """Return that all is well."""
        return ""

    async def write(self, witnessed: Witnessed) -> None:
        self.kept = witnessed


class MasterMachine:
    """A place where masters live, one after another."""

    def __init__(self, world: "World", name: str, clock: SkewedClock) -> None:
        self.world, self.name, self.clock = world, name, clock
        self.lives = 0
        self.book = Book()
        self.process: Process | None = None
        self.port: Port | None = None
        self.loop: MasterLoop | None = None

    def start(self) -> None:
        world = self.world
        self.lives += 1
        process = self.process = world.loop.process(f"{self.name}.{self.lives}")
        port = self.port = Port(world.server, process)
        incarnation = Incarnation(f"{self.name}-{self.lives}")
        observer = Observer(port, port.stream(EVENTS), CLUSTER, SECRET, incarnation, self.clock)  # type: ignore[arg-type]
        ledger = port.stream(LEDGER)
        parts = Parts(
            streams=Streams(port.stream(EVENTS), port.stream(CONTROL), ledger),
            ledger=Ledger(ledger, ledger_subject(CLUSTER)),
            feed=Feed(port.stream(DECISIONS), cluster=CLUSTER, signer=SIGNER, clock=self.clock),
            snapshots=Snapshots(port.stream(SNAPSHOTS), cluster=CLUSTER),
            witness=self.book,
            reader=world.reader,
            observer=observer,
            clock=self.clock,
            new_generation=Generation("00010000"),
            signer=SIGNER,
            operator_public="",
        )
        self.loop = MasterLoop(parts)
        world.loop.spawn(process, self.loop.run())
        world.loop.spawn(process, observer.listen())
        world.say(self.name, "starts")

    @property
    def active(self) -> bool:
        """Whether it runs and decides, as it thinks."""
        return (
            self.process is not None
            and not self.process.frozen
            and self.loop is not None
            and self.loop.mode == "active"
        )

    def kill(self) -> None:
        if self.process is not None and self.port is not None:
            self.process.dead = True
            self.port.close()
            self.process = self.port = self.loop = None
            self.world.say(self.name, "is killed")

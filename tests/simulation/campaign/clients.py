"""Clients and their journal: what each asked, when, and everything that it got."""

from typing import TYPE_CHECKING

import msgspec

from domain.actions import Refuse
from domain.ids import ModelId, RequestId
from domain.inputs import NewRequest

if TYPE_CHECKING:
    from tests.simulation.campaign.node import NodeLife
    from tests.simulation.campaign.world import World

MEAN_WORK = 64_000_000


class Client(msgspec.Struct, kw_only=True, eq=False):
    """One client with one request."""

    request: RequestId
    node: str
    model: ModelId
    stream: bool
    replayable: bool
    status: int
    """What an engine answers to it."""
    size: int
    """In thousandths of the mean work."""
    asked_us: int
    taken_us: int = -1
    """When its node took it; -1: never."""
    life: object = None
    enrolled: bool = True
    """False: its owner was killed while the model stood in no link that the owner knew of."""
    gone_us: int = -1
    outcomes: list[tuple[int, str, int]] = []
    """(when, what, status): answered, refused, cut (its connection broke), gone (it left itself), unreachable."""


class Clients:
    """All clients of a run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.all: dict[RequestId, Client] = {}

    def is_stream(self, request: RequestId) -> bool:
        return self.all[request].stream

    def ask(self, node: str, model: ModelId, *, leaves_after_us: int = 0) -> None:
        """Let a client ask now."""
        world, dice = self.world, self.world.work
        request = RequestId(f"req_{len(self.all) + 1:032x}")
        client = self.all[request] = Client(
            request=request,
            node=node,
            model=model,
            stream=dice.random() < 0.3,
            replayable=dice.random() < 0.9,
            status=500 if dice.random() < 0.03 else 200,
            size=dice.randint(500, 1800),
            asked_us=world.loop.now_us,
        )
        life = world.nodes[node].life
        if life is None or life.draining:
            client.outcomes.append((world.loop.now_us, "unreachable", 0))
            return
        client.life = life
        world.loop.after(300, self._taken, client, life, process=life.process)
        if leaves_after_us:
            world.loop.after(leaves_after_us, self.leave, client)

    def _taken(self, client: Client, life: "NodeLife") -> None:
        if client.outcomes:
            return
        client.taken_us = self.world.loop.now_us
        runtime = life.runtimes[client.model]
        before = runtime.counts().held
        new = NewRequest(
            request=client.request,
            work=self.world.work_of(client.request),
            est_tokens=64,
            streaming=client.stream,
            replayable=client.replayable,
        )
        life.submit(new, client.model)
        held, limit = runtime.counts().held, life.machine.spec.held_max
        if held > max(before, limit):
            self.world.violate(f"P8 {life.name}: {held} held, at most {limit} may be")

    def leave(self, client: Client) -> None:
        """The client closes its connection."""
        life = client.life
        if client.outcomes or life is None:
            return
        client.gone_us = self.world.loop.now_us
        client.outcomes.append((self.world.loop.now_us, "gone", 0))
        if client.taken_us >= 0:
            self.world.monitor.left(client)
            self.world.loop.after(300, life.client_gone, client.request, process=life.process)  # type: ignore[attr-defined]

    def answered(self, life: "NodeLife", request: RequestId, status: int) -> None:
        self._tell(life, request, "answered", status)

    def refused(self, life: "NodeLife", refuse: Refuse) -> None:
        if refuse.status == 503 and refuse.retry_after_s is None:
            self.world.violate(f"P8 {life.name}: {refuse.request} refused without Retry-After")
        self._tell(life, refuse.request, "refused", refuse.status)

    def _tell(self, life: "NodeLife", request: RequestId, what: str, status: int) -> None:
        client = self.all[request]
        if client.gone_us >= 0 or client.life is not life:
            return
        client.outcomes.append((self.world.loop.now_us, what, status))
        if len(client.outcomes) > 1:
            self.world.violate(f"P2 {life.name}: {request} got two outcomes: {client.outcomes}")

    def owner_died(self, life: "NodeLife") -> None:
        """The kernel closes the connections of a process that is gone."""
        for client in self.all.values():
            if client.life is life and not client.outcomes:
                client.enrolled = life.view.is_enrolled(life.name, client.model)
                client.outcomes.append((self.world.loop.now_us, "cut", 0))

"""A made-up cluster in a closed loop with a master: bursts come, nodes state what nodes state, and lend under their leases.

Most models stand in no link and say one terminal fact a request, as on a real cluster; the few linked ones say everything.
"""

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BorrowStarted,
    Fact,
    LeaseChanged,
    LeaseCleared,
    LeaseGranted,
    LeaseUpdated,
    LendAnswered,
    LendBusy,
    Lent,
    LinkAdded,
    ModelInfo,
    QueueSnapshot,
    Registered,
)
from domain.ids import LinkId, ModelId
from tests.support.history import Master, Recorder, borrow, finished, held, lend, link, started

DEPTH = 2
ROUND_TRIP_US = 2_000


class Queue:
    """One model at its owner, and the desk of the same model for others."""

    def __init__(self, node: str, model: str, unit_us: int) -> None:
        self.node, self.model, self.unit_us = node, model, unit_us
        self.held: deque[tuple[str, int]] = deque()
        self.inside = 0
        self.free_us = 0
        """When the engine has done all that it was given: it works on one at a time."""
        self.leases: dict[LinkId, LeaseGranted | LeaseChanged] = {}
        self.out: dict[LinkId, int] = {}
        self.said_us = 0


class RealCluster:
    """`run` lets it live for a while; the recorder and the master then hold its history."""

    def __init__(self, seed: int, *, nodes: int = 50, models: int = 4, linked: int = 20, batch: int = 25) -> None:
        self.dice = random.Random(seed)
        self.recorder, self.master, self.batch = Recorder(), Master(), batch
        self.now_us = self._stated_us = 0
        self._seen = self._decreed = self._counter = 0
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self.queues: dict[tuple[str, str], Queue] = {}
        names = [f"n{i:03}" for i in range(nodes)]
        for name in names:
            infos = tuple(ModelInfo(id=ModelId(f"m{i}"), local_id=f"m{i}", context=8192) for i in range(models))
            self.state(name, Registered(url=f"http://{name}:8100", models=infos, version="1", depth=DEPTH))
            for info in infos:
                self.queues[name, info.id] = Queue(name, info.id, self.dice.choice((9_000, 12_000, 15_000)))
        self.links: dict[LinkId, LinkAdded] = {}
        for _ in range(linked):
            owner, helper = self.dice.sample(names, 2)
            added = link(owner, helper, f"m{self.dice.randrange(models)}")
            if added.link not in self.links:
                self.links[added.link] = added
                self.recorder.decree(added)
        self.enrolled = {(end, on.owner_model) for on in self.links.values() for end in (on.owner, on.helper)}

    # ---- time and facts

    def at(self, after_us: int, do: Callable[[], None]) -> None:
        self._counter += 1
        heappush(self._timers, (self.now_us + after_us, self._counter, do))

    def state(self, node: str, fact: Fact) -> None:
        self.recorder.state(node, fact, after_us=max(1, self.now_us - self._stated_us))
        self._stated_us = max(self._stated_us + 1, self.now_us)
        if len(self.recorder.facts) - self._seen >= self.batch:
            self.look()

    def look(self) -> None:
        """Let the master decide, and tell the owners."""
        facts, control = self.recorder.facts[self._seen :], self.recorder.control[self._decreed :]
        self._seen, self._decreed = len(self.recorder.facts), len(self.recorder.control)
        before = len(self.master.commits)
        self.master.take(facts, control, with_state=before % 100 == 0)
        for made in self.master.commits[before:]:
            for decision in made.decisions:
                if isinstance(decision, LeaseGranted | LeaseChanged | LeaseCleared):
                    self.at(ROUND_TRIP_US, lambda event=decision: self._take_lease(event))  # type: ignore[misc]

    def run(self, facts: int) -> None:
        """Live until about so many facts are stated, then let everything end."""
        for key in sorted(self.queues):
            self._burst_later(self.queues[key], facts)
        while self._timers:
            self.now_us, _, do = heappop(self._timers)
            do()
        while self._seen < len(self.recorder.facts) or self.master.span.facts:
            before = len(self.master.commits)
            self.look()
            if len(self.master.commits) == before:
                break

    # ---- requests

    def _burst_later(self, queue: Queue, facts: int) -> None:
        def burst() -> None:
            if len(self.recorder.facts) < facts:
                for _ in range(self.dice.choice((1, 1, 2, 5, 20))):
                    self.at(self.dice.randrange(200_000), lambda: self._arrive(queue))
                self._burst_later(queue, facts)

        self.at(self.dice.randrange(100_000, 20_000_000), burst)

    def _arrive(self, queue: Queue) -> None:
        request, tokens = f"req_{self.dice.getrandbits(128):032x}", self.dice.randrange(16, 256)
        if queue.inside < DEPTH or (queue.node, queue.model) not in self.enrolled:
            self._start(queue, request, tokens)
        else:
            queue.held.append((request, tokens))
            self.state(queue.node, held(request, len(queue.held), work=tokens * 1_000_000, model=queue.model))
            self._lend(queue)

    def _start(self, queue: Queue, request: str, tokens: int) -> None:
        queue.inside += 1
        if (queue.node, queue.model) in self.enrolled:
            self.state(queue.node, started(request, work=tokens * 1_000_000, model=queue.model))
        service_us = tokens * queue.unit_us * self.dice.randrange(80, 130) // 100
        queue.free_us = max(queue.free_us, self.now_us) + service_us

        def end() -> None:
            queue.inside -= 1
            self.state(
                queue.node,
                finished(request, service_us=service_us, work=tokens * 1_000_000, model=queue.model),
            )
            self._top_up(queue)

        self.at(queue.free_us - self.now_us, end)

    def _top_up(self, queue: Queue) -> None:
        while queue.held and queue.inside < DEPTH:
            self._start(queue, *queue.held.popleft())
        if queue.held and self.now_us - queue.said_us > 10_000_000:
            queue.said_us = self.now_us
            model = ModelId(queue.model)
            self.state(queue.node, QueueSnapshot(model=model, held=len(queue.held), in_engine=queue.inside, lent=0))

    # ---- lending

    def _take_lease(self, event: LeaseGranted | LeaseChanged | LeaseCleared) -> None:
        queue = self.queues[event.owner, event.owner_model]
        if isinstance(event, LeaseCleared):
            queue.leases.pop(event.link, None)
        else:
            queue.leases[event.link] = event
        self.state(
            queue.node,
            LeaseUpdated(
                link=event.link,
                lease=event.lease,
                model=event.owner_model,
                helper=event.helper,
                slots=event.slots,
                out=queue.out.get(event.link, 0),
            ),
        )
        self._lend(queue)

    def _lend(self, queue: Queue) -> None:
        for on in sorted(queue.leases):
            while queue.held and queue.out.get(on, 0) < queue.leases[on].slots:
                request, tokens = queue.held.pop()
                queue.out[on] = queue.out.get(on, 0) + 1
                sent = lend(Lent, request, self.links[on], work=tokens * 1_000_000, out=queue.out[on], waited_us=5)
                self.state(queue.node, sent)
                self.at(ROUND_TRIP_US, lambda on=on, r=request, t=tokens: self._borrow(queue, on, r, t))  # type: ignore[misc]

    def _borrow(self, queue: Queue, on: LinkId, request: str, tokens: int) -> None:
        link_, helper = self.links[on], self.queues[self.links[on].helper, self.links[on].helper_model]
        if helper.inside >= DEPTH:
            queue.out[on] -= 1
            self.state(queue.node, lend(LendBusy, request, link_))
            queue.held.append((request, tokens))
            self.state(queue.node, held(request, len(queue.held), work=tokens * 1_000_000, model=queue.model))
            self._top_up(queue)
            return
        helper.inside += 1
        self.state(helper.node, borrow(BorrowAccepted, request, link_, position=0))
        self.state(helper.node, borrow(BorrowStarted, request, link_))
        service_us = tokens * helper.unit_us
        helper.free_us = max(helper.free_us, self.now_us) + service_us
        self.at(helper.free_us - self.now_us, lambda: self._answer(queue, helper, link_, request, (tokens, service_us)))

    def _answer(self, queue: Queue, helper: Queue, on: LinkAdded, request: str, cost: tuple[int, int]) -> None:
        tokens, service_us = cost
        helper.inside -= 1
        queue.out[on.link] -= 1
        work = tokens * 1_000_000
        done = borrow(BorrowFinished, request, on, work=work, service_us=service_us, status=200, ok=True)
        self.state(helper.node, done)
        self.state(queue.node, lend(LendAnswered, request, on, status=200, service_us=service_us))
        home = finished(request, work=work, helper=helper.node, model=queue.model)
        self.state(queue.node, msgspec.structs.replace(home, service_us=service_us))
        self._lend(queue)
        self._top_up(helper)
        self._top_up(queue)

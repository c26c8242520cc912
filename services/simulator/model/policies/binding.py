"""Policies that bind each request to a node when it comes, as load balancers do."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.simulator.model.parts import Job, Node
from services.simulator.model.policy import Policy

if TYPE_CHECKING:
    from services.simulator.model.world import World

Choose = Callable[["World", Job, list[int]], int]
"""(world, job, candidates with the owner first) -> node; asked only if there is a choice."""

_FAILS_FOR_S = 0.2
_TRIES_MAX = 3


class Binding(Policy):
    """Gives each request to the node that `choose` names."""

    def __init__(self, name: str, choose: Choose) -> None:
        self.name, self._choose = name, choose

    def dispatch(self, world: "World", job: Job) -> None:
        """Queue `job` at a node's engine; a black hole fails it thrice before its owner takes it."""
        candidates = [job.owner, *(node.number for node in world.helpers_of(world.nodes[job.owner]) if node.alive)]
        chosen = job.owner if len(candidates) == 1 else self._choose(world, job, candidates)
        if chosen in world.scenario.black_holes:
            if job.tries < _TRIES_MAX:
                job.tries += 1
                world.at(world.now_s + _FAILS_FOR_S, self.dispatch, world, job)
                return
            chosen = job.owner
        node = world.nodes[chosen]
        node.pipe.append(job)
        world.kick(node)


class RoundRobin:
    """Takes turns, for each owner by itself."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}

    def __call__(self, _world: "World", job: Job, candidates: list[int]) -> int:
        """Return the next candidate."""
        turn = self._turns[job.owner] = self._turns.get(job.owner, -1) + 1
        return candidates[turn % len(candidates)]


def stay(_world: "World", job: Job, _candidates: list[int]) -> int:
    """Return the owner: no lending at all."""
    return job.owner


def shortest_queue(world: "World", _job: Job, candidates: list[int]) -> int:
    """Return the node with the fewest requests."""
    return min(candidates, key=lambda node: world.nodes[node].in_engine())


def best_of_two(world: "World", _job: Job, candidates: list[int]) -> int:
    """Return the one of two random nodes with the fewer requests."""
    return min(world.dice.sample(candidates, 2), key=lambda node: world.nodes[node].in_engine())


def least_work(world: "World", job: Job, candidates: list[int]) -> int:
    """Return the node that would be done first if loads took no time."""
    estimates = world.estimates

    def done_s(number: int) -> float:
        node = world.nodes[number]
        waiting_s = sum(estimates.service_s(number, other) for other in node.pipe)
        running_s = 0.0
        if node.running is not None:
            running_s = max(0, estimates.service_s(number, node.running) - (world.now_s - node.run_began_s))
        return waiting_s + running_s + estimates.service_s(number, job)

    return min(candidates, key=done_s)


def earliest_completion(world: "World", job: Job, candidates: list[int]) -> int:
    """Return the node with the earliest predicted completion, loads included."""

    def done_s(number: int) -> float:
        node = world.nodes[number]
        switch_s = world.estimates.load_time_s(number, job.model) if _last_model(node) != job.model else 0
        return world.remaining_s(node) + switch_s + world.estimates.service_s(number, job)

    return min(candidates, key=done_s)


def _last_model(node: Node) -> int | None:
    return node.pipe[-1].model if node.pipe else node.coming_model()

"""One run: a drawn scenario on real processes, through the clients' API, and what it took."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from services.simulator.model.reference import reference_s
from services.simulator.model.scenario import Fault
from services.simulator.suites import scenario_cells
from tests.real.client import Client, Reply
from tests.real.cluster import RealCluster, real_cluster
from tests.real.control_path import ControlPath, control_path
from tests.real.layout import SCALE, Layout, Place, Request
from tests.support.judge import ledger
from tests.support.moments import elapsed, moment
from tests.support.waiting import until


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is done before the run."""

    samples: int = 25
    """Warm-up requests of each model of each node."""
    idle: bool = True
    """Wait as long as the scenario says that every node was idle."""
    gateway: bool = False
    """Send requests through the gateway; otherwise each to its own node, where the simulator has them arrive."""


class EngineUse(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine did during the run."""

    node: str
    runs: int
    loads: int
    busy_s: float
    gaps_s: float
    """Idle between its first and its last run of an owner's request."""
    last_s: float
    """End of its last run, from the beginning."""
    faults: tuple[str, ...]
    """Keys of what it was asked for and could not do."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run. Seconds are real ones."""

    scenario: str
    seed: int
    reference_s: float
    drain_s: float
    mean_s: float
    replies: tuple[Reply, ...]
    engines: tuple[EngineUse, ...]
    control: ControlPath
    events: dict[str, int]
    """How many facts of each kind were stated during the run."""

    @property
    def ratio(self) -> float:
        """The drain ratio."""
        return self.drain_s / self.reference_s

    @property
    def bad(self) -> list[Reply]:
        """Replies that are not answers."""
        return [reply for reply in self.replies if reply.status != 200]


async def run(name: str, seed: int, directory: Path, effort: Effort | None = None) -> Outcome:
    """Draw the shipped scenario `name` as the simulator does, and run it on real processes in `directory`."""
    (cell,) = scenario_cells(name)
    layout = Layout(cell.draw(seed))
    effort = effort or Effort()
    async with real_cluster(directory, layout) as cluster:
        await warm_up(cluster, effort)
        await cluster.link()
        if effort.idle:
            await elapsed(layout.idle_s)
        earlier = len(await cluster.parts.events())
        replies = await traffic(cluster, layout, gateway=effort.gateway)
        facts = await facts_since(cluster, earlier, replies)
        (directory / "facts.json").write_bytes(msgspec.json.encode(facts))
        (directory / "ledger.json").write_bytes(msgspec.json.encode(await ledger(cluster.parts)))
    return _outcome(name, seed, cluster, replies, facts)


# -- before the run


async def warm_up(cluster: RealCluster, effort: Effort) -> None:
    """Let each node measure its models and, where they share a runtime, how long each takes to load."""
    async with asyncio.TaskGroup() as group:
        for place in cluster.layout.places:
            group.create_task(_warm_node(cluster, place, effort.samples))
    expected = sum(len(place.models) for place in cluster.layout.places)

    async def known() -> bool:
        nodes = (await cluster.parts.state()).get("nodes", ())
        measured = [model for node in nodes for model in node["models"] if model["samples"] >= effort.samples]
        return len(measured) >= expected

    await until("the warm-up at the master", known, timeout_s=30)


async def _warm_node(cluster: RealCluster, place: Place, samples: int) -> None:
    url = cluster.parts.endpoints.nodes[place.id]
    client = Client(url)
    for model, count in _turns(place, samples):
        for turn in range(count):
            reply = await client.ask(cluster.layout.warm_up(place, place.models[model], turn))
            assert reply.status == 200, f"warm-up of {place.id}: {reply}"


def _turns(place: Place, samples: int) -> Iterator[tuple[int, int]]:
    """Yield (place of the model, requests in a row): every model is loaded twice, and the first one is loaded at the end."""
    for half in (samples - samples // 2, samples // 2):
        yield from ((model, half) for model in range(len(place.models)))
    if len(place.models) > 1:
        yield 0, 1


# -- the run


async def traffic(cluster: RealCluster, layout: Layout, *, gateway: bool = False) -> list[Reply]:
    """Send every request at its time, let every fault happen at its own, and return a reply for each request."""
    at = cluster.parts.endpoints
    fronts = [Client(at.gateway if gateway else at.nodes[place.id]) for place in layout.places]
    sent = [(fronts[request.node], request) for request in layout.requests]
    ready = [(client, request, client.encoded(request)) for client, request in sent]
    began_s = time.monotonic()
    faults = [asyncio.ensure_future(_strike(cluster, fault, began_s)) for fault in layout.faults]
    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_ask_at(*each, began_s)) for each in ready]
    finally:
        for fault in faults:
            fault.cancel()
        await asyncio.gather(*faults, return_exceptions=True)
    return [task.result() for task in asked]


async def _ask_at(client: Client, request: Request, encoded: bytes, began_s: float) -> Reply:
    if request.at_s:
        await moment(began_s + request.at_s)
    return await client.ask(request, encoded)


async def _strike(cluster: RealCluster, fault: Fault, began_s: float) -> None:
    """Kill a node and its engine; `leaseway up` starts the node again, the engine comes back when the fault is over."""
    assert fault.kind == "crash", f"a fault of kind {fault.kind} is not done on real processes"
    place = cluster.layout.places[fault.node]
    await moment(began_s + fault.at_s)
    cluster.parts.kill(f"node:{place.id}")
    await cluster.kill_engine(place)
    await moment(began_s + fault.at_s + fault.lasts_s)
    await cluster.start_engine(place, first_load_s=place.load_s)


# -- after it


async def facts_since(cluster: RealCluster, earlier: int, replies: Sequence[Reply]) -> list[dict[str, object]]:
    """Return the facts of the run once every answered request has its end among them."""
    wanted = sum(reply.status == 200 for reply in replies)

    async def told() -> list[dict[str, object]]:
        facts = [fact["event"] for fact in (await cluster.parts.events())[earlier:]]
        return facts if sum(fact["type"] == "queue.finished" for fact in facts) >= wanted else []

    return await until("the ends of all requests", told, timeout_s=30)  # type: ignore[no-any-return]


def _outcome(
    name: str,
    seed: int,
    cluster: RealCluster,
    replies: Sequence[Reply],
    facts: Sequence[dict[str, object]],
) -> Outcome:
    owned = [reply for reply in replies if not reply.native]
    began_s = min(reply.began_s for reply in owned)
    kinds: dict[str, int] = {}
    for fact in facts:
        kinds[str(fact["type"])] = kinds.get(str(fact["type"]), 0) + 1
    return Outcome(
        scenario=name,
        seed=seed,
        reference_s=reference_s(cluster.layout.scenario) / SCALE,
        drain_s=max(reply.ended_s for reply in owned) - began_s,
        mean_s=sum(reply.ended_s - reply.began_s for reply in owned) / len(owned),
        replies=tuple(replies),
        engines=tuple(_use(cluster, place, replies, began_s) for place in cluster.layout.places),
        control=control_path(facts),
        events=dict(sorted(kinds.items())),
    )


def _use(cluster: RealCluster, place: Place, replies: Sequence[Reply], began_s: float) -> EngineUse:
    owned = {reply.key for reply in replies if not reply.native}
    lines = [line for line in cluster.journal(place) if line.began >= began_s]
    runs = [line for line in lines if line.what == "run"]
    of_owners = [line for line in runs if line.key in owned]
    first_s, last_s = (of_owners[0].began, of_owners[-1].ended) if of_owners else (began_s, began_s)
    busy_s = sum(line.ended - line.began for line in lines if line.what in {"run", "load"})
    inside_s = sum(line.ended - line.began for line in lines if first_s <= line.began < last_s)
    return EngineUse(
        node=place.id,
        runs=len(runs),
        loads=sum(line.what == "load" for line in lines),
        busy_s=busy_s,
        gaps_s=last_s - first_s - inside_s,
        last_s=last_s - began_s,
        faults=tuple(f"{line.what} {line.key}" for line in lines if line.what not in {"run", "load"}),
    )

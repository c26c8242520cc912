"""What the master costs: fold, verify, one plan. `python -m tests.bench.bench_master`; it prints figures and asserts nothing.

Processor time, not the clock on the wall: the machine may be shared.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator

from adapters.log.reader import Reader
from domain.events import ModelInfo, Registered
from domain.events.commit import commit_digest
from domain.ids import Generation, ModelId, NodeId
from domain.master.inputs import FactOrRejected
from domain.master.planner import plan
from domain.master.state import State, encode_state
from domain.master.step import Position, Range, after, fold_into, replay
from domain.ports import StoredMessage
from tests.bench.arguments import parser_of
from tests.support.history import CLUSTER, SECRET, Master, Recorder, finished, held, link, random_history, registered
from tests.support.realistic import RealCluster


def best_us(call: Callable[[], object], *, seconds: float = 0.3) -> float:
    """Return the least microseconds of processor time of one call, over as many runs of 20 as fit."""
    best, end = float("inf"), time.process_time() + seconds
    while time.process_time() < end:
        began = time.process_time()
        for _ in range(20):
            call()
        best = min(best, (time.process_time() - began) / 20)
    return best * 1e6


def per_second(count: int, call: Callable[[], object], *, rounds: int = 3) -> float:
    """Return how many of `count` things a call does in a second of processor time, in the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return count / best


def folding(name: str, recorder: Recorder, master: Master) -> None:
    """Judge, fold and verify one history."""
    reader, facts = Reader(CLUSTER, SECRET), recorder.facts[: master.position.hi]
    judged = reader.facts(facts)
    kinds = Counter(type(decision).__name__ for made in master.commits for decision in made.decisions)
    print(f"\n{name}: {len(facts):,} facts, {len(master.commits):,} commits, {dict(kinds)}")
    print(f"judge (decode, MAC, bounds) {per_second(len(facts), lambda: reader.facts(facts)):>10,.0f} events/s")
    print(f"fold                        {per_second(len(facts), lambda: _fold(judged)):>10,.0f} events/s")
    print(f"verify                      {per_second(len(facts), lambda: verifying(recorder, master)):>10,.0f} events/s")
    encoding_us = best_us(lambda: encode_state(master.state))
    print(f"state                       {len(encode_state(master.state)):>10,} bytes, encoded in {encoding_us:,.0f} us")


def _fold(judged: list[tuple[FactOrRejected, StoredMessage]]) -> None:
    fold_into(State(term=1), Range(), [], judged)


def verifying(recorder: Recorder, master: Master) -> None:
    """Decide every commit again."""
    reader, state, position = Reader(CLUSTER, SECRET), State(), Position(Generation("00010000"))
    for stored in master.commits:
        state.term, span = stored.term, Range()
        control = [(reader.control(m), m) for m in recorder.control[stored.clo : stored.chi]]
        fold_into(state, span, control, reader.facts(recorder.facts[stored.lo : stored.hi]))
        assert commit_digest(stored.prev, span.messages(), stored) == stored.digest
        replay(state, position, stored, span, sealed=True)
        position = after(stored)


def planning() -> None:
    """One plan, by links and held requests, in a state of 50 nodes and 200 models."""
    print("one plan (us)      held:      10     100    1000")
    for links in (1, 4, 16, 64):
        row = []
        for count in (10, 100, 1000):
            master = planned_state(links, count)
            row.append(best_us(lambda state=master.state: plan(state, "a/m", "enqueued")))  # type: ignore[misc]
        print(f"{links:>4} links          " + "".join(f"{each:>8.0f}" for each in row))


def planned_state(links: int, count: int) -> Master:
    """Return a master whose owner `a` holds `count` requests and has `links` helpers, among 50 nodes with 4 models each."""
    recorder, master = Recorder(), Master()
    recorder.state("a", registered())
    names = [f"h{i:03}" for i in range(max(links, 49))]
    models = tuple(ModelInfo(id=ModelId(name), local_id=name, context=8192) for name in ("m", "k", "l", "o"))
    for i, name in enumerate(names):
        recorder.state(name, Registered(url="http://h", models=models, version="1", depth=2))
        recorder.state(name, finished(f"req_{name}", service_us=900_000 + 10_000 * i))
    for name in names[:links]:
        recorder.decree(link("a", name))
    recorder.state("a", finished("req_fit"))
    master.take(recorder.facts, recorder.control)
    done = len(recorder.facts)
    for i in range(count):
        recorder.state("a", held(f"req_{i}", i + 1))
    fold_into(master.state, master.span, [], master.reader.facts(recorder.facts[done:]))
    assert NodeId("a") in master.state.nodes
    return master


def scaling() -> None:
    """One fact and what follows from it, among more and more nodes, models and backlogs that it does not concern."""
    print(
        "\none held fact, planned and committed (us), 4 links, among unlinked nodes with 4 models, a third of them busy"
    )
    for nodes in (50, 250, 1000):
        master, recorder = planned_state(4, 20), Recorder()
        recorder.now_ns += 10**12
        infos = tuple(ModelInfo(id=ModelId(name), local_id=name, context=8192) for name in ("m", "k", "l", "o"))
        for i in range(nodes):
            name = f"x{i:04}"
            recorder.state(name, Registered(url="http://x", models=infos, version="1", depth=2))
            for j in range(5 if i % 3 == 0 else 0):
                recorder.state(name, held(f"req_{name}{j}", j + 1))
        master.take(recorder.facts)
        recorder.pseq["a"] = master.state.nodes[NodeId("a")].pseq
        counter = iter(range(10**6))

        def one(master: Master = master, recorder: Recorder = recorder, counter: Iterator[int] = counter) -> None:
            master.take([recorder.state("a", held(f"req_z{next(counter)}", 1, lendable=False), after_us=10)])

        print(f"{nodes:>5} nodes            {best_us(one):>8.0f}")


if __name__ == "__main__":
    parser_of(__doc__).parse_args()
    made_up, dice_master = random_history(1, 20_000, nodes=50, models=4), Master()
    dice_master.take_all(made_up, lambda: 25)
    folding("dice: every node linked, everything happens", made_up, dice_master)
    cluster = RealCluster(1)
    cluster.run(40_000)
    folding("realistic: 50 nodes, 200 models, 20 links, bursts", cluster.recorder, cluster.master)
    print()
    planning()
    scaling()

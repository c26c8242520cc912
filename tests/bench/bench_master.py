"""What the master costs: fold, verify, one plan. `python -m tests.bench.bench_master`; it prints figures and asserts nothing."""

import time
from collections.abc import Callable

from adapters.log.reader import Reader
from domain.events import ModelInfo, Registered
from domain.events.commit import commit_digest
from domain.ids import Generation, ModelId, NodeId
from domain.master.planner import plan
from domain.master.state import State, encode_state
from domain.master.step import Position, Range, after, fold_into, replay
from tests.support.history import CLUSTER, SECRET, Master, Recorder, finished, held, link, random_history, registered


def best_us(call: Callable[[], object], *, seconds: float = 0.5) -> float:
    """Return the least microseconds of one call, over as many runs of 20 as fit."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(20):
            call()
        best = min(best, (time.perf_counter() - began) / 20)
    return best * 1e6


def folding(events: int = 60_000) -> None:
    """Fold alone, judging included, and verify, over one made-up history of 50 nodes and 200 models."""
    recorder = random_history(1, events, nodes=50, models=4)
    reader = Reader(CLUSTER, SECRET)
    began = time.perf_counter()
    judged = reader.facts(recorder.facts)
    judging = time.perf_counter() - began
    state = State(term=1)
    began = time.perf_counter()
    fold_into(state, Range(), [], judged)
    fold = time.perf_counter() - began
    print(f"judge (decode, MAC)    {len(judged) / judging:>10,.0f} events/s")
    print(f"fold                   {len(judged) / fold:>10,.0f} events/s")
    print(f"judge and fold         {len(judged) / (judging + fold):>10,.0f} events/s")
    master = Master()
    began = time.perf_counter()
    master.take_all(recorder, lambda: 25)
    print(
        f"live, 25 facts a batch {len(judged) / (time.perf_counter() - began):>10,.0f} events/s, {len(master.commits):,} commits"
    )
    began = time.perf_counter()
    verifying(recorder, master)
    print(f"verify                 {len(judged) / (time.perf_counter() - began):>10,.0f} events/s")
    encoding_us = best_us(lambda: encode_state(master.state))
    print(f"state                  {len(encode_state(master.state)):>10,} bytes, encoded in {encoding_us:,.0f} us")


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
    models = tuple(ModelInfo(id=ModelId(name), local_id=name) for name in ("m", "k", "l", "o"))
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


if __name__ == "__main__":
    folding()
    planning()

"""Stored histories that the current rules must decide to the very same bytes. `python -m tests.support.golden` makes them anew.

That is right only where a rule was changed on purpose, which is a new policy once a version has been released.
"""

import gzip
import random
from pathlib import Path

import msgspec

from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BorrowStarted,
    CutOff,
    LendAnswered,
    Lent,
    LinkAdded,
    Loaded,
    LoadFailed,
    LoadStarted,
    Unloaded,
)
from domain.events.commit import Commit, decode_commit, encode_commit
from domain.ids import ModelId
from domain.master.state import POLICY
from domain.ports import StoredMessage
from tests.support.history import (
    Master,
    Recorder,
    borrow,
    finished,
    held,
    lend,
    link,
    random_history,
    registered,
    started,
)
from tests.support.realistic import RealCluster
from tests.support.stories import K, M, Story

FOLDER = Path(__file__).parents[1] / "replay" / "golden"
"""One folder for each policy; those of older ones stay, and the frozen rules decide them again."""


class _Line(msgspec.Struct, array_like=True):
    """One message: f(act) or c(ontrol) with stamp and subject; or l(edger), a commit."""

    kind: str
    stamp_ns: int
    subject: str
    body: str


def save(name: str, recorder: Recorder, master: Master) -> None:
    """Write what a master lived through, and what it decided."""
    lines = [_Line("c", m.stamp_ns, m.subject, m.body.decode()) for m in recorder.control]
    lines += [_Line("f", m.stamp_ns, m.subject, m.body.decode()) for m in recorder.facts[: master.position.hi]]
    lines += [_Line("l", 0, "", encode_commit(made).decode()) for made in master.commits]
    packed = gzip.compress(b"\n".join(map(msgspec.json.encode, lines)), 9, mtime=0)
    (FOLDER / POLICY / f"{name}.jsonl.gz").write_bytes(packed)


def load(name: str, policy: str = POLICY) -> tuple[Recorder, list[Commit]]:
    """Return a stored history of a policy and its commits."""
    recorder, commits = Recorder(), []
    for line in gzip.decompress((FOLDER / policy / f"{name}.jsonl.gz").read_bytes()).split(b"\n"):
        read = msgspec.json.decode(line, type=_Line)
        if read.kind == "l":
            commits.append(decode_commit(read.body.encode()))
            continue
        into = recorder.control if read.kind == "c" else recorder.facts
        into.append(StoredMessage(len(into) + 1, read.stamp_ns, read.subject, b"", read.body.encode()))
    return recorder, commits


def main() -> None:
    """Make the histories anew."""
    (FOLDER / POLICY).mkdir(exist_ok=True, parents=True)
    recorder, master, dice = random_history(2032, 600, nodes=4, models=2), Master(), random.Random(1)
    master.take_all(recorder, lambda: dice.randint(1, 12))
    save("random", recorder, master)
    cluster = RealCluster(2026, nodes=5, models=2, linked=6, batch=8)
    cluster.run(600)
    save("realistic", cluster.recorder, cluster.master)
    save("switch", *switching())
    save("rules", *ruling())


def switching() -> tuple[Recorder, Master]:
    """Live through bursts of growing depth whose helper would have to load the model first, with own work in between."""
    recorder, master = Recorder(), Master()
    for name in ("a", "b"):
        recorder.state(name, registered())
    recorder.decree(link("a", "b", load_if_unloaded=True))
    recorder.state("a", finished("req_fit"))
    recorder.state("b", Loaded(model=ModelId("m"), load_us=3_000_000, cause="own"))
    recorder.state("b", Unloaded(model=ModelId("m"), cause="own"))
    master.take(recorder.facts, recorder.control)
    for burst in range(1, 13):
        begin = len(recorder.facts)
        for i in range(burst * 2):
            recorder.state("a", held(f"req_{burst}_{i}", i + 1))
        if burst % 3 == 0:
            own = f"req_own{burst}"
            recorder.state("b", started(own), after_us=5_000_000 * burst)
            recorder.state("b", finished(own), after_us=1_000_000)
        master.take(recorder.facts[begin:])
        begin = len(recorder.facts)
        for i in range(burst * 2):
            recorder.state("a", started(f"req_{burst}_{i}"))
            recorder.state("a", finished(f"req_{burst}_{i}", service_us=900_000 + 10_000 * i), after_us=900_000)
        master.take(recorder.facts[begin:])
    return recorder, master


def ruling() -> tuple[Recorder, Master]:
    """Live through what bursts and switches leave out: a shared runtime, probes, hints, failures, a helper that falls silent."""
    other = link("a", "b", load_if_unloaded=True)
    story = Story("a", "b", "c", links=(other, link("a", "c")), fit_us=0)
    story.share("b", K, M, resident=K, loads_us={K: 20_000_000, M: 20_000_000})
    story.wait(100_000_000)
    story.burst(30)  # nobody is measured: the loaded helper is probed
    to_c = link("a", "c")
    for i in range(3):
        _lends(story, to_c, f"req_{i + 2}", 400_000)
        story.recorder.state("a", finished(f"req_own{i}", service_us=1_000_000))
    story.look()  # measured now: it has a plain lease, and its owner is told that it is faster
    for i in (10, 11):
        story.recorder.state("a", lend(Lent, f"req_{i}", to_c, work=64_000_000, out=1, waited_us=1))
        story.recorder.state("a", lend(CutOff, f"req_{i}", to_c, reason="helper_failed", may_have_run=True))
        story.recorder.state("a", held(f"req_{i}", lendable=False))
    story.look()
    story.ring()  # its quarantine ends, or the probe of the other is due
    for i in range(12, 16):
        story.ring()
        _lends(story, to_c, f"req_{i}", 400_000)
    for i in range(200):
        story.recorder.state("a", held(f"req_more{i}"))
    story.look()  # deep enough for a switch
    story.recorder.state("a", lend(Lent, "req_more1", other, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("b", borrow(BorrowAccepted, "req_more1", other, position=0))
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    for _ in range(12):
        story.ring()  # it says nothing more: asked, then taken for stalled
    story.recorder.state("b", LoadFailed(model=M, cause="borrowed", reason="killed"))
    story.look()
    return story.recorder, story.master


def _lends(story: Story, on: LinkAdded, request: str, took_us: int) -> None:
    """Let a request be lent and answered."""
    story.recorder.state("a", lend(Lent, request, on, work=64_000_000, out=1, waited_us=1))
    story.recorder.state(on.helper, borrow(BorrowAccepted, request, on, position=0))
    story.recorder.state(on.helper, borrow(BorrowStarted, request, on))
    done = borrow(BorrowFinished, request, on, work=64_000_000, service_us=took_us, status=200, ok=True)
    story.recorder.state(on.helper, done, after_us=took_us)
    story.recorder.state("a", lend(LendAnswered, request, on, status=200, service_us=took_us))
    story.recorder.state("a", finished(request, helper=on.helper, service_us=took_us))
    story.look()


if __name__ == "__main__":
    main()

"""A cluster told fact by fact to a master, and what it decided about it."""

from domain.events import (
    Decision,
    Due,
    LeaseChanged,
    LeaseCleared,
    LeaseGranted,
    LinkAdded,
    Loaded,
    ModelInfo,
    OwnerPlanned,
    Registered,
    Verdict,
)
from domain.ids import ModelId
from domain.master.timers import next_due_us
from tests.support.history import Master, Recorder, finished, held, link, registered, started

M, K, L = ModelId("m"), ModelId("k"), ModelId("l")
ON = link("a", "b")


class Story:
    """A cluster told fact by fact; `look` returns what the master decides about all that is new."""

    def __init__(self, *nodes: str, links: tuple[LinkAdded, ...] = (ON,), fit_us: int = 1_000_000) -> None:
        self.recorder, self.master = Recorder(), Master()
        self.seen = self.decreed = 0
        for node in nodes or ("a", "b"):
            self.recorder.state(node, registered())
        for each in links:
            self.recorder.decree(each)
        if fit_us:
            self.recorder.state("a", finished("req_fit", service_us=fit_us))
        self.look()

    def look(self) -> list[Decision]:
        facts, control = self.recorder.facts[self.seen :], self.recorder.control[self.decreed :]
        self.seen, self.decreed = len(self.recorder.facts), len(self.recorder.control)
        before = len(self.master.commits)
        self.master.take(facts, control)
        return [decision for made in self.master.commits[before:] for decision in made.decisions]

    def burst(self, count: int, *, in_engine: int = 2) -> list[Decision]:
        for i in range(count):
            if i < in_engine:
                self.recorder.state("a", started(f"req_{i}"))
            else:
                self.recorder.state("a", held(f"req_{i}", i - in_engine + 1))
        return self.look()

    def look_again(self) -> list[Decision]:
        """Return what was decided last."""
        return list(self.master.commits[-1].decisions)

    def wait(self, duration_us: int) -> None:
        """Let time pass without a fact."""
        self.recorder.now_ns += duration_us * 1000

    def ring(self) -> list[Decision]:
        """Let the alarm ring at its moment."""
        now_us, at_us = self.master.state.now_us, next_due_us(self.master.state)
        assert at_us is not None
        elapsed_us = max(0, at_us - now_us)
        self.recorder.observe(1, Due(elapsed_us=elapsed_us, since_us=now_us), after_us=elapsed_us)
        return self.look()

    def share(
        self, node: str, *models: ModelId, resident: ModelId = M, loads_us: dict[ModelId, int] | None = None
    ) -> None:
        """Let a node begin anew with models that share one runtime, of which loads were measured."""
        self.recorder.restart(node)
        infos = tuple(
            ModelInfo(id=each, local_id=each, context=8192, ready=each == resident, runtime="gpu") for each in models
        )
        self.recorder.state(node, Registered(url="http://h", models=infos, version="1", depth=2))
        for model, load_us in (loads_us or {}).items():
            self.recorder.state(node, Loaded(model=model, load_us=load_us, cause="operator"))
        if loads_us:
            load_us = loads_us.get(resident, 0)
            self.recorder.state(node, Loaded(model=resident, load_us=load_us, cause="operator"))


def leases(decisions: list[Decision]) -> list[tuple[str, str, int]]:
    """Return (kind, helper, slots) of every lease event."""
    return [
        (type(d).__name__, d.helper, d.slots)
        for d in decisions
        if isinstance(d, LeaseGranted | LeaseChanged | LeaseCleared)
    ]


def verdict(decisions: list[Decision], helper: str = "b", owner: str = "") -> Verdict:
    """Return what the last plan found for a helper."""
    rows = [row for row in decisions if isinstance(row, OwnerPlanned) and (not owner or row.owner == owner)]
    return next(v for v in rows[-1].verdicts if v.helper == helper)

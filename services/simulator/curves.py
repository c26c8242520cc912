"""What is plotted of a run: each node's queue, what it has lent, its leases and its loads, over time."""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from services.simulator.model.world import World


class Sample(NamedTuple):
    """What holds from `at_s` until the next sample."""

    at_s: float
    held: int
    in_engine: int
    out: int
    """Lent by this node."""
    slots: int
    """What its leases allow to be out."""


class Load(NamedTuple):
    """A model that was loaded, from when to when."""

    node: int
    model: int
    from_s: float
    to_s: float


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The plots' data of one run."""

    nodes: tuple[tuple[Sample, ...], ...]
    loads: tuple[Load, ...]
    end_s: float


class Recorder:
    """Watches a world and keeps what changes. What changes back within the same moment is left out."""

    def __init__(self, nodes: int) -> None:
        self._samples: list[list[Sample]] = [[] for _ in range(nodes)]
        self._loads: list[Load] = []
        self._loading: dict[int, tuple[int, float]] = {}
        self._end_s = 0.0

    def look(self, world: "World") -> None:
        """Note what changed."""
        for node in world.nodes:
            slots = world.policy.lease_slots(node)
            self.note(node.number, Sample(world.now_s, len(node.held), node.in_engine(), len(node.out), slots))
            self.loading(node.number, node.loading if node.state == "load" else None, world.now_s)

    def note(self, node: int, sample: Sample) -> None:
        """Note a node's state, if it is another than before."""
        self._end_s = max(self._end_s, sample.at_s)
        samples = self._samples[node]
        if samples and samples[-1][1:] == sample[1:]:
            return
        if samples and samples[-1].at_s == sample.at_s:
            samples.pop()
        samples.append(sample)

    def loading(self, node: int, model: int | None, now_s: float) -> None:
        """Note which model a node loads, or that it loads none."""
        before = self._loading.get(node)
        if before is not None and before[0] != model:
            self._loads.append(Load(node, before[0], before[1], now_s))
            del self._loading[node]
        if model is not None and node not in self._loading:
            self._loading[node] = (model, now_s)

    def curves(self) -> Curves:
        """Return what was seen; loads that still run are cut at the end."""
        for node in sorted(self._loading):
            self.loading(node, None, self._end_s)
        return Curves(
            nodes=tuple(tuple(samples) for samples in self._samples), loads=tuple(self._loads), end_s=self._end_s
        )

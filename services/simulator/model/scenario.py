"""What happens in one run: the cluster, every arrival, every fault. A scenario is drawn once; all policies get the same one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Arrival(NamedTuple):
    """A request that comes in; they are served to the world sorted by these fields."""

    at_s: float
    node: int
    size: float
    """Units of work; one unit takes the model's `unit_s` on a node of speed 1."""
    noise: float
    """What the true service time is multiplied by, unknown to everybody."""
    native: bool
    """A helper's own request, as against one of the owners whose latencies are measured."""


class Fault(NamedTuple):
    """A node's crash (its work is lost) or hang (it answers nothing) for a time."""

    at_s: float
    node: int
    kind: str
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One drawn run. Nodes and models are numbered; node `i`'s own model is model `i`, unless there is but one."""

    name: str
    speeds: tuple[float, ...]
    loaded: tuple[int, ...]
    """The model in each node's runtime at the beginning."""
    load_s: tuple[float, ...]
    """By node: how long loading any model takes."""
    links: Mapping[int, tuple[int, ...]]
    """Owner -> helpers, in order of statement."""
    unit_s: tuple[float, ...]
    """By model."""
    arrivals: tuple[Arrival, ...]
    faults: tuple[Fault, ...] = ()
    black_holes: frozenset[int] = frozenset()
    """Nodes that fail every lent request at once."""
    one_model: bool = False
    """Every node serves model 0, and nobody ever switches."""
    depth: int = 2
    handover_s: float = 0.03
    control_s: float = 0.05
    hop_s: float = 0.02
    tick_s: float = 5.0
    restore_after_s: float = 1.5
    idle_before_s: float = 120.0
    """How long every node had been idle when the run begins."""
    load_cv: float = 0.0
    bias: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(node, model) -> factor of the first estimate of its service times."""
    load_bias: Mapping[tuple[int, int], float] = field(default_factory=dict)
    learn: bool = True
    min_samples: int = 3
    size_known: bool = True
    mean_size: tuple[float, ...] = ()
    """By model; what a request whose size nobody knows is taken for."""

    def model_of(self, node: int) -> int:
        """Return the model that the node's own requests are for."""
        return 0 if self.one_model else node

    def mean_size_of(self, model: int) -> float:
        """Return the size that a request of `model` is expected to have."""
        return self.mean_size[model] if self.mean_size else 1.0

    @property
    def owners(self) -> list[int]:
        """Return the nodes whose requests are measured, in order."""
        return sorted({arrival.node for arrival in self.arrivals if not arrival.native})

    @property
    def is_static(self) -> bool:
        """Return whether one owner has everything at once and nothing else happens: then the optimum can be searched."""
        return (
            len(self.links) == 1
            and not self.faults
            and not any(arrival.native for arrival in self.arrivals)
            and len({arrival.at_s for arrival in self.arrivals}) == 1
        )

"""Jobs and nodes: the mutable state of a run."""

from collections import deque
from dataclasses import dataclass, field

LONG_AGO_S = -1e9


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way."""

    number: int
    owner: int
    model: int
    arrived_s: float
    size: float
    noise: float
    native: bool
    started_s: float | None = None
    ended_s: float | None = None
    ran_at: int | None = None
    returned: bool = False
    """Handed back once: it is never lent again."""
    tries: int = 0
    fed_s: float = -1.0
    """When its owner handed it to its own engine."""


@dataclass(slots=True, eq=False)
class Node:
    """A machine: one runtime that serves one job at a time and cannot be stopped in a job or a load."""

    number: int
    speed: float
    loaded: int | None
    last_own_s: float
    alive: bool = True
    hung: bool = False
    life: int = 0
    """Counted up by each fault, so that what an earlier life scheduled is known for old."""
    state: str = "idle"
    running: Job | None = None
    until_s: float = 0.0
    loading: int | None = None
    run_began_s: float = 0.0
    pipe: deque[Job] = field(default_factory=deque)
    """Given to the engine, not begun."""
    held: deque[Job] = field(default_factory=deque)
    out: dict[int, tuple[Job, "Node"]] = field(default_factory=dict)
    """Lent by this node: job number -> (job, helper)."""
    displaced: int | None = None
    """The model that lent work drove out."""
    restore_turn: int = 0
    restoring: bool = False
    load_time_s: float = 0.0
    loads: int = 0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    """Between its own arrivals."""
    last_arrival_s: float | None = None
    visits_s: deque[float] = field(default_factory=lambda: deque(maxlen=8))
    """Between visits of lent work."""
    last_borrow_s: float | None = None
    barren: int = 0
    """Failures since it last completed a lent job."""
    last_failure_s: float = LONG_AGO_S

    def in_engine(self) -> int:
        """Return how many jobs its engine has."""
        return len(self.pipe) + (self.running is not None)

    def has_own_work(self) -> bool:
        """Return whether anything of its own waits, runs or comes back."""
        return (
            bool(self.held)
            or any(job.owner == self.number for job in self.pipe)
            or (self.running is not None and self.running.owner == self.number)
            or self.restoring
        )

    def coming_model(self) -> int | None:
        """Return the model that is in, or is being loaded."""
        return self.loaded if self.loading is None else self.loading

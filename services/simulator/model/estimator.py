"""What everybody believes that work costs, learned from what has been seen."""

import math
from collections import deque
from collections.abc import Callable

from services.simulator.model.parts import Job
from services.simulator.model.scenario import Scenario

Elapsed = Callable[[int, int], float | None]
"""(node, model) -> seconds per expected second that the running job has taken so far, if such a job runs."""


class Estimator:
    """Service and load times: a first guess, then the mean of the newest samples.

    `prior_weight` is None for the hard switch from guess to mean at `min_samples`; else the guess counts as so many
    samples, in logarithms, from the first sample on. `elapsed`, where given, makes a running job a lower bound.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.seen: dict[tuple[int, int], deque[float]] = {}
        self.loads_seen: dict[tuple[int, int], deque[float]] = {}
        self.prior_weight: float | None = None
        self.elapsed: Elapsed | None = None

    def size(self, job: Job) -> float:
        """Return the size that `job` is taken to have."""
        return job.size if self.scenario.size_known else self.scenario.mean_size_of(job.model)

    def samples(self, node: int, model: int) -> int:
        """Return how many finished jobs of `model` were seen on `node`."""
        return len(self.seen.get((node, model), ()))

    def _ratio(self, node: int, model: int) -> float:
        scenario = self.scenario
        seen = self.seen.get((node, model))
        ratio = scenario.bias.get((node, model), 1.0)
        if scenario.learn and seen:
            if len(seen) >= scenario.min_samples:
                ratio = sum(seen) / len(seen)
            elif self.prior_weight is not None:
                logs = sum(math.log(sample) for sample in seen)
                ratio = math.exp((self.prior_weight * math.log(ratio) + logs) / (self.prior_weight + len(seen)))
        if self.elapsed is not None and (least := self.elapsed(node, model)) is not None:
            ratio = max(ratio, least)
        return ratio

    def service_s(self, node: int, job: Job) -> float:
        """Return the seconds that `job` is expected to take on `node`."""
        base = self.scenario.unit_s[job.model] * self.size(job) / self.scenario.speeds[node]
        return base * self._ratio(node, job.model)

    def mean_service_s(self, node: int, model: int) -> float:
        """Return the seconds that a job of `model` of mean size is expected to take on `node`."""
        base = self.scenario.unit_s[model] * self.scenario.mean_size_of(model) / self.scenario.speeds[node]
        return base * self._ratio(node, model)

    def per_unit_s(self, node: int, model: int) -> float:
        """Return the seconds that one unit of work is expected to take on `node`."""
        return self.scenario.unit_s[model] / self.scenario.speeds[node] * self._ratio(node, model)

    def load_time_s(self, node: int, model: int) -> float:
        """Return the seconds that `node` is expected to take to load `model`."""
        seen = self.loads_seen.get((node, model))
        if seen and self.scenario.learn:
            return sum(seen) / len(seen)
        return self.scenario.load_s[node] * self.scenario.load_bias.get((node, model), 1.0)

    def observe(self, node: int, job: Job, took_s: float) -> None:
        """Learn from a finished job."""
        expected_s = self.scenario.unit_s[job.model] * self.size(job) / self.scenario.speeds[node]
        self.seen.setdefault((node, job.model), deque(maxlen=50)).append(took_s / expected_s)

    def observe_load(self, node: int, model: int, took_s: float) -> None:
        """Learn from a finished load."""
        self.loads_seen.setdefault((node, model), deque(maxlen=20)).append(took_s)

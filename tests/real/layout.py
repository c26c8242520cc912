"""What a drawn scenario is on real processes: nodes, engines, models, links and requests, at a tenth of its time."""

import json
from collections.abc import Iterator

import msgspec

from services.simulator.model.scenario import Fault, Scenario

SCALE = 10
"""Work, loads, arrivals and faults are so much faster than the scenario says; the control path is what it is."""
UNIT_BYTES = 4096
"""Body of a request of size 1. A node takes work from the prompt and from how long answers are; here these have one token."""
WARM_JOB_S = 0.15
"""How long a warm-up request takes at speed 1, if the scenario's own are not shorter."""
WARM_SIZES = (0.5, 1.0, 1.5)
"""Sizes of warm-up requests differ, else only their own size would have a price."""
CONTEXT = 1 << 27


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a node: its number in the scenario, and its names."""

    number: int
    id: str
    local: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A node with its engine."""

    number: int
    id: str
    models: tuple[Model, ...]
    """The one that is loaded at the beginning comes first. Several share one runtime."""
    speed: float
    load_s: float
    """Real seconds."""
    fails: bool
    """Its engine fails whatever is lent to it."""

    def model(self, number: int) -> Model:
        """Return the model of that number."""
        return next(model for model in self.models if model.number == number)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request: when, at which node, and how its engine knows it."""

    key: str
    at_s: float
    """Real seconds since the run began."""
    node: int
    model: str
    size_bytes: int
    """Of its body: what a node takes its work from."""
    native: bool

    def body(self) -> bytes:
        """Return its JSON, filled up to its size."""
        missing = max(0, self.size_bytes - len(self._encoded("")))
        return self._encoded("x" * missing)

    def _encoded(self, filling: str) -> bytes:
        message = {"role": "user", "content": f"[[{self.key}]]{filling}"}
        return json.dumps({"model": self.model, "messages": [message], "max_tokens": 1}).encode()


class Layout:
    """A scenario on real processes."""

    def __init__(self, scenario: Scenario, *, prefix: str = "job") -> None:
        """`prefix`: of the keys of its requests."""
        self.scenario, self._prefix = scenario, prefix
        self.places = [self._place(number) for number in range(len(scenario.speeds))]
        self.requests = [self._request(at) for at in range(len(scenario.arrivals))]
        self.faults = [_fault(fault) for fault in scenario.faults]
        self.idle_s = scenario.idle_before_s / SCALE
        """How long every node is idle before the run."""

    # -- nodes

    def _place(self, number: int) -> Place:
        scenario = self.scenario
        loaded = scenario.loaded[number]
        lent_to = {scenario.model_of(owner) for owner, helpers in scenario.links.items() if number in helpers}
        # what a node neither has loaded nor may ever be asked for is left out
        wanted = {loaded, *lent_to, *(scenario.model_of(a.node) for a in scenario.arrivals if a.node == number)}
        return Place(
            number=number,
            id=f"n{number:02d}",
            models=tuple(_model(number, model) for model in sorted(wanted, key=lambda model: (model != loaded, model))),
            speed=scenario.speeds[number],
            load_s=scenario.load_s[number] / SCALE,
            fails=number in scenario.black_holes,
        )

    def links(self) -> Iterator[tuple[str, str]]:
        """Yield (owner, helper) as the command line names them: NODE/MODEL."""
        for owner, helpers in sorted(self.scenario.links.items()):
            model = self.scenario.model_of(owner)
            for helper in helpers:
                ends = (self.places[owner], self.places[helper])
                yield tuple(f"{place.id}/{place.model(model).id}" for place in ends)  # type: ignore[misc]  # two

    # -- requests

    def _request(self, at: int) -> Request:
        arrival = self.scenario.arrivals[at]
        model = self.places[arrival.node].model(self.scenario.model_of(arrival.node))
        return Request(
            key=f"{self._prefix}{at}",
            at_s=arrival.at_s / SCALE,
            node=arrival.node,
            model=model.id,
            size_bytes=round(UNIT_BYTES * arrival.size),
            native=arrival.native,
        )

    def warm_up(self, place: Place, model: Model, turn: int) -> Request:
        """Return the warm-up request number `turn`: of the usual time for its work, without noise."""
        kind = turn % len(WARM_SIZES)
        size_bytes = round(UNIT_BYTES * self._warm_size(model.number, kind))
        key = f"warm{model.number}-{kind}"
        return Request(key=key, at_s=0, node=place.number, model=model.id, size_bytes=size_bytes, native=True)

    def _warm_size(self, model: int, kind: int) -> float:
        return WARM_SIZES[kind] * min(1.0, WARM_JOB_S / (self.scenario.unit_s[model] / SCALE))

    def times(self) -> dict[str, float]:
        """Return how many real seconds each request takes at speed 1, by its key: only engines read it."""
        scenario = self.scenario
        jobs = {
            f"{self._prefix}{at}": scenario.unit_s[scenario.model_of(a.node)] * a.size * a.noise / SCALE
            for at, a in enumerate(scenario.arrivals)
        }
        warm = {
            f"warm{model.number}-{kind}": scenario.unit_s[model.number] / SCALE * self._warm_size(model.number, kind)
            for place in self.places
            for model in place.models
            for kind in range(len(WARM_SIZES))
        }
        return jobs | warm


def _model(node: int, model: int) -> Model:
    return Model(number=model, id=f"n{node:02d}-m{model:02d}", local=f"m{model:02d}")


def _fault(fault: Fault) -> Fault:
    return fault._replace(at_s=fault.at_s / SCALE, lasts_s=fault.lasts_s / SCALE)

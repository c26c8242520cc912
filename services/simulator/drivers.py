"""What can run a scenario: the model under any of its policies, or any other machinery that answers with the same measures.

A driver that is more than a policy has its own queues, nodes and master; it shares what is drawn (`Scenario`) and what it is
judged by (`Measures`), and nothing between.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from services.simulator.curves import Curves, Recorder
from services.simulator.model.measures import Measures, measure
from services.simulator.model.parts import Job
from services.simulator.model.policies.registry import POLICIES, check, policy
from services.simulator.model.scenario import Scenario
from services.simulator.model.world import World

OURS: Final = "ours"


class Run(NamedTuple):
    """What came of a scenario."""

    measures: Measures
    curves: Curves | None
    jobs: Sequence[Job] = ()
    """Every request of the scenario, in order of its number."""


class Driver(Protocol):
    """Runs scenarios to their end."""

    def refuses(self, scenario: Scenario) -> str:
        """Return why the scenario is beyond it, or nothing if it is not."""

    def run(self, scenario: Scenario, seed: int, *, curves: bool = False) -> Run:
        """Return what came of `scenario`; `seed` is for what is thrown on the way, such as the true load times."""


class ModelDriver:
    """The model of services/simulator/model under a policy."""

    def __init__(self, name: str) -> None:
        check(name)
        self._name = name

    def refuses(self, _scenario: Scenario) -> str:
        """Return nothing: the model runs every scenario."""
        return ""

    def run(self, scenario: Scenario, seed: int, *, curves: bool = False) -> Run:
        """Return what came of `scenario` under a fresh policy."""
        recorder = Recorder(len(scenario.speeds)) if curves else None
        world = World(scenario, policy(self._name), seed, recorder).run()
        measures = measure(scenario, world.jobs, world.nodes, world.counts)
        return Run(measures, None if recorder is None else recorder.curves(), world.jobs)


def driver(name: str) -> Driver:
    """Return the driver that `--policies` calls `name`; raise BadConfigError if there is none."""
    if name == OURS:
        # not above: the product's machines are many modules that the other policies do without, and they import Run
        from services.simulator.product.driver import ProductDriver  # noqa: PLC0415

        return ProductDriver()
    return ModelDriver(name)


def known_policies() -> Sequence[tuple[str, str]]:
    """Return (name, what it is) of all that `--policies` knows."""
    ours = (OURS, "the product's own master and nodes, in the scenarios that they can run")
    return [*((name, about) for name, (about, _) in POLICIES.items()), ours]

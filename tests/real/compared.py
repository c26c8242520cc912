"""The simulator's side of the comparison: the same draw, run by the product's own machines under a virtual clock."""

import dataclasses

from services.simulator.drivers import driver
from services.simulator.model.scenario import Scenario
from services.simulator.suites import scenario_cells
from tests.real.control_path import ControlPath
from tests.real.layout import SCALE

OURS, MODEL = "ours", "water"


def drawn(name: str, seed: int) -> Scenario:
    """Return the scenario that `seed` makes of the shipped scenario `name`."""
    (cell,) = scenario_cells(name)
    return cell.draw(seed)


def simulated_s(scenario: Scenario, seed: int, policy: str) -> tuple[str, float]:
    """Return (policy, simulated drain time); the model's rule stands in where the product's machines refuse the scenario."""
    name = MODEL if driver(policy).refuses(scenario) else policy
    return name, driver(name).run(scenario, seed).measures.drain_s


def with_measured_path(scenario: Scenario, path: ControlPath) -> Scenario:
    """Return the scenario with the delays that were measured, in its own time: they are not scaled, so they weigh more there."""
    return dataclasses.replace(
        scenario,
        control_s=SCALE * path.first_lease_ms / 1000,
        hop_s=SCALE * (path.lend_ms + path.start_ms) / 3 / 1000,  # head, go-ahead, body
    )

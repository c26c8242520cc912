"""The driver `ours`: a scenario run by the product's own code."""

import math

from services.simulator.curves import Recorder
from services.simulator.drivers import Run
from services.simulator.model.scenario import Scenario
from services.simulator.product.cluster import Cluster


class ProductDriver:
    """Runs what the product can do so far: one model on all nodes, and helpers without own requests may crash."""

    def refuses(self, scenario: Scenario) -> str:
        """Return the first thing in the scenario that the product's machines do not know yet."""
        linked = {node for owner, helpers in scenario.links.items() for node in (owner, *helpers)}
        busy = {arrival.node for arrival in scenario.arrivals}
        if any(scenario.model_of(node) != 0 for node in busy) or any(scenario.loaded[node] != 0 for node in linked):
            return "needs a model switch"
        if any(fault.kind != "crash" or fault.node in busy for fault in scenario.faults):
            return "a node that hangs, or an owner that fails"
        if not scenario.learn or any(_is_wrong(scenario, node, factor) for (node, _), factor in scenario.bias.items()):
            return "estimates that are neither measured nor the owner's"
        return ""

    def run(self, scenario: Scenario, seed: int, *, curves: bool = False) -> Run:
        """Return what came of `scenario`. Nothing is thrown on the way, so `seed` changes nothing more."""
        del seed
        recorder = Recorder(len(scenario.speeds)) if curves else None
        measures = Cluster(scenario, recorder).run()
        return Run(measures, None if recorder is None else recorder.curves())


def _is_wrong(scenario: Scenario, node: int, factor: float) -> bool:
    """Tell whether the first guess is another than the owner's price, which the product takes for an unmeasured helper."""
    return not math.isclose(factor * scenario.speeds[0], scenario.speeds[node])

"""The driver `ours`: a scenario run by the product's own code."""

from services.simulator.curves import Recorder
from services.simulator.drivers import Run
from services.simulator.model.scenario import Scenario
from services.simulator.product.cluster import Cluster


class ProductDriver:
    """Runs every scenario."""

    def refuses(self, _scenario: Scenario) -> str:
        """Return nothing: the product runs every scenario."""
        return ""

    def run(self, scenario: Scenario, seed: int, *, curves: bool = False) -> Run:
        """Return what came of `scenario`; `seed` throws the true load times."""
        recorder = Recorder(len(scenario.speeds)) if curves else None
        cluster = Cluster(scenario, recorder, seed=seed)
        measures = cluster.run()
        return Run(measures, None if recorder is None else recorder.curves(), cluster.clients.jobs)

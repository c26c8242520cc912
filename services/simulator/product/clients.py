"""The clients of a simulated cluster: each asks its node, and asks again after an error, until it has an answer.

A request that had to be asked again bears a new id. Its latency counts from the first time.
"""

from typing import TYPE_CHECKING, Final

from domain.events import Finished
from domain.ids import NodeId, RequestId
from domain.inputs import NewRequest
from services.simulator.model.parts import Job
from services.simulator.product.names import BEGIN_US, request_number, request_of, seconds, us

if TYPE_CHECKING:
    from services.simulator.model.scenario import Arrival, Scenario
    from services.simulator.product.cluster import Cluster
    from services.simulator.product.node import VirtualNode

_ASKS_AGAIN_US: Final = 1_000_000
_TOKEN: Final = 1_000_000
"""Work of one token."""


class Clients:
    """Every request of the scenario."""

    def __init__(self, cluster: "Cluster", scenario: "Scenario") -> None:
        self._cluster, self._scenario = cluster, scenario
        self.jobs: list[Job] = []
        self.done = 0
        self.failed = 0
        """Answers with an error; each was asked again."""
        self._open: dict[int, set[int]] = {node: set() for node in range(len(scenario.speeds))}
        for arrival in scenario.arrivals:
            self.expect(arrival)

    def expect(self, arrival: "Arrival") -> Job:
        """Let a request come at its time; return its job."""
        model = self._scenario.model_of(arrival.node)
        job = Job(len(self.jobs), arrival.node, model, arrival.at_s, arrival.size, arrival.noise, arrival.native)
        self.jobs.append(job)
        self._cluster.time.at(BEGIN_US + us(job.arrived_s), self._ask, job)
        return job

    @property
    def waiting(self) -> int:
        """How many requests were submitted and have not ended."""
        return sum(len(numbers) for numbers in self._open.values())

    def job(self, request: RequestId) -> Job:
        """Return the job of a request."""
        number = request_number(request)
        assert number is not None, f"request {request}: was before the run"
        return self.jobs[number]

    def _ask(self, job: Job) -> None:
        node = self._cluster.nodes[job.owner]
        if node.alive:
            self._cluster.later(node, 0, self._submit, node, job)
        else:
            node.kept_for_later.append((self._submit, (node, job)))

    def _submit(self, node: "VirtualNode", job: Job) -> None:
        self._open[node.number].add(job.number)
        request = request_of(job.number, job.tries)
        work = self._cluster.work_of(request)
        new = NewRequest(request=request, work=work, est_tokens=max(1, work // _TOKEN))
        runtime = node.runtimes[self._cluster.model_of(job)]
        self._cluster.do(node, runtime.submit(new, self._cluster.time.now_us))

    def forget(self, job: Job) -> None:
        """Let the client of a request go away: it asks no more."""
        self._open[job.owner].discard(job.number)

    def refused(self, request: RequestId) -> None:
        """Hear an error, and ask again a little later."""
        self.failed += 1
        job = self.job(request)
        job.tries += 1
        self._open[job.owner].discard(job.number)
        self._cluster.time.after(_ASKS_AGAIN_US, self._ask, job)

    def ask_again(self, node: "VirtualNode") -> None:
        """Ask a node that died for everything that it had not answered, now that it is back."""
        for number in sorted(self._open[node.number]):
            job = self.jobs[number]
            job.tries += 1
            self.failed += 1
            self._ask(job)

    def answered(self, node: "VirtualNode", fact: Finished) -> None:
        """Have the whole answer."""
        number = request_number(fact.request)
        if number is None:
            return
        job = self.jobs[number]
        assert job.ended_s is None, f"request {number}: was answered twice"
        job.ended_s = seconds(self._cluster.time.now_us)
        job.ran_at = int(NodeId(fact.helper)[1:]) if fact.helper else node.number
        self._open[node.number].discard(number)
        self.done += 1

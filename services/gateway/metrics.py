"""What a gateway measures of the requests that go through it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from adapters.http.errors import ApiError
from adapters.http.relay import ClientAnswer
from domain.ids import ModelId, NodeId
from services.telemetry.answer import instruments
from services.telemetry.instruments import Reading

UNKNOWN: Final = "unknown"
"""Stands for every model that no node serves: their names are what clients invent."""
_UNAVAILABLE: Final = frozenset({429, 503, 504})


class GatewayMetrics:
    """The instruments of one gateway."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.instruments = instruments("gateway")

    def look_at(
        self, in_progress: Callable[[], Reading], able: Callable[[], Reading], relaying: Callable[[], float]
    ) -> None:
        """Read these whenever somebody asks: requests by node, nodes by model, lends that are passed on."""
        self.instruments.read("leaseway_gateway_in_progress", in_progress)
        self.instruments.read("leaseway_gateway_nodes_able", able)
        self.instruments.state("leaseway_gateway_relaying", relaying)

    def refused(self, error: ApiError) -> None:
        """Count a request for a model that no node serves."""
        self.instruments.add("leaseway_gateway_requests_total", UNKNOWN, outcome_of(error.status))

    def failed_over(self, node: NodeId) -> None:
        """Count a request that `node` had not started, and that another one gets."""
        self.instruments.add("leaseway_gateway_failovers_total", node)

    @contextmanager
    def request(self, model: ModelId, client: ClientAnswer, now_s: Callable[[], float]) -> Iterator[None]:
        """Measure one request from here to the end of the block."""
        began_s, outcome = now_s(), "cancelled"
        try:
            yield
            outcome = outcome_of(client.status)
        except ApiError as error:
            outcome = outcome_of(error.status)
            raise
        finally:
            self.instruments.add("leaseway_gateway_requests_total", model, outcome)
            if outcome == "ok":
                self.instruments.observe("leaseway_gateway_request_seconds", now_s() - began_s, model)
                self.instruments.observe("leaseway_gateway_time_to_first_byte_seconds", client.first_byte_s, model)


def outcome_of(status: int) -> str:
    """Return the outcome that an answer of `status` is."""
    if status in _UNAVAILABLE:
        return "unavailable"
    return "ok" if status < 400 else "client_error" if status < 500 else "failed"

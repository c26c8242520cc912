"""The gateway's API: models from the catalogue, work to a node that holds the model, at most one second try."""

from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from adapters.http import surface
from adapters.http.body import BodyReader, ReadRequest, parse
from adapters.http.errors import NOT_STARTED, ApiError
from adapters.http.headers import to_engine
from adapters.http.relay import ClientAnswer, relay
from adapters.http.server import Call
from adapters.http.upstream import Answer, Upstream
from domain.errors import MayHaveRunError, NotStartedError
from domain.ids import ModelId, NodeId
from domain.ports import Clock
from services.config import Limits
from services.gateway.catalogue import Catalogue, Holder
from services.gateway.metrics import GatewayMetrics
from services.telemetry import answer as metrics
from services.telemetry.tracing import OFF, tell_answer

_TRIES: Final = 2
_STREAM_SILENT_S: Final = 60.0
"""A node says something of a stream every 10 s, whatever it waits for (adapters.http.relay.Pace): one that does not is frozen."""
_SILENT_S: Final = 3600.0
"""Of anything else nothing comes before its end. Helper and engine have bounds of their own, so this is for a frozen node too."""


class Forwarder:
    """Answers clients."""

    def __init__(self, gateway: str, catalogue: Catalogue, limits: Limits, clock: Clock) -> None:
        """Serve what `catalogue` lists; `gateway` names this process in the answers that are its own."""
        self._gateway, self._catalogue = gateway, catalogue
        self._bodies = BodyReader(limits.body_bytes, limits.held_bytes, clock)
        self._now_s = lambda: clock.monotonic_us() / 1_000_000
        self.metrics = GatewayMetrics()
        self.tracing = OFF
        self.stream_silent_s = _STREAM_SILENT_S
        """How long a node may say nothing of a stream; tests are less patient."""
        # it may be held twice: once more when its helper has failed
        self._silent_s = _SILENT_S + 2 * limits.queue_wait_s
        # nodes change their addresses: one for all of them keeps nothing of those that they have left
        self._upstream = Upstream(connections=limits.connections, per_party=True, connect_s=limits.upstream_connect_s)
        self.started = True
        """Whether it has read what it waits for at its start."""
        self.knows_all: Callable[[], bool] = lambda: True
        """Tells whether a model that is not known is served by nobody; if not, it may have to be heard of first."""
        self._in_progress: dict[NodeId, int] = {}
        self._turn = 0
        self._turns: dict[NodeId, int] = {}
        self.state: Mapping[str, object] = {}
        """What /health tells besides."""

    async def close(self) -> None:
        """Close every connection to nodes."""
        await self._upstream.close()

    @property
    def in_progress(self) -> int:
        """Return how many requests are being served."""
        return sum(self._in_progress.values())

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one request.

        Raises:
            ApiError: what the client is told instead.
        """
        if call.path == "/health":
            models = {str(model): self._catalogue.able(model) for model in self._catalogue.models()}
            status = "ok" if self.started else "starting"
            health = {"status": status, "gateway": self._gateway, "models": models, **self.state}
            return surface.document(call, self._gateway, health, status=200 if self.started else 503)
        if call.path == metrics.PATH:
            surface.allow(call, "GET")
            return metrics.answer(self.metrics.instruments, call.request, call)
        return await surface.serve(call, self._gateway, self._listing, self._complete)

    def measure(self, relaying: Callable[[], float]) -> None:
        """Show in the metrics what is going on here; `relaying`: how many lends are being passed on."""
        models = self._catalogue.models
        self.metrics.look_at(
            lambda: [((str(node),), float(count)) for node, count in sorted(self._in_progress.items())],
            lambda: [((str(model),), float(self._catalogue.able(model))) for model in models()],
            relaying,
        )

    def _listing(self) -> dict[ModelId, object]:
        return {model: _entry(model, holders) for model, holders in self._catalogue.models().items()}

    # -- work

    async def _complete(self, call: Call) -> web.StreamResponse:
        async with self._bodies.reading(call.request) as body:
            read = parse(body)
            model = read.model
            if not self._catalogue.knows(model):
                error = surface.unknown_model(model) if self.knows_all() else _not_heard_of_yet(model)
                self.metrics.refused(error)
                raise error
            client = ClientAnswer(call, self._gateway)
            headers = {**to_engine(call.request.headers), "x-request-id": call.client_id or call.id}
            tracing = self.tracing.span("gateway.request", {"gen_ai.request.model": model}, within=headers)
            try:
                with self.metrics.request(model, client, self._now_s), tracing as span:
                    node = await self._try_nodes(read, call.path, span.headers(headers), client)
                    span.set("leaseway.node", node)
                    await client.end()
                    tell_answer(span, client)
            finally:
                client.stop()
            return client.result()

    async def _try_nodes(
        self, read: ReadRequest, path: str, headers: Mapping[str, str], client: ClientAnswer
    ) -> NodeId:
        """Give the work to one node, and to a second one only if the first provably did not start it; return the last one."""
        tried: set[NodeId] = set()
        while True:
            able = self._able(read.model, tried)
            if not able:
                raise ApiError("model_unavailable", f"model {read.model}: no node can serve it now")
            holder = self._pick(able)
            tried.add(holder.node)
            more = len(able) > 1 and len(tried) < _TRIES
            self._in_progress[holder.node] = self._in_progress.get(holder.node, 0) + 1
            try:
                if await self._try_node(holder, path, read, headers, client, more=more):
                    return holder.node
            finally:
                self._leave(holder.node)

    async def _try_node(
        self,
        holder: Holder,
        path: str,
        read: ReadRequest,
        headers: Mapping[str, str],
        client: ClientAnswer,
        *,
        more: bool,
    ) -> bool:
        """Tell whether the client has been answered; if not, nothing has started."""
        silent_s = self.stream_silent_s if read.stream else self._silent_s
        try:
            answer = await self._upstream.post(holder.url + path, read.body, headers, silent_s=silent_s)
        except NotStartedError:
            if more:
                self.metrics.failed_over(holder.node)
                return False
            raise ApiError("model_unavailable", f"node {holder.node}: could not be reached") from None
        except MayHaveRunError:
            raise _node_failed(holder) from None
        if more and answer.headers.get(NOT_STARTED) == "true":
            answer.close()
            self.metrics.failed_over(holder.node)
            return False
        await self._pass_on(holder, answer, client)
        return True

    async def _pass_on(self, holder: Holder, answer: Answer, client: ClientAnswer) -> None:
        client.served_by = answer.headers.get("leaseway-served-by", holder.node)
        if request := answer.headers.get("leaseway-request"):
            # the node's own name for the request: the one that stands in every event
            client.extra["leaseway-request"] = request
        try:
            await relay(answer, client, public=None)
        except MayHaveRunError:
            await client.fail(_node_failed(holder))

    def _able(self, model: ModelId, tried: set[NodeId]) -> list[Holder]:
        return [holder for holder in self._catalogue.candidates(model) if holder.node not in tried]

    def _pick(self, able: list[Holder]) -> Holder:
        """Return the node with the fewest requests of ours in progress; of equal ones, the one whose turn is longest ago."""
        holder = min(able, key=lambda each: (self._in_progress.get(each.node, 0), self._turns.get(each.node, 0)))
        self._turn += 1
        self._turns[holder.node] = self._turn
        return holder

    def _leave(self, node: NodeId) -> None:
        self._in_progress[node] -= 1
        if not self._in_progress[node]:
            del self._in_progress[node]


def _not_heard_of_yet(model: str) -> ApiError:
    """Return the error for a model that a gateway may get to know in a moment."""
    why = "not known here yet: what nodes have said is still to be read"
    return ApiError("model_unavailable", f"model {model[:256]!r}: {why}", param="model")


def _entry(model: ModelId, holders: list[Holder]) -> dict[str, object]:
    nodes = [
        {"node": holder.node, "ready": holder.models[model].ready and not holder.leaving, "health": holder.health}
        for holder in holders
    ]
    first = holders[0].models[model]
    return {
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": "leaseway",
        "leaseway": {"lane": first.lane, "context": first.context, "nodes": nodes},
    }


def _node_failed(holder: Holder) -> ApiError:
    return ApiError("node_failed", f"node {holder.node}: failed, and the request may have run there")

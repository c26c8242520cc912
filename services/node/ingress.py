"""The client's side of a node: OpenAI's API for the models that the node owns."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec
from aiohttp import web

from adapters.http import surface
from adapters.http.body import BodyReader, ReadRequest, parse
from adapters.http.errors import ApiError
from adapters.http.headers import to_engine
from adapters.http.relay import ClientAnswer, Pace
from adapters.http.server import Call
from domain.actions import Action, CancelEngine, CancelLend, Dispatch, Lend, Refuse
from domain.catalogue.work import PICTURE_LANES
from domain.ids import ModelId, NodeId
from domain.inputs import EngineResult, NewRequest
from services.node.own_work import Served, Work, run_on_own_engine
from services.node.serving import as_error
from services.node.ticket import Ticket
from services.telemetry.tracing import OFF, tell_answer


class LendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that goes to a helper."""

    action: Lend
    work: Work
    units: int
    """Its work as it is estimated now (micro-units)."""
    rough: bool
    """Nothing was measured yet: that is a guess."""


class Lender(Protocol):
    """Sends requests to helpers (services.node.lending)."""

    async def lend(self, served: Served, ticket: Ticket, lend: LendRequest, client: ClientAnswer) -> bool:
        """Send, and pass the answer on; tell whether the client has been answered."""
        ...


class Ingress:
    """Handles clients' requests, one coroutine each, from the first byte to the last."""

    def __init__(self, node: NodeId, models: Mapping[ModelId, Served], lender: Lender, bodies: BodyReader) -> None:
        """Serve `models`."""
        self.node, self._models, self._lender, self._bodies = node, models, lender, bodies
        self.pace = Pace()
        """How patient streams are; tests are less so."""
        self.answered: Callable[[ModelId, float], None] = lambda _model, _after_s: None
        """Told of each answer after how many seconds its first byte left."""
        self.tracing = OFF

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one request.

        Raises:
            ApiError: what the client is told instead.
        """
        return await surface.serve(call, self.node, self._listing, self._complete)

    def _listing(self) -> dict[ModelId, object]:
        return {model: _entry(served, self.node) for model, served in sorted(self._models.items())}

    # -- work

    async def _complete(self, call: Call) -> web.StreamResponse:
        async with self._bodies.reading(call.request) as body:
            read = parse(body)
            served = self._models.get(read.model)
            if served is None:
                raise surface.unknown_model(read.model)
            _check_lane(call.path, served)
            client = ClientAnswer(call, self.node, pace=self.pace)
            headers = {**to_engine(call.request.headers), "x-request-id": call.id}
            told = {"gen_ai.request.model": read.model, "leaseway.request": call.id, "leaseway.owner": self.node}
            try:
                with self.tracing.span("node.request", told, within=headers) as span:
                    await self._answer(call, served, read, client, span.headers(headers))
                    await client.end()
                    tell_answer(span, client)
            finally:
                client.stop()
                if client.sent:
                    self.answered(served.serving.id, client.first_byte_s)
            return client.result()

    async def _answer(
        self, call: Call, served: Served, read: ReadRequest, client: ClientAnswer, headers: Mapping[str, str]
    ) -> None:
        new = served.sizes.describe(call.id, read)
        work = Work(
            read=read,
            path=call.path,
            headers=headers,
            ask_usage=read.stream and not read.stream_options and served.sizes.would_learn(read),
            measured=partial(_measured, served, read),
        )
        ticket = served.serving.submit(new)
        if read.stream:
            client.keep_alive()
        try:
            await self._follow(served, ticket, work, new, client)
        finally:
            served.sizes.forget(call.id)
            served.serving.close(call.id)

    async def _follow(self, served: Served, ticket: Ticket, work: Work, new: NewRequest, client: ClientAnswer) -> None:
        """Do what the machines say until the client has been answered."""
        while True:
            match await self._next(served, ticket):
                case Dispatch():
                    result = await run_on_own_engine(served, ticket, work, client, served.serving.client_gone)
                    if result.complete:
                        return
                case Lend() as action:
                    lend = LendRequest(
                        action=action,
                        work=work,
                        units=served.sizes.work_by_now(work.read) or new.work,
                        rough=served.sizes.is_rough,
                    )
                    if await self._lender.lend(served, ticket, lend, client):
                        return
                case Refuse() as refuse:
                    await client.fail(as_error(refuse))
                    return
                case CancelEngine() | CancelLend():
                    continue  # the work has been broken off by its coming
                case other:
                    raise AssertionError(f"request {ticket.request}: {other} is not for an owner")

    async def _next(self, served: Served, ticket: Ticket) -> Action:
        """Return what the machines say next; until then, unless they have said it already, the request is held."""
        if ticket.is_told:
            return ticket.take()
        told = {"gen_ai.request.model": served.serving.id, "leaseway.request": ticket.request}
        with self.tracing.span("node.held", told) as span:
            action = await ticket.next()
            span.set("leaseway.wait_reason", "helper" if ticket.was_kept else "slot")
            span.set("leaseway.next", type(action).__name__.lower())
            return action


def _measured(served: Served, read: ReadRequest, result: EngineResult) -> int:
    """Learn from an answer, tell what else follows from it, and return the request's own work by now."""
    served.sizes.learn(read, result)
    if sizes := served.sizes.sized():
        served.serving.resize(sizes)
    return served.sizes.work_by_now(read)


def _check_lane(path: str, served: Served) -> None:
    model = served.serving.model
    if path == surface.PICTURES_PATH and model.lane not in PICTURE_LANES:
        rule = f"is of lane {model.lane}; {path} needs one that draws"
        raise ApiError("invalid_model", f"model {model.id}: {rule}", param="model")


def _entry(served: Served, node: NodeId) -> dict[str, object]:
    model = served.serving.model
    return {
        "id": model.id,
        "object": "model",
        "created": 0,
        "owned_by": "leaseway",
        "leaseway": {"node": node, "lane": model.lane, "context": model.context, "ready": served.serving.ready},
    }

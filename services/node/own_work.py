"""Runs a request on the node's own engine: own or borrowed, it is the same work."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from adapters.http.body import ReadRequest
from adapters.http.relay import ClientAnswer, relay
from adapters.http.rewrite import request_for_engine
from domain.errors import MayHaveRunError, NotStartedError
from domain.ids import RequestId
from domain.inputs import EngineResult
from services.node.engine_life import EngineLife
from services.node.serving import ModelServing
from services.node.sizes import Sizes
from services.node.ticket import Ticket
from services.telemetry.tracing import OFF, Span, Tracing

NOT_STARTED: Final = EngineResult(status=0, complete=False, not_started=True)
_NOT_UNDERSTOOD: Final = frozenset({400, 422})
BROKEN: Final = EngineResult(status=0, complete=False, code="engine_failed")


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its machines and its engine."""

    serving: ModelServing
    life: EngineLife
    sizes: Sizes
    tracing: Tracing = OFF


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do."""

    read: ReadRequest
    path: str
    """Of the engine's API: /v1/chat/completions, ..."""
    headers: Mapping[str, str]
    """Those that the engine gets."""
    ask_usage: bool = False
    """Have the engine state what a stream used; the client is not told."""
    measured: Callable[[EngineResult], int]
    """Told how the request left the engine, before its machines are; says what its work is by now (EngineResult.work)."""


async def run_on_own_engine(
    served: Served, ticket: Ticket, work: Work, client: ClientAnswer, gone: Callable[[RequestId], None]
) -> EngineResult:
    """Give the request to the engine and its answer to the client; tell the machines once how it left, and return that.

    The next action of the ticket breaks the work off. `gone` is called if whoever asked has left: this is cancelled, or what it
    writes does not arrive.
    However this ends, the connection to the engine is closed or idle.
    """
    result = BROKEN
    told = {"gen_ai.request.model": served.serving.id, "leaseway.request": ticket.request}
    try:
        with served.tracing.span("engine.generate", told) as span:
            async with ticket.working():
                result = await _ask(served, msgspec.structs.replace(work, headers=span.headers(work.headers)), client)
            _tell(span, result)
    except (asyncio.CancelledError, ConnectionError):
        # of an engine's connections the port speaks otherwise: this one is the client's
        gone(ticket.request)
        raise
    finally:
        try:
            result = msgspec.structs.replace(result, work=work.measured(result))
        finally:  # whatever measuring came to, the engine has room again
            served.serving.engine_finished(ticket.request, result)
    if result.not_started or not result.complete:
        served.life.suspect()
    return result


def _tell(span: Span, result: EngineResult) -> None:
    span.set("http.response.status_code", result.status)
    span.set("gen_ai.usage.input_tokens", result.tokens_in)
    span.set("gen_ai.usage.output_tokens", result.tokens_out)
    if not result.complete:
        span.fail("engine_not_started" if result.not_started else result.code or "engine_failed")
    elif result.status >= 500:
        span.fail("engine_error")


async def _ask(served: Served, work: Work, client: ClientAnswer) -> EngineResult:
    engine, model = served.life.engine, served.serving.model
    if engine is None:
        return NOT_STARTED
    local_id, asks = model.local_id or model.id, work.ask_usage and served.life.tells_usage
    try:
        reply = await engine.complete(work.path, request_for_engine(work.read, local_id, ask_usage=asks), work.headers)
        if asks and reply.status in _NOT_UNDERSTOOD:
            # it has not begun; whether the question was at fault shows when the request comes as its client wrote it
            reply.close()
            reply = await engine.complete(work.path, request_for_engine(work.read, local_id), work.headers)
            served.life.tells_usage, asks = reply.status != 200, False
        done = await relay(reply, client, public=served.serving.id, addresses=(engine.address,), hide_usage=asks)
    except NotStartedError:
        return NOT_STARTED
    except MayHaveRunError:
        return BROKEN
    return EngineResult(status=done.status, tokens_in=done.usage.tokens_in, tokens_out=done.usage.tokens_out)

"""The master's HTTP surface: health, and the state for people. Read only, loopback by default."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from adapters.http.errors import ApiError
from adapters.http.hosts import Hosts
from domain.ids import NodeId
from domain.master import breaker, slots
from domain.master.control import setting
from domain.master.fits import cost_us, unit_q64
from domain.master.state import Node, State, owner_key, split_key
from services.master.loop import MasterLoop

TOKEN = 1_000_000
"""One token of work, in micro-units."""


def application(
    loop: MasterLoop, preflight: Path, hosts: Hosts | None = None, *, connected: Callable[[], bool] = lambda: True
) -> web.Application:
    """Return the application.

    `preflight` is the file with what provisioning found about the bus, `hosts` has its names, `connected` tells whether there is
    a connection to the bus.
    """

    async def health(request: web.Request) -> web.Response:
        del request
        position = loop.history.position
        body = {
            "status": loop.mode,
            "doubt": loop.doubt,
            "behind": loop.behind,
            "generation": position.generation,
            "version": position.version,
            "term": loop.state.term,
            "policy": loop.state.policy,
            "feed": loop.feed_trouble,
            "bus_connected": connected(),
            "bus": _bus(preflight),
        }
        return _json(body, status=200 if loop.mode in {"active", "standby"} else 503)

    async def state(request: web.Request) -> web.Response:
        del request
        return _json(describe(loop))

    app = web.Application(middlewares=[_with_typed_errors, *([_answering_to(hosts)] if hosts is not None else [])])
    app.router.add_get("/health", health)
    app.router.add_get("/admin/v1/state", state)
    return app


@web.middleware
async def _with_typed_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer to what is not served as every other process does."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return ApiError("not_found", "served are /health, /admin/v1/state, /metrics").response()
    except web.HTTPMethodNotAllowed:
        return ApiError("method_not_allowed", "only GET is served here").response()


def _answering_to(hosts: Hosts) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        try:
            hosts.check(request.headers)
        except ApiError as error:
            return error.response()
        return await handler(request)

    return check


def _bus(preflight: Path) -> dict[str, Any] | None:
    """Return the last preflight's report, whose findings are empty if all is well; None if nobody provisioned from here."""
    try:
        report: dict[str, Any] = msgspec.json.decode(preflight.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return report


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def describe(loop: MasterLoop) -> dict[str, Any]:
    """Return the whole state as people read it: nodes, links, leases, each in id order."""
    state, position = loop.state, loop.history.position
    return {
        "generation": position.generation,
        "version": position.version,
        "digest": position.digest,
        "term": state.term,
        "policy": state.policy,
        "mode": loop.mode,
        "safe_mode": loop.mode == "safe_mode",
        "doubt": loop.doubt,
        "now_us": state.now_us,
        "nodes": [_node(state, name) for name in sorted({*state.nodes, *state.control.roster})],
        "links": [msgspec.to_builtins(state.control.links[link]) for link in sorted(state.control.links)],
        "leases": [_lease(state, link) for link in sorted(state.leases)],
        "breakers": breakers(state),
    }


def breakers(state: State) -> list[dict[str, Any]]:
    """Return the helper models to which nothing, or one request at a time, is lent since they failed; the others are closed."""
    told = []
    for key, each in sorted(state.breakers.items()):
        name, model = split_key(key)
        until_us = breaker.ends_us(each)
        times = {"since_us": each.since_us, "until_us": until_us}
        told.append({"node": name, "model": model, "state": each.state, "failures": each.failures, **times})
    return told


def rooms(node: Node) -> dict[str, dict[str, Any]]:
    """Return what each runtime that models of a node share holds, by the runtime's name, as the master sees it."""
    return {
        name.removeprefix("="): {
            "models": room.models,
            "resident": room.resident or None,
            "loading": room.loading or None,
            "loading_cause": room.cause if room.loading else "",
            "loading_since_us": room.since_us if room.loading else None,
            "displaced": room.displaced or None,
        }
        for name, room in sorted(node.rooms.items())
        if name.startswith("=")
    }


def _node(state: State, name: NodeId) -> dict[str, Any]:
    node = state.nodes.get(name, Node())
    enrolled = state.control.roster.get(name)
    return {
        "node": name,
        "url": node.url or (enrolled.url if enrolled is not None else ""),
        "enrolled": enrolled is not None,
        "retired": enrolled is not None and enrolled.retired,
        "registered": bool(node.incarnation),
        "health": node.health if node.incarnation else "never_registered",
        "silent_us": node.silent_us,
        "incomplete": node.incomplete,
        "late": node.late,
        "draining": node.draining,
        "depth": node.depth,
        "incarnation": node.incarnation,
        "models": [_model(state, name, node, model) for model in sorted(node.models)],
        "rooms": rooms(node),
    }


def _model(state: State, name: NodeId, node: Node, model: Any) -> dict[str, Any]:
    info = node.models[model]
    key = owner_key(name, model)
    queue = state.queues.get(key)
    fit = state.fits.get(key)
    window_us = setting(state.control, "scheduling_sample_window")
    measured = fit.measured(state.now_us, window_us) if fit is not None else None
    return {
        "id": model,
        "local_id": info.local_id,
        "lane": info.lane,
        "engine": info.engine,
        "slots": info.slots,
        "context": info.context,
        "hash": info.hash,
        "capabilities": list(info.capabilities),
        "ready": info.ready,
        "not_accepting": node.not_accepting.get(model, ""),
        "held": len(queue.held) if queue is not None else 0,
        "in_engine": len(queue.engine) if queue is not None else 0,
        "lent": len(queue.lent) if queue is not None else 0,
        "samples": measured.samples if measured is not None else 0,
        "token_us": cost_us(unit_q64(measured.level), TOKEN) if measured is not None else None,
    }


def _lease(state: State, link: Any) -> dict[str, Any]:
    lease = state.leases[link]
    event = lease.event
    return {
        "link": link,
        "owner": event.owner,
        "owner_model": event.owner_model,
        "helper": event.helper,
        "helper_model": event.helper_model,
        "lease": event.lease,
        "slots": event.slots,
        "out": slots.count_open(state, slots.use_key(link, event.owner, event.helper)),
        "age_us": state.now_us - lease.granted_us,
        "ttl_us": event.ttl_us,
        "job_us": event.job_us,
        "switch_us": event.switch_us,
        "gain_us": event.gain_us,
        "source": event.source,
        "reason": event.reason,
    }

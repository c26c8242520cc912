"""A node put together: its models, its machines, its surfaces, and what it says of itself."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from adapters.decisions import DecisionReader, SignedDecision
from adapters.http.body import BodyReader
from adapters.http.errors import ApiError
from adapters.http.server import Call, Deadlines, HttpServer
from adapters.keys import Credentials, Signer
from domain.actions import OrderKey
from domain.control.view import ControlView
from domain.events import (
    Basis,
    DeskState,
    Fact,
    Loaded,
    ModelInfo,
    NodeSnapshot,
    OpenRequest,
    QueueState,
    Registered,
    Witness,
)
from domain.events.decision import LeaseChecked, LeaseEvent, LinkWord, SafeModeLeft
from domain.ids import ModelId, NodeId
from domain.ports import Clock
from services import lend_head
from services.config import Config
from services.hosts import of_clients
from services.lend_check import LendCheck, Shown
from services.node.desk import Desk
from services.node.grants import LeaseCopies
from services.node.ingress import Ingress
from services.node.lending import HttpLender
from services.node.metrics import NodeMetrics
from services.node.models import Models
from services.node.own_work import Served
from services.relaying import Relay
from services.telemetry import answer as metrics
from services.telemetry.tracing import OFF, Tracing

VERSION: Final = "0.1.0"
_SNAPSHOT_PART: Final = 150
"""Requests in one part of a snapshot: under 64 KiB each."""

Say = Callable[[Fact], Basis]
"""States a fact of the node."""


class Node:
    """Everything of a node but its wires to the bus (services.node.wires)."""

    def __init__(
        self,
        config: Config,
        credentials: Credentials,
        clock: Clock,
        *,
        deadlines: Deadlines | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        """Prepare a node; nothing runs yet."""
        self.id = NodeId(config.node.id)
        self.config, self.clock = config, clock
        self.cluster = credentials.cluster
        self.view = ControlView()
        self.copies = LeaseCopies()
        self.reader = DecisionReader(credentials.cluster, credentials.master_public)
        self.witness: Witness | None = None
        self.draining = False
        self.bus_state: Callable[[], dict[str, object]] = dict
        """What /health tells of the bus."""
        self._told: tuple[ModelInfo, ...] = ()
        """What the newest registration says of the models."""
        self._say: Say | None = None
        self._early: list[Fact] = []
        self._url = ""
        limits = config.http.limits
        self._fleet = Models(config, self.view, self.state, clock, tracing)
        self.models = self._fleet.by_id
        self.metrics = NodeMetrics(self.models, lambda: self.draining)
        signer = Signer(credentials.nkey_seed)
        self.lender = HttpLender(self.id, signer, self.copies, limits, clock, relays=config.node.relays)
        bodies = BodyReader(limits.body_bytes, limits.held_bytes, clock)
        self.ingress = Ingress(self.id, self.models, self.lender, bodies)
        self.ingress.answered = self.metrics.answered
        self.ingress.tracing = self.lender.tracing = tracing
        check = LendCheck(self.view, self.reader, limits.body_bytes)
        self.desk = Desk(self.id, self.models, self.view, check, self.copies, bodies, clock)
        self.desk.tracing = tracing
        self.relay = Relay(self.id, check, self._is_over, connect_s=limits.upstream_connect_s)
        self.server = HttpServer(
            self.serve,
            connections_max=limits.connections,
            deadlines=deadlines,
            served_by=self.id,
            hosts=of_clients(config),
        )

    # -- what it says

    def state(self, fact: Fact) -> None:
        """State a fact; what comes before `registered` waits for it."""
        self.metrics.fact(fact)
        if self._say is None:
            self._early.append(fact)
            return
        self._say(fact)
        if isinstance(fact, Loaded):
            # not in between the facts of one input: a snapshot tells what all of them have changed
            asyncio.get_running_loop().call_soon(self._tell_what_engines_tell)

    def register(self, say: Say, url: str) -> None:
        """Say `registered` as the first fact, then what has happened already; from now on facts go to `say`."""
        self._url = url
        self.lender.known_at(url)
        say(self._registration())
        self._say, early = say, self._early
        self._early = []
        for fact in early:
            say(fact)

    def _registration(self) -> Registered:
        self._told = tuple(_info(served) for served in self.models.values())
        return Registered(
            url=self._url,
            models=self._told,
            version=VERSION,
            depth=self.config.node.depth,
            witness=self.witness,
        )

    def _introduce_again(self, reason: str) -> None:
        """Tell the master all that it cannot know, or knows otherwise, from the facts so far."""
        if self._say is not None:
            self.state(self._registration())
            self.snapshot(reason)

    def _tell_what_engines_tell(self) -> None:
        """Register again if an engine that came up has another context window than the one that was told."""
        told = {info.id: info.context for info in self._told}
        now = {model: context_of(served) for model, served in self.models.items()}
        if now != told and not self.draining:
            self._introduce_again("context")

    def snapshot(self, reason: str) -> None:
        """State all open requests, in parts, then which models take borrowed work."""
        queues, desks = [], []
        for served in self.models.values():
            queue, desk = served.serving.runtime.snapshot(self.clock.monotonic_us())
            queues += [msgspec.structs.replace(queue, requests=share) for share in _shares(queue.requests)]
            desks += [msgspec.structs.replace(desk, requests=share) for share in _shares(desk.requests)]
        shares: Sequence[QueueState | DeskState] = [*queues, *desks] or [QueueState(model=ModelId(""), requests=())]
        for at, share in enumerate(shares, 1):
            self.state(
                NodeSnapshot(
                    part=at,
                    parts=len(shares),
                    queues=(share,) if isinstance(share, QueueState) and share.requests else (),
                    desks=(share,) if isinstance(share, DeskState) and share.requests else (),
                    reason=reason,
                    accepting=not self.draining,
                    runtimes=self._fleet.runtimes() if at == len(shares) else (),
                )
            )
        for served in self.models.values():
            if (welcome := served.serving.runtime.announced()) is not None:
                self.state(welcome)

    # -- what it hears

    @property
    def depth(self) -> int:
        """Return how many requests a linked model's engine is given."""
        return self._fleet.depth

    def control_changed(self) -> None:
        """Pass on what the view says now of links and settings."""
        self._fleet.control_changed()
        self.copies.forget_gone(lambda link: self.view.link(link) is not None, self.clock.monotonic_us())

    def decided(self, signed: SignedDecision, sent_at_us: Callable[[Basis], int | None]) -> None:
        """Take a decision of the master."""
        known = self.witness
        self._see(signed)
        event = signed.lease
        if event is None:
            if signed.word is not None:
                self._take_word(signed.word, signed.order)
            elif isinstance(signed.decision, SafeModeLeft) and (known is None or known.generation < signed.generation):
                self._introduce_again("generation")
            return
        newer = self.copies.take(signed, self.clock.monotonic_us())
        if event.owner == self.id and newer:
            self._take_lease(event, signed, sent_at_us(event.basis))

    def _take_lease(self, event: LeaseEvent, signed: SignedDecision, basis_sent_us: int | None) -> None:
        served = self.models.get(event.owner_model)
        if served is not None:
            served.serving.take_lease(event, signed.order, basis_sent_us)

    def _take_word(self, word: LinkWord, order: OrderKey) -> None:
        """Give what else the master says of a link to its owner; to the helper if that is asked something."""
        if word.owner == self.id and word.owner_model in self.models:
            self.models[word.owner_model].serving.take_word(word, order)
        if isinstance(word, LeaseChecked) and word.helper == self.id and word.helper_model in self.models:
            self.models[word.helper_model].serving.take_word(word, order)

    def _see(self, signed: SignedDecision) -> None:
        generation, version, _ = signed.order
        if self.witness is None or (generation, version) > (self.witness.generation, self.witness.version):
            self.witness = Witness(generation=signed.generation, version=version, signed=signed.body.decode())

    # -- its life

    def engines(self) -> list[Coroutine[Any, Any, None]]:
        """Return what keeps the engines, to be run until the node ends."""
        return self._fleet.engines()

    async def engines_settled(self, timeout_s: float) -> None:
        """Return once it is known of every engine that is to be there at the start, or after `timeout_s`."""
        await self._fleet.settled(timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and end what is here; tell whether all of it ended within `timeout_s`."""
        self.draining = True
        servings = [served.serving for served in self.models.values()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(serving.drain() for serving in servings), self.relay.drained())
        except TimeoutError:
            for serving in servings:
                serving.break_off()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.gather(*(serving.drain() for serving in servings))
            return False
        return True

    async def close(self) -> None:
        """Close every connection."""
        await self.server.stop()
        await self.lender.close()
        await self.relay.close()
        self._fleet.stop()

    # -- its surfaces

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one request, of a client or of another node."""
        if call.path.startswith("/v1/"):
            return await self.ingress.serve(call)
        if call.path.startswith(lend_head.PREFIX + "/") and call.request.method == "POST":
            return await self.desk.serve(call)
        if call.path.startswith(lend_head.RELAY_PREFIX + "/") and call.request.method == "POST":
            return await self.relay.serve(call)
        if call.request.method == "GET" and call.path in {"/health", "/cluster/v1/status"}:
            return self._tell(call, self._health() if call.path == "/health" else self._status())
        if call.request.method == "GET" and call.path == metrics.PATH:
            return metrics.answer(self.metrics.instruments, call.request, call)
        raise ApiError("not_found", f"no such path: {call.path[:200]}")

    def _is_over(self, shown: Shown) -> bool:
        return self.copies.is_over(shown.head.link, shown.head.lease, shown.grant.order)

    def _tell(self, call: Call, document: object) -> web.Response:
        headers = {"Content-Type": "application/json", "leaseway-served-by": self.id, **call.id_headers()}
        return web.Response(body=msgspec.json.encode(document), headers=headers)

    def _health(self) -> dict[str, object]:
        ready = self._fleet.able()
        status = "draining" if self.draining else "ok" if all(ready.values()) else "degraded"
        return {"status": status, "node": self.id, "models": ready, "bus": self.bus_state()}

    def _status(self) -> dict[str, object]:
        models = [self._model_status(served) for _, served in sorted(self.models.items())]
        seen = self.witness
        witness = {"generation": seen.generation, "version": seen.version} if seen is not None else None
        runtimes = msgspec.to_builtins(self._fleet.runtimes())
        more = {"depth": self.depth, "witness": witness, "runtimes": runtimes, "queues": models}
        return {**self._health(), "version": VERSION, **more}

    def _model_status(self, served: Served) -> dict[str, object]:
        serving = served.serving
        queue, desk = serving.runtime.snapshot(self.clock.monotonic_us())
        return {
            "model": serving.id,
            "ready": serving.ready,
            "counts": msgspec.to_builtins(serving.runtime.counts()),
            "requests": [
                {**msgspec.to_builtins(request), **msgspec.structs.asdict(serving.told_of(request.request))}
                for request in queue.requests
            ],
            "borrowed": msgspec.to_builtins(desk.requests),
        }


def _info(served: Served) -> ModelInfo:
    model = served.serving.model
    return ModelInfo(
        id=ModelId(model.id),
        local_id=model.local_id or model.id,
        lane=model.lane,
        engine=model.engine,
        slots=model.slots,
        context=context_of(served),
        hash=model.hash,
        capabilities=model.capabilities,
        ready=served.serving.ready,
        runtime=model.runtime,
    )


def context_of(served: Served) -> int:
    """Return the context window of a model in tokens: what is stated, else what its engine told last; 0 if neither."""
    return served.serving.model.context or served.life.context


def _shares(requests: tuple[OpenRequest, ...]) -> list[tuple[OpenRequest, ...]]:
    """Return `requests` in parts that fit a message each."""
    return [requests[at : at + _SNAPSHOT_PART] for at in range(0, len(requests), _SNAPSHOT_PART)]

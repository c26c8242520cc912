"""Which nodes hold which models, folded from what nodes say of themselves; kept on disk, so that it outlives the bus."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from domain.events import (
    Draining,
    Event,
    Loaded,
    LoadFailed,
    NodeHealthChanged,
    NodeRetired,
    Registered,
    Restored,
    Stopped,
    Unloaded,
)
from domain.ids import Incarnation, ModelId, NodeId

_LOG: Final = logging.getLogger("leaseway.gateway")
_BAD_HEALTH: Final = frozenset({"unhealthy", "offline"})


class HeldModel(msgspec.Struct, kw_only=True):
    """A model at one node."""

    lane: str
    context: int
    ready: bool
    loads: bool = False
    """It shares its runtime with others, and is loaded when it is asked for."""


class Holder(msgspec.Struct, kw_only=True):
    """A node as the gateway knows it."""

    node: NodeId
    url: str
    incarnation: Incarnation
    models: dict[ModelId, HeldModel]
    leaving: bool = False
    """It drains or has stopped."""
    health: str = "healthy"
    registered_ns: int = 0
    """When it said so, by the server's clock."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    holders: tuple[Holder, ...] = ()


class Catalogue:
    """The fold. Events of one node must come in order."""

    def __init__(self, path: Path) -> None:
        """Begin with what an earlier process kept at `path`; a file that cannot be read is left out."""
        self._path = path
        self._holders: dict[NodeId, Holder] = {}
        self._health: dict[NodeId, tuple[int, str]] = {}
        """When what was said last of a node's health, which may be heard before the node is."""
        self._now_ns = 0
        self.changed = False
        """Something is not on disk yet."""
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            _LOG.warning("catalogue_unreadable", extra={"path": str(path), "why": str(error)})
            return
        self._holders = {holder.node: holder for holder in stored.holders}

    def apply(self, node: NodeId, incarnation: Incarnation, event: Event, *, at_ns: int | None = None) -> None:
        """Fold one event about `node`; what an older life of it said last changes nothing.

        `at_ns`: its stamp, as events of several streams come in any order; None: after all that came before.
        """
        self._now_ns = at_ns if at_ns is not None else self._now_ns + 1
        match event:
            case Registered():
                self._register(node, incarnation, event)
            case NodeRetired():
                self._holders.pop(node, None)
                self._health.pop(node, None)
            case NodeHealthChanged():
                self._health[node] = self._now_ns, event.state
                holder = self._holders.get(node)
                if holder is not None and holder.registered_ns < self._now_ns:
                    holder.health = event.state
            case Loaded() | Restored():
                self._set_ready(node, incarnation, event.model, ready=True)
            case LoadFailed() | Unloaded():
                self._set_ready(node, incarnation, event.model, ready=False)
            case Draining() | Stopped():
                holder = self._living(node, incarnation)
                if holder is not None:
                    holder.leaving = True
            case _:
                return
        self.changed = True

    def models(self) -> dict[ModelId, list[Holder]]:
        """Return who holds each model that any node has registered, in order of ids, whether or not it can serve now."""
        found: dict[ModelId, list[Holder]] = {}
        for node in sorted(self._holders):
            for model in self._holders[node].models:
                found.setdefault(model, []).append(self._holders[node])
        return dict(sorted(found.items()))

    def knows(self, model: ModelId) -> bool:
        """Tell whether any node has registered `model`."""
        return any(model in holder.models for holder in self._holders.values())

    def candidates(self, model: ModelId) -> list[Holder]:
        """Return the nodes that can serve `model` now, in order of id.

        Nodes that would have to load it first come into it only when it is ready nowhere, and nodes of bad health only when
        there is no other: the judgement may be older than the node's recovery.
        """
        holders = self._holders.values()
        able = [holder for holder in holders if not holder.leaving and model in holder.models]
        ready = [holder for holder in able if holder.models[model].ready]
        loading = [holder for holder in able if holder.models[model].loads]
        return _by_id(_sound(ready) or _sound(loading) or ready or loading)

    def able(self, model: ModelId) -> int:
        """Return how many nodes can serve `model` now: one of bad health is asked if there is no other, but not counted."""
        return len(_sound(self.candidates(model)))

    async def save(self) -> None:
        """Keep the catalogue on disk, whole or not at all."""
        self.changed = False
        body = msgspec.json.encode(_Stored(holders=tuple(_by_id(self._holders.values()))))
        try:
            await asyncio.to_thread(_replace, self._path, body)
        except OSError as error:
            _LOG.warning("catalogue_not_kept", extra={"path": str(self._path), "why": str(error)})

    def _register(self, node: NodeId, incarnation: Incarnation, event: Registered) -> None:
        # who registers is well, unless the master has found otherwise since
        said_ns, state = self._health.get(node, (0, "healthy"))
        self._holders[node] = Holder(
            health=state if said_ns > self._now_ns else "healthy",
            registered_ns=self._now_ns,
            node=node,
            url=event.url.rstrip("/"),
            incarnation=incarnation,
            models={
                info.id: HeldModel(lane=info.lane, context=info.context, ready=info.ready, loads=bool(info.runtime))
                for info in event.models
            },
        )

    def _living(self, node: NodeId, incarnation: Incarnation) -> Holder | None:
        holder = self._holders.get(node)
        return holder if holder is not None and holder.incarnation == incarnation else None

    def _set_ready(self, node: NodeId, incarnation: Incarnation, model: ModelId, *, ready: bool) -> None:
        holder = self._living(node, incarnation)
        if holder is not None and model in holder.models:
            holder.models[model].ready = ready


def _sound(holders: Iterable[Holder]) -> list[Holder]:
    return [holder for holder in holders if holder.health not in _BAD_HEALTH]


def _by_id(holders: Iterable[Holder]) -> list[Holder]:
    return sorted(holders, key=lambda holder: holder.node)


def _replace(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".tmp")
    draft.write_bytes(body)
    draft.replace(path)

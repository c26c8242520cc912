"""A master's life, measured: what it decides and stores as it does, and what it holds when somebody asks."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web

from domain.errors import BusError
from domain.events import OwnerPlanned, codec
from domain.events.commit import Commit
from domain.master import slots
from domain.master.state import Node, State
from domain.master.step import Range
from domain.ports import Stream
from domain.subjects import CONTROL, EVENTS
from services.master.http import breakers
from services.master.loop import MasterLoop, Parts
from services.telemetry import answer
from services.telemetry.instruments import Instruments, Labels

MODES: Final = ("starting", "standby", "active", "safe_mode")
LEFT_OUT: Final = "left_out"
_BUS_S: Final = 1.0
_US: Final = 1_000_000


class MeasuredLoop(MasterLoop):
    """A master that measures its steps."""

    def __init__(self, parts: Parts, bus_connected: Callable[[], bool]) -> None:
        """Begin with nothing counted."""
        super().__init__(parts)
        self.metrics = answer.instruments("master")
        self.last = {EVENTS: -1, CONTROL: -1}
        """Last sequence of each stream when somebody asked last; -1 if the bus did not say."""
        self.metrics.state("leaseway_bus_connected", bus_connected)
        _look_at(self.metrics, self)

    def _cut(self, span: Range) -> Commit | None:
        began_us = self.parts.clock.monotonic_us()
        made = super()._cut(span)
        self.metrics.observe("leaseway_plan_seconds", (self.parts.clock.monotonic_us() - began_us) / _US)
        return made

    async def _store(self, made: Commit) -> None:
        began_us = self.parts.clock.monotonic_us()
        await super()._store(made)
        self.metrics.observe("leaseway_commit_seconds", (self.parts.clock.monotonic_us() - began_us) / _US)
        count(self.metrics, made)

    async def answer(self, request: web.Request) -> web.Response:
        """Return every metric; it asks the bus how long the streams are, and does not wait long for that."""
        streams = self.parts.streams
        self.last[EVENTS], self.last[CONTROL] = await asyncio.gather(_last(streams.events), _last(streams.control))
        return answer.answer(self.metrics, request)


def count(measured: Instruments, stored: Commit) -> None:
    """Count what a stored commit decided."""
    measured.add("leaseway_commits_total")
    for decision in stored.decisions:
        measured.add("leaseway_decisions_total", codec.tag_of(decision))
        if isinstance(decision, OwnerPlanned):
            for verdict in decision.verdicts:
                measured.add("leaseway_verdicts_total", verdict.outcome, verdict.code)
            for code, candidates in decision.left_out:
                measured.add("leaseway_verdicts_total", LEFT_OUT, code, by=candidates)


async def _last(stream: Stream) -> int:
    try:
        async with asyncio.timeout(_BUS_S):
            return (await stream.bounds()).last
    except (BusError, TimeoutError):
        return -1


def _look_at(measured: Instruments, loop: MeasuredLoop) -> None:
    measured.read("leaseway_master_mode", lambda: [((mode,), float(loop.mode == mode)) for mode in MODES])
    measured.state("leaseway_safe_mode", lambda: loop.mode == "safe_mode")
    measured.state("leaseway_term", lambda: loop.state.term)
    measured.state("leaseway_version", lambda: loop.history.position.version)
    measured.state("leaseway_feed_ok", lambda: not loop.feed_trouble)
    measured.read("leaseway_master_lag_messages", lambda: _lag(loop))
    measured.state("leaseway_cluster_leases", lambda: sum(1 for _ in _slots(loop.state)))
    measured.state("leaseway_cluster_lease_slots", lambda: sum(_slots(loop.state)))
    measured.state("leaseway_cluster_requests_out", lambda: _out(loop.state))
    measured.read("leaseway_breaker_open", lambda: _breakers(loop.state))
    measured.read("leaseway_node_health", lambda: _health(loop.state))


def _lag(loop: MeasuredLoop) -> Iterator[tuple[Labels, float]]:
    position = loop.history.position
    for stream, folded in ((EVENTS, position.hi), (CONTROL, position.chi)):
        last = loop.last[stream]
        yield (stream,), float(max(0, last - folded) if last >= 0 else -1)


def _slots(state: State) -> Iterator[int]:
    return (lease.event.slots for lease in state.leases.values() if lease.event.slots > 0)


def _out(state: State) -> int:
    return sum(slots.count_open(state, key) for key in state.uses)


def _breakers(state: State) -> Iterator[tuple[Labels, float]]:
    for each in breakers(state):
        if each["state"] != "closed":
            yield (each["node"], each["model"], each["state"]), 1.0


def _health(state: State) -> Iterator[tuple[Labels, float]]:
    for name in sorted(state.control.roster):
        node = state.nodes.get(name, Node())
        yield (name, node.health if node.incarnation else "never_registered"), 1.0

"""A node's wires to the bus: its facts out, control and decisions in, a heartbeat each second. The node serves without them."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from adapters.clock import new_incarnation
from adapters.decisions import unsigned_lease
from adapters.keys import Credentials
from adapters.log.producer import Producer
from adapters.log.spool import Spool
from adapters.log.witness import FileWitnessBook
from adapters.nats.connection import Bus
from adapters.nats.follower import NatsFollower
from domain.errors import BusError, HistoryError
from domain.events import LeaseRefused, Witness, codec
from domain.ports import Clock, Witnessed
from domain.subjects import CONTROL, DECISIONS, EVENTS, heartbeat_subject, root
from services.config import Config
from services.following import Taken
from services.node.node import Node

_LOG: Final = logging.getLogger("leaseway.node")
BEAT_S: Final = 1.0
_AGAIN_S: Final = 1.0
_CONTROL_S: Final = 2.0
"""How long decisions wait at the start for the links that they are about: a grant of an unknown link is refused at first."""


class Wires:
    """Ties a node to a bus."""

    def __init__(self, node: Node, bus: Bus, config: Config, credentials: Credentials, clock: Clock) -> None:
        """Open the spool; nothing is sent yet."""
        self._node, self._bus, self._clock = node, bus, clock
        self.incarnation = new_incarnation()
        self.producer = Producer(
            bus.stream(EVENTS),
            cluster=credentials.cluster,
            node=node.id,
            incarnation=self.incarnation,
            mac_key=bytes.fromhex(credentials.mac_key),
            clock=clock,
            spool=Spool(config.data / "spool" / node.id),
        )
        self.producer.overflowed = lambda: node.snapshot("overflow")
        self._witness_book = FileWitnessBook(config.data / "spool" / f"{node.id}.witness.json")
        self._written: Witness | None = None
        self._was_away = not bus.connected
        self._refused_us = -1_000_000
        self._control = self._follower_of_control()
        self._control_taken = Taken()
        self._knows_control = False
        node.bus_state, node.desk.knows_control = self.state, self.knows_control
        self._measure()

    def _measure(self) -> None:
        measured, producer = self._node.metrics.instruments, self.producer
        measured.state("leaseway_bus_connected", lambda: self._bus.connected)
        measured.state("leaseway_facts_ok", lambda: producer.bus_ok)
        measured.state("leaseway_spool_bytes", lambda: producer.spooled_bytes)
        producer.acknowledged_after = lambda us: measured.observe("leaseway_publish_seconds", us / 1_000_000)

    async def load_witness(self) -> None:
        """Let the node know the newest commit that its earlier lives saw."""
        try:
            kept = await self._witness_book.read()
        except HistoryError as error:
            _LOG.warning("witness_unreadable", extra={"why": str(error)})
            return
        if kept is not None:
            self._node.witness = self._written = Witness(
                generation=kept.generation, version=kept.version, signed=kept.signed
            )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return what is to be run until the node ends."""
        return [self.producer.run(), self._follow_control(), self._follow_decisions(), self._beat()]

    def state(self) -> dict[str, object]:
        """Return what /health tells of the bus."""
        return {
            "connected": self._bus.connected,
            "ok": self.producer.bus_ok,
            "incarnation": self.incarnation,
            "pseq": self.producer.pseq,
        }

    def knows_control(self) -> bool:
        """Tell whether all that operators had decided has come once."""
        self._knows_control = self._knows_control or self._control.caught_up.is_set()
        return self._knows_control

    def _follower_of_control(self) -> NatsFollower:
        return self._bus.follower(CONTROL, [], self._node.id)

    async def _follow_control(self) -> None:
        while True:
            try:
                # core messages prove nothing, and control events are not signed: only what the stream holds is believed
                async for message in self._control.messages():
                    if message.seq and self._control_taken.is_new(message):
                        self._take_control(message.body)
            except BusError as error:
                _LOG.warning("control_not_followed", extra={"why": str(error)})
            await asyncio.sleep(_AGAIN_S)
            self.knows_control()
            self._control = self._follower_of_control()

    def _take_control(self, body: bytes) -> None:
        try:
            event = codec.decode_control(codec.decode_envelope(body).data)
        except msgspec.DecodeError as error:
            _LOG.warning("control_unreadable", extra={"why": str(error)})
            return
        self._node.view.apply(event)
        self._node.control_changed()

    async def _follow_decisions(self) -> None:
        base = root(self._node.cluster)
        leases = (f"{base}.lease.{self._node.id}.>", f"{base}.lease.*.{self._node.id}.>")
        subjects = [*leases, f"{base}.safe_mode.>"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONTROL_S):
                await self._control.caught_up.wait()
        while True:
            try:
                async for message in self._bus.follower(DECISIONS, subjects, self._node.id).messages():
                    self._take_decision(message.body)
            except BusError as error:
                _LOG.warning("decisions_not_followed", extra={"why": str(error)})
            await asyncio.sleep(_AGAIN_S)

    def _take_decision(self, body: bytes) -> None:
        signed = self._node.reader.read(body)
        if signed is not None:
            self._node.decided(signed, self.producer.sent_at_us)
        else:
            self._refuse(body)

    def _refuse(self, body: bytes) -> None:
        """Leave a trace of a forged grant, at most once a second: whoever sends them shall not fill the log."""
        now_us = self._clock.monotonic_us()
        if now_us - self._refused_us < 1_000_000:
            return
        self._refused_us = now_us
        event = unsigned_lease(body)
        _LOG.warning("decision_refused", extra={"why": "signature", "lease": event.lease if event else ""})
        if event is not None and event.owner == self._node.id and self._node.view.link(event.link) is not None:
            self._node.state(LeaseRefused(link=event.link, lease=event.lease, reason="bad_signature"))

    async def _beat(self) -> None:
        subject = heartbeat_subject(self._node.cluster, self._node.id)
        while True:
            self._bus.beat(subject)
            await self._snapshot_after_outage()
            await self._keep_witness()
            await asyncio.sleep(BEAT_S)

    async def _snapshot_after_outage(self) -> None:
        """State a snapshot once the bus is back: facts of an outage come late, and nobody plans with such a node before it."""
        if not self._bus.connected or not self.producer.bus_ok or self.producer.spoke_late:
            self._was_away, self.producer.spoke_late = True, False
        elif self._was_away and await self.producer.drained(timeout_s=BEAT_S):
            self._was_away = False
            self._node.snapshot("gap")

    async def _keep_witness(self) -> None:
        seen = self._node.witness
        if seen is None or seen == self._written:
            return
        self._written = seen
        try:
            await self._witness_book.write(
                Witnessed(generation=seen.generation, version=seen.version, digest=seen.digest, signed=seen.signed)
            )
        except OSError as error:
            _LOG.warning("witness_not_kept", extra={"why": str(error)})

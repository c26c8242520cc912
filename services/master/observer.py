"""What the active master sees besides facts, heartbeats and timers: stored as observations before anything is decided on them."""

import asyncio
import logging

from adapters.keys import derive_mac_key, mac
from adapters.nats.connection import Bus
from domain.errors import BusError
from domain.events import Due, Envelope, HeartbeatMissed, HeartbeatSeen, Input, codec
from domain.events.base import tag_of
from domain.ids import Incarnation, NodeId
from domain.master.health import OFFLINE_AFTER_US, UNHEALTHY_AFTER_US
from domain.master.state import State
from domain.ports import Clock, Stream
from domain.subjects import heartbeat_subject, observation_subject

LOG = logging.getLogger("leaseway.master")
LOOK_EVERY_S = 0.5
MASTER = NodeId("master")


class Observer:
    """Watches heartbeats and the earliest timer, and states what it saw."""

    def __init__(
        self, bus: Bus, events: Stream, cluster: str, mac_secret: str, incarnation: Incarnation, clock: Clock
    ) -> None:
        self._bus, self._events, self._cluster, self._clock = bus, events, cluster, clock
        self._key = bytes.fromhex(derive_mac_key(mac_secret, MASTER))
        self._incarnation = incarnation
        self._stated = 0
        self._seen_us: dict[str, int] = {}
        self.master_seen_us: int | None = None
        """When a master was last heard to be active (another one, while this one is standby)."""

    async def listen(self) -> None:
        """Note every heartbeat, for ever."""
        async for subject in self._bus.beats(heartbeat_subject(self._cluster, NodeId("*"))):
            name = subject.rsplit(".", 1)[1]
            if name == MASTER:
                self.master_seen_us = self._clock.monotonic_us()
            else:
                self._seen_us[name] = self._clock.monotonic_us()

    def begin(self, state: State) -> None:
        """Begin to be the active master: every node has the benefit of the doubt from now on."""
        now_us = self._clock.monotonic_us()
        for name in sorted(state.nodes):
            self._seen_us[name] = max(now_us, self._seen_us.get(name, 0))

    async def look(self, state: State) -> None:
        """Beat, and state which nodes fell silent or are back."""
        self._bus.beat(heartbeat_subject(self._cluster, MASTER))
        now_us = self._clock.monotonic_us()
        for name in sorted(state.nodes):
            silence_us = now_us - self._seen_us.setdefault(name, now_us)
            said_us = state.nodes[name].silent_us
            if silence_us < UNHEALTHY_AFTER_US:
                if said_us:
                    await self.state(state.term, HeartbeatSeen(node=name))
            elif not said_us or (said_us < OFFLINE_AFTER_US <= silence_us):
                await self.state(state.term, HeartbeatMissed(node=name, silent_us=silence_us))

    async def due(self, term: int, elapsed_us: int) -> None:
        """State that the earliest timer ran out."""
        await self.state(term, Due(elapsed_us=elapsed_us))

    async def state(self, term: int, body: Input) -> None:
        """Store an observation; one that is not taken is only late, since the next look sees the same."""
        self._stated += 1
        envelope = Envelope(
            id=f"{self._incarnation}/{self._stated}",
            source=f"/{self._cluster}/master",
            type=tag_of(body),
            cluster=self._cluster,
            producer=MASTER,
            incarnation=self._incarnation,
            pseq=str(self._stated),
            mono_us=self._clock.monotonic_us(),
            data=codec.raw(body),
        )
        encoded = codec.encode(envelope)
        tagged = codec.with_tag(encoded, "mac", mac(self._key, encoded[:-1]))
        try:
            await self._events.publish(observation_subject(self._cluster, term, body), tagged, message_id=envelope.id)
        except BusError as error:
            LOG.warning("observation_not_stored", extra={"kind": tag_of(body), "error": str(error)})


async def sleep_us(microseconds: int) -> None:
    """Sleep, at least not at all."""
    await asyncio.sleep(max(0, microseconds) / 1_000_000)

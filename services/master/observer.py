"""What the active master sees besides facts, heartbeats and timers: stored as observations before anything is decided on them."""

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
DEAF_AFTER_US = 2_000_000
"""A watcher that did not look for so long (stopped, starved) has missed beats itself."""


class Observer:
    """Watches heartbeats and the earliest timer, and states what it saw."""

    def __init__(
        self, bus: Bus, events: Stream, cluster: str, mac_secret: str, incarnation: Incarnation, clock: Clock
    ) -> None:
        self._bus, self._events, self._cluster, self._clock = bus, events, cluster, clock
        self._key = bytes.fromhex(derive_mac_key(mac_secret, MASTER))
        self._incarnation = incarnation
        self._stated = 0
        self._heard_us: dict[str, int] = {}
        self._since_us = 0
        """From here on silences count: before, it was this master that heard nothing."""
        self._looked_us = 0
        self.master_seen_us: int | None = None
        """When a master was last heard to be active (another one, while this one is standby)."""

    async def listen(self) -> None:
        """Note every heartbeat, for ever."""
        async for subject in self._bus.beats(heartbeat_subject(self._cluster, NodeId("*"))):
            name = subject.rsplit(".", 1)[1]
            if name == MASTER:
                self.master_seen_us = self._clock.monotonic_us()
            else:
                self._heard_us[name] = self._clock.monotonic_us()

    def begin(self) -> None:
        """Begin to be the active master: no silence counts that began before now."""
        self._since_us = self._looked_us = self._clock.monotonic_us()

    def beat(self) -> None:
        """Say that this master is active."""
        self._bus.beat(heartbeat_subject(self._cluster, MASTER))

    async def look(self, state: State) -> None:
        """State which nodes fell silent or are back, unless it was this master that could not hear them."""
        now_us = self._clock.monotonic_us()
        deaf = not self._bus.connected or now_us - self._looked_us > DEAF_AFTER_US
        self._looked_us = now_us
        if deaf:
            self._since_us = now_us
            return
        for name in sorted(state.nodes):
            node = state.nodes.get(name)  # what is stated below is folded while it is awaited
            seen = self._seen(name, node.silent_us, now_us) if node is not None and node.incarnation else None
            if seen is not None:
                await self.state(state.term, seen)
        self._looked_us = self._clock.monotonic_us()

    def _seen(self, name: NodeId, said_us: int, now_us: int) -> HeartbeatSeen | HeartbeatMissed | None:
        """Return what is to be said of a node, if its silence is not as was `said_us`. Only a beat that was heard ends one."""
        heard_us = self._heard_us.get(name)
        if heard_us is not None and now_us - heard_us < UNHEALTHY_AFTER_US:
            return HeartbeatSeen(node=name) if said_us else None
        silence_us = now_us - max(heard_us or 0, self._since_us)
        if silence_us >= UNHEALTHY_AFTER_US and (not said_us or said_us < OFFLINE_AFTER_US <= silence_us):
            return HeartbeatMissed(node=name, silent_us=silence_us)
        return None

    async def due(self, term: int, elapsed_us: int, since_us: int) -> None:
        """State that the earliest timer ran out: domain time has stood at `since_us` for so long."""
        await self.state(term, Due(elapsed_us=elapsed_us, since_us=since_us))

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

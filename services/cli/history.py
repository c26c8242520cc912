"""What a command reads from the streams themselves, with the operator's key of the data directory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from adapters.keys import load_credentials
from adapters.nats.connection import Bus, connect
from domain.errors import BusError
from domain.events import Envelope
from domain.events.codec import decode_decision, decode_envelope, decode_input
from domain.events.decision import LeaseEvent
from domain.events.lend import Lent
from domain.events.status import Registered
from domain.ids import NodeId
from domain.ports import Stream
from domain.subjects import DECISIONS, EVENTS
from services.cli.reach import Here

_WAIT_S = 3.0


@asynccontextmanager
async def bus_of(place: Here) -> AsyncIterator[Bus]:
    """Yield the bus of the data directory, signed in as its operator.

    Raises:
        NotYetError: the data directory has no operator's key; it was never provisioned.
        UnreachableError: no nats-server answers.
    """
    try:
        bus = await connect(place.bus_url, load_credentials(place.operator_key()), name="operator", wait_s=_WAIT_S)
    except BusError:
        raise place.no_bus() from None
    try:
        yield bus
    finally:
        await bus.close()


async def registered(bus: Bus) -> dict[NodeId, Registered]:
    """Return what each node said when it registered last, by node in order of id."""
    said: dict[NodeId, Registered] = {}
    async for envelope in stored(bus.stream(EVENTS)):
        if envelope.type == "status.registered":
            fact = decode_input(envelope.data)
            assert isinstance(fact, Registered)
            said[NodeId(envelope.producer)] = fact
    return dict(sorted(said.items()))


async def leases(bus: Bus, *, after: int = 0) -> list[LeaseEvent]:
    """Return every lease decision that was published after sequence `after` of the feed, in order."""
    found: list[LeaseEvent] = []
    async for envelope in stored(bus.stream(DECISIONS), after=after):
        if envelope.type.startswith("lease."):
            decision = decode_decision(envelope.data)
            if isinstance(decision, LeaseEvent):  # else a word on the link
                found.append(decision)
    return found


async def lent(bus: Bus, *, after: int = 0) -> list[Lent]:
    """Return every lend that was stored after sequence `after` of the facts, in order."""
    found: list[Lent] = []
    async for envelope in stored(bus.stream(EVENTS), after=after):
        if envelope.type == "lend.lent":
            fact = decode_input(envelope.data)
            assert isinstance(fact, Lent)
            found.append(fact)
    return found


async def ends_of(bus: Bus) -> tuple[int, int]:
    """Return the last sequences of the feed of decisions and of the facts."""
    return (await bus.stream(DECISIONS).bounds()).last, (await bus.stream(EVENTS).bounds()).last


async def stored(stream: Stream, *, after: int = 0) -> AsyncIterator[Envelope]:
    """Yield the envelopes that `stream` holds now, from `after` + 1 on; what is no envelope is left out."""
    bounds = await stream.bounds()
    first = max(after, bounds.first - 1)
    if bounds.last <= first:
        return
    async for batch in stream.read(after=first, until=bounds.last):
        for message in batch:
            try:
                yield decode_envelope(message.body)
            except msgspec.DecodeError:
                continue

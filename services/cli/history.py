"""What a command reads from the streams themselves, with the operator's key of the data directory."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec

from adapters.keys import load_credentials
from adapters.nats.connection import Bus, connect
from domain.control.view import ControlView
from domain.errors import BadConfigError, BusError, UnreachableError
from domain.events import Envelope
from domain.events.codec import decode_control, decode_decision, decode_envelope, decode_input
from domain.events.decision import LeaseEvent, LeaseGranted
from domain.events.status import Registered
from domain.ids import NodeId
from domain.ports import Stream
from domain.subjects import CONTROL, DECISIONS, EVENTS
from services.cli.reach import Here

_WAIT_S = 3.0


@asynccontextmanager
async def bus_of(place: Here) -> AsyncIterator[Bus]:
    """Yield the bus of the data directory, signed in as its operator.

    Raises:
        BadConfigError: the data directory has no operator's key; it was never provisioned.
        UnreachableError: no nats-server answers.
    """
    key = place.config.data / "keys" / "operator.json"
    if not key.is_file():
        raise BadConfigError(
            f"data directory {place.config.data}: has no operator's key yet; `leaseway up` or `leaseway provision` makes it"
        )
    try:
        bus = await connect(place.bus_url, load_credentials(key), name="operator", wait_s=_WAIT_S)
    except BusError:
        raise UnreachableError(f"nats-server {place.bus_url}: cannot be reached; {place.start_hint()}") from None
    try:
        yield bus
    finally:
        await bus.close()


async def control_view(bus: Bus) -> ControlView:
    """Return what the operators decided so far."""
    view = ControlView()
    async for envelope in stored(bus.stream(CONTROL)):
        try:
            view.apply(decode_control(envelope.data))
        except msgspec.DecodeError:
            continue
    return view


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
            assert isinstance(decision, LeaseEvent)
            found.append(decision)
    return found


def granted(events: list[LeaseEvent]) -> Iterator[LeaseGranted]:
    """Yield the new leases among `events`."""
    return (event for event in events if isinstance(event, LeaseGranted))


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

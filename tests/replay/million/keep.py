"""What is kept of a long life: an exported copy with every stored snapshot, the operator's key, and a note of what it is."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from adapters.headers import decode_headers
from adapters.keys import save_credentials
from adapters.log.bundle import Extra, export
from domain.ports import Stream
from domain.subjects import SNAPSHOTS
from tests.replay.million.bus import RealBus
from tests.replay.million.plan import Lived, Plan
from tests.support.nats import ServerUnderTest

HISTORY: Final = "history.zip"
KEY: Final = "operator.json"
NOTE: Final = "about.json"


async def keep(folder: Path, bus: RealBus, server: ServerUnderTest, plan: Plan, came_of_it: Lived) -> Path:
    """Write everything below `folder`; return the bundle's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / HISTORY
    states = sorted((await snapshots_of(bus.stream(SNAPSHOTS))).items())
    await export(bus.streams(), server.cluster, path, extra=Extra(software=version("leaseway"), states=states))
    save_credentials(folder / KEY, server.credentials("operator"))
    note = {"plan": plan, "came_of_it": came_of_it, "made_on_cores": os.cpu_count()}
    (folder / NOTE).write_bytes(msgspec.json.format(msgspec.json.encode(note), indent=2) + b"\n")
    return path


async def snapshots_of(stream: Stream) -> dict[int, bytes]:
    """Return version -> content of every whole snapshot in the stream."""
    bounds = await stream.bounds()
    parts: dict[tuple[int, str], dict[int, bytes]] = {}
    whole: dict[int, bytes] = {}
    if bounds.last < bounds.first:
        return whole
    async for batch in stream.read(after=bounds.first - 1, until=bounds.last):
        for message in batch:
            at, digest, number, count = decode_headers(message.headers)["Lw-Snapshot"].split(" ")
            bodies = parts.setdefault((int(at), digest), {})
            bodies[int(number)] = message.body
            if len(bodies) == int(count):
                whole[int(at)] = b"".join(bodies[each] for each in sorted(bodies))
    return whole

"""`leaseway why`: asks the projector, or NATS where it is away, and prints the story."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from adapters.clock import SystemClock
from adapters.keys import load_credentials
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.snapshots import Snapshots
from adapters.nats.connection import Bus
from domain.errors import UnreachableError
from domain.ids import ModelId, NodeId
from domain.master.state import State
from domain.subjects import CONTROL, EVENTS, LEDGER, SNAPSHOTS
from projections.why.model import Alarm, ModelStory, alarmed, model_story
from services.cli.history import bus_of
from services.cli.reach import Here, fetch, here, master_state
from services.cli.show import Output, Waiting, note
from services.ends import end
from services.lifecycle import EXIT_FAILED, EXIT_OK
from services.past.at import Streamed, why_model
from services.past.questions import Story, kind_of
from services.past.source import NotKnownError
from services.past.streams import StreamsPast
from services.past.told import story_from, with_word_of
from services.past.why import decision_of, why_commit, why_lease, why_request
from services.texts.why import lines_of


def run(parsed: argparse.Namespace) -> int:
    """Print the story of what is asked for."""
    kind, name = kind_of(parsed.what)
    place, waiting = here(parsed), Waiting()
    try:
        story = asyncio.run(_told(place, kind, name, waiting))
    finally:
        waiting.done()
    out = Output(as_json=parsed.json)
    row = {"kind": kind, **msgspec.to_builtins(story)}
    if out.as_json:
        out.line(row)
    else:
        for line in lines_of(story):
            out.say(line, row)
    # what could not be asked is not known to be there at all
    return EXIT_FAILED if isinstance(story, ModelStory) and story.code == "bus_away" else EXIT_OK


async def _told(place: Here, kind: str, name: str, waiting: Waiting) -> Story:
    waiting(f"why {name}")
    try:
        story = await _from_projector(place, kind, name)
    except UnreachableError as error:
        note(f"{error}\nread from NATS instead")
        story = await _from_streams(place, kind, name)
    return await _alarmed(place, story) if isinstance(story, ModelStory) else story


async def _from_projector(place: Here, kind: str, name: str) -> Story:
    url = place.endpoints.projector
    return await story_from(lambda path: fetch(place, "projector", url, path), url, kind, name)


async def _from_streams(place: Here, kind: str, name: str) -> Story:
    try:
        async with bus_of(place) as bus:
            return await _QUESTIONS[kind](place, bus, name)
    except UnreachableError as error:
        if kind != "model":
            raise
        node, model = end("model", name)
        return alarmed(model_story(State(), node, model, version=0), Alarm("bus_away", str(error)))


def streamed(place: Here, bus: Bus) -> Streamed:
    """Return the streams of a bus as the operator reads them."""
    cluster = place.config.cluster.name
    reader = Reader(cluster, load_credentials(place.operator_key()).cluster_mac_secret)
    return Streamed(streams_of(bus), reader, Snapshots(bus.stream(SNAPSHOTS), cluster=cluster))


def streams_of(bus: Bus) -> Streams:
    """Return the streams that history stands in."""
    return Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))


async def _request(_: Here, bus: Bus, name: str) -> Story:
    return await why_request(StreamsPast(streams_of(bus)), name)


async def _lease(_: Here, bus: Bus, name: str) -> Story:
    past = StreamsPast(streams_of(bus))
    try:
        return await why_lease(past, name, now_ns=SystemClock().wall_us() * 1000)
    except NotKnownError as error:
        if "ask why of the commit" not in str(error):
            raise
    generation, version, index = decision_of(name)
    return await why_commit(past, version, generation=generation, chosen=index)


async def _commit(_: Here, bus: Bus, name: str) -> Story:
    return await why_commit(StreamsPast(streams_of(bus)), int(name))


async def _model(place: Here, bus: Bus, name: str) -> Story:
    node, model = end("model", name)
    return await why_model(streamed(place, bus), (StreamsPast(streams_of(bus)),), NodeId(node), ModelId(model))


_QUESTIONS: Final[dict[str, Callable[[Here, Bus, str], Awaitable[Story]]]] = {
    "request": _request,
    "lease": _lease,
    "commit": _commit,
    "model": _model,
}


async def _alarmed(place: Here, story: ModelStory) -> ModelStory:
    """Return the story with what only the master's own process can say: that it is in safe mode, or not there."""
    if story.code in {"safe_mode", "bus_away"}:
        return story
    try:
        return with_word_of(story, await master_state(place))
    except UnreachableError as error:
        return with_word_of(story, error)

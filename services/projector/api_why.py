"""Why, and when: the stories of requests, leases, commits and models, and the state at any version or time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from adapters.clickhouse.pages import BadQueryError
from adapters.http.errors import ApiError
from adapters.http.server import Call
from adapters.log.history import Streams
from adapters.log.snapshots import Snapshots
from adapters.log.travel import NothingThereError
from adapters.log.unkeyed import UnkeyedReader
from adapters.times import BadMomentError, Moment, moment_of
from domain.errors import BadIdError, BusError, HistoryError, NotYetError, StoreError
from domain.events import SafeModeEntered
from domain.events.codec import decode_decision, decode_envelope
from domain.ids import ModelId, NodeId, model_id, node_id
from domain.master.state import State
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS
from projections.why.commit import CommitStory
from projections.why.lease import LeaseStory
from projections.why.model import Alarm, ModelStory, alarmed, model_story
from projections.why.request import RequestStory
from services.past.archive import ArchivePast
from services.past.at import Streamed, cluster_then, known, why_model
from services.past.source import NotKnownError, Past
from services.past.stored import streams_kept
from services.past.streams import StreamsPast
from services.past.why import LEASE, decision_of, version_of, why_commit, why_lease, why_request
from services.projector.parameters import Parameters, none_left
from services.projector.routes import Desk, Routes

WHY: Final = "/admin/v1/why/"
AT: Final = "/admin/v1/at"
_AT_ONCE: Final = 2
"""Stories that are looked for at once: each may read and fold much of the streams, beside those who carry rows."""
_KINDS: Final = "request/{id}, lease/{id}, commit/{version} or model/{node}/{model}"


def add(routes: Routes, desk: Desk) -> None:
    """Add the paths of this part."""
    asker, looking = _Asker(desk), asyncio.Semaphore(_AT_ONCE)

    async def told(answer: Callable[[], Awaitable[Any]]) -> Any:
        async with looking:
            return await _told(answer())

    async def why(call: Call, said: Parameters) -> Any:
        none_left(said)
        kind, _, name = unquote(call.path.removeprefix(WHY)).partition("/")
        if kind not in {"request", "lease", "commit", "model"} or not name:
            raise ApiError("not_found", f"{WHY}: must be followed by {_KINDS}")
        return await told(lambda: asker.why(kind, name))

    async def at(_: Call, said: Parameters) -> Any:
        version, time, only = said.pop("version", ""), said.pop("time", ""), said.pop("only", "")
        none_left(said)
        if version and time:
            raise BadQueryError("version", "version and time exclude each other")
        moment = moment_asked(version, time)
        return await told(lambda: asker.at(moment, only))

    routes.add(WHY, why)
    routes.add(AT, at)


def moment_asked(version: str, time: str) -> Moment:
    """Return which moment is asked for.

    Raises:
        BadQueryError: it is none.
    """
    try:
        return Moment(number=version_of(version)) if version else moment_of(time or "now", "a version (812)")
    except BadIdError as error:
        raise BadQueryError("version", str(error)) from None
    except BadMomentError as error:
        raise BadQueryError("time", f"time: {error.rule}") from None


async def _told(answer: Awaitable[Any]) -> Any:
    """Return an answer; what is not known, or cannot be read now, as the error that says so."""
    try:
        return await answer
    except (NotKnownError, NothingThereError) as error:
        raise ApiError("not_kept", str(error), status=404) from None
    except NotYetError as error:
        raise ApiError("starting", str(error), status=503, retry_after_s=2) from None
    except BusError as error:
        raise ApiError("bus_away", str(error), status=503, retry_after_s=2) from None
    except HistoryError as error:
        raise ApiError("history_in_doubt", str(error), status=503, retry_after_s=5) from None


def _goes_on(story: RequestStory | LeaseStory | CommitStory) -> bool:
    """Tell whether more may have happened than a story tells."""
    match story:
        case RequestStory():
            return story.state in {"held", "in_engine", "lent"}
        case LeaseStory():
            return story.state == "live" or not all(each.outcome for each in story.requests)
        case _:
            return False


class _Asker:
    """Asks ClickHouse first, and the streams for what is not there."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._archive = ArchivePast(desk.ask)

    @property
    def _streams(self) -> Streams:
        named = self._desk.streams
        return Streams(named[EVENTS], named[CONTROL], named[LEDGER])

    def _streamed(self) -> Streamed:
        cluster = self._desk.projector.cluster
        snapshots = self._desk.streams.get(SNAPSHOTS)
        kept = Snapshots(snapshots, cluster=cluster) if snapshots is not None else None
        return Streamed(self._streams, UnkeyedReader(cluster), kept)

    def _kept(self) -> Streamed:
        """Return the streams as ClickHouse has them; states begin at a snapshot of the bus or a generation's first commit."""
        return msgspec.structs.replace(self._streamed(), streams=streams_kept(self._desk.ask), source="ClickHouse")

    async def why(self, kind: str, name: str) -> Any:
        now_ns = await self._desk.now_ns()
        if kind == "request":
            return await self._either(lambda past: why_request(past, name))
        if kind == "lease":
            return await self._either(lambda past: why_lease(past, name, now_ns=now_ns))
        if kind == "model":
            return await self._model(name)
        generation, version, index = decision_of(name) if LEASE.fullmatch(name) else ("", version_of(name), -1)
        return await self._either(lambda past: why_commit(past, version, generation=generation, chosen=index))

    async def _either(self, question: Callable[[Past], Awaitable[Any]]) -> Any:
        """Return ClickHouse's answer, else that of the streams; what neither knows is said with both their reasons.

        Rows come some tenths of a second after the facts: of what has not ended by the tables the streams are asked too.
        """
        try:
            story = await question(self._archive)
        except NotKnownError as error:
            return await self._streamed_only(question, str(error))
        except (ApiError, StoreError) as error:
            return await self._streamed_only(question, f"ClickHouse could not be asked: {error}")
        if _goes_on(story):
            with contextlib.suppress(NotKnownError, BusError):
                return await question(StreamsPast(self._streams))
        return story

    async def _streamed_only(self, question: Callable[[Past], Awaitable[Any]], missed: str) -> Any:
        """Return the streams' answer; `missed` is why ClickHouse gave none."""
        try:
            return await question(StreamsPast(self._streams))
        except NotKnownError as error:
            what, _, asked = missed.partition(" (")
            same = asked and str(error).startswith(f"{what} (")  # then it need not be said twice
            raise NotKnownError(f"{error} ({asked}" if same else f"{error}; {missed}") from None

    async def _model(self, name: str) -> ModelStory:
        node, slash, model = name.partition("/")
        if not slash:
            raise BadIdError("model", name, "must be NODE/MODEL, such as studio/chat")
        of, served = node_id(node), model_id(model)
        try:
            story = await self._story_of(of, served)
        except BusError as error:
            return alarmed(model_story(State(), of, served, version=0), Alarm("bus_away", str(error)))
        except HistoryError as error:
            return alarmed(model_story(State(), of, served, version=0), Alarm("safe_mode", str(error)))
        doubt = await self._doubt()
        return alarmed(story, Alarm("safe_mode", doubt)) if doubt else known(story)

    async def _story_of(self, node: NodeId, model: ModelId) -> ModelStory:
        streams = StreamsPast(self._streams)
        try:
            return await why_model(self._streamed(), (streams, self._archive), node, model)
        except (ApiError, StoreError):  # its newest plan may be in ClickHouse alone, which is away
            return await why_model(self._streamed(), (streams,), node, model)
        except NothingThereError:  # the streams do not reach back to where a state could begin
            with contextlib.suppress(ApiError, StoreError, NothingThereError):
                return await why_model(self._kept(), (streams, self._archive), node, model)
            raise

    async def _doubt(self) -> str:
        """Return why the master is in safe mode, empty if it is not: there it says so in the feed, and nothing after it."""
        feed = self._desk.streams.get(DECISIONS)
        newest = await feed.last() if feed is not None else None
        try:
            said = decode_decision(decode_envelope(newest.body).data) if newest is not None else None
        except msgspec.DecodeError:
            return ""
        return said.reason if isinstance(said, SafeModeEntered) else ""

    async def at(self, moment: Moment, only: str) -> Any:
        end_ns = await self._desk.now_ns()
        try:
            return await cluster_then(self._streamed(), moment, end_ns=end_ns, only=only)
        except NothingThereError as error:
            missed = error
        try:
            return await cluster_then(self._kept(), moment, end_ns=end_ns, only=only)
        except NothingThereError as error:
            raise missed.nor_in("ClickHouse", error) from None
        except (ApiError, StoreError) as error:
            raise NothingThereError(f"{missed}; ClickHouse could not be asked: {error}") from None

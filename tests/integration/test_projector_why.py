"""/admin/v1/why and /admin/v1/at over a real ClickHouse: the same stories as from the streams, clear about what is not kept."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from domain.errors import NoAnswerError, StoreAwayError
from domain.events import Finished, LeaseGranted, LendAnswered, Lent, NotAccepting, SafeModeEntered, codec
from domain.events.envelope import Envelope
from domain.ids import ModelId, RequestId
from domain.ports import Bounds, StoredMessage, Stream
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER
from projections.why.lease import LeaseStory
from projections.why.request import RequestStory
from services.past.streams import StreamsPast
from services.past.why import why_request
from services.projector.api import Api
from services.projector.health import Health
from services.projector.projector import Projector, Setup
from tests.support.history import CLUSTER, finished, held, lend, started
from tests.support.listed import ListedStream, ledger_of, stored, with_other_tag
from tests.support.projections import QUICK, caught_up, running
from tests.support.stories import ON, Story

pytestmark = pytest.mark.real
OpenStore = Callable[[], Store]
Get = Callable[[str], Any]


BEGAN_NS = SystemClock().wall_us() * 1000 - 3600 * 10**9
"""Tables drop what is older than the retention, so the history is of today."""


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.history.START_NS", BEGAN_NS)


def request(number: int) -> str:
    """Return an id as a node makes it at about the history's beginning."""
    return f"req_{BEGAN_NS // 1_000_000:012x}7{number:019x}"


def lived() -> Story:
    """Return a history: request 1 was lent and answered, 2 to 4 are held and the helper does not take more."""
    story = Story()
    for number in range(7):
        story.recorder.state("a", started(request(number)) if number in {5, 6} else held(request(number), number + 1))
    story.look()
    lease = next(iter(story.master.state.leases.values())).event.lease
    for fact in (
        lend(Lent, request(1), ON, work=64_000_000, out=1, waited_us=3_000, slots=2),
        lend(LendAnswered, request(1), ON, status=200, service_us=400_000),
    ):
        story.recorder.state("a", msgspec.structs.replace(fact, lease=lease), after_us=400_000)
    story.recorder.state("a", finished(request(1), helper="b", service_us=400_000))
    story.recorder.state("a", started(request(0)))
    story.recorder.state("b", NotAccepting(model=ModelId("m"), reason="own_work"))
    story.look()
    done = Finished(request=RequestId(request(0)), model=ModelId("m"), status=200, service_us=900_000)
    story.recorder.state("a", done, after_us=900_000)
    story.look()
    return story


class Away(ListedStream):
    """A stream whose bus does not answer."""

    async def bounds(self) -> Bounds:
        raise NoAnswerError(f"{self.name}: no answer")

    async def last(self) -> StoredMessage | None:
        raise NoAnswerError(f"{self.name}: no answer")

    async def get(self, seq: int) -> StoredMessage | None:
        raise NoAnswerError(f"{self.name}: no answer to {seq}")


def streams_of(story: Story, kind: type[ListedStream] = ListedStream) -> dict[str, Stream]:
    return {
        EVENTS: kind(EVENTS, story.recorder.facts),
        CONTROL: kind(CONTROL, story.recorder.control),
        LEDGER: kind(LEDGER, ledger_of(story.recorder, story.master.commits)),
    }


@asynccontextmanager
async def served(projector: Projector) -> AsyncIterator[Get]:
    """Serve the API of a projector, and yield what asks it: path -> (status, body)."""
    api = Api(projector, Health(projector, "test"), SystemClock())
    server = HttpServer(api.handle, connections_max=8, served_by="projector")
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        async with aiohttp.ClientSession() as http:

            async def get(path: str) -> tuple[int, Any]:
                async with http.get(url + path) as answer:
                    return answer.status, await answer.json()

            yield get
    finally:
        await server.stop()


def a_projector(streams: dict[str, Stream], open_store: OpenStore) -> Projector:
    setup = Setup(
        cluster=CLUSTER, router="test", streams=streams, open_store=open_store, clock=SystemClock(), limits=QUICK
    )
    return Projector(setup)


@asynccontextmanager
async def filled(story: Story, open_store: OpenStore) -> AsyncIterator[tuple[Projector, dict[str, Stream]]]:
    """Run a projector until a history is in the tables; its streams may be changed afterwards."""
    streams = streams_of(story)
    projector = a_projector(streams, open_store)
    ends = {name: (await stream.bounds()).last for name, stream in streams.items()}
    async with running(projector):
        await caught_up(projector, ends, timeout_s=60)
        yield projector, streams


async def test_clickhouse_tells_the_same_stories_as_the_streams_and_still_does_without_a_bus(database: OpenStore):
    story = lived()
    async with filled(story, database) as (projector, streams), served(projector) as get:
        status, body = await get(f"/admin/v1/why/request/{request(1)}")
        assert status == 200, body
        from_tables = msgspec.convert(body, RequestStory)
        from_streams = await why_request(StreamsPast(stored(story.recorder, story.master.commits)), request(1))
        assert msgspec.structs.replace(from_tables, source="NATS") == from_streams
        assert (from_tables.source, from_tables.helper, from_tables.reason) == ("ClickHouse", "b", "pays")
        assert from_tables.lease is not None
        _, body = await get(f"/admin/v1/why/lease/{from_tables.lease.lease}")
        lease = msgspec.convert(body, LeaseStory)
        assert [(each.request, each.outcome) for each in lease.requests] == [(request(1), "answered")]
        _, commit = await get(f"/admin/v1/why/commit/{lease.version}")
        assert sum(commit["inputs"].values()) == commit["hi"] - commit["lo"] + commit["chi"] - commit["clo"]
        _, decision = await get(f"/admin/v1/why/commit/{from_tables.lease.lease}")
        assert decision["chosen"] == from_tables.lease.index
        streams.update(streams_of(story, Away))
        _, again = await get(f"/admin/v1/why/request/{request(1)}")
        assert again["headline"] == from_tables.headline
        _, model = await get("/admin/v1/why/model/a/m")
        assert model["code"] == "bus_away"
        status, body = await get("/admin/v1/at?version=1")
        assert (status, body["error"]["code"]) == (503, "bus_away")


async def test_a_model_that_lends_nothing_says_why_and_the_state_is_there_at_any_version(database: OpenStore):
    story = lived()
    async with filled(story, database) as (projector, streams), served(projector) as get:
        _, model = await get("/admin/v1/why/model/a/m")
        assert model["code"] == "helper_not_accepting"
        assert "b gets nothing, helper_not_accepting" in model["headline"]
        assert model["last_plan"]["candidates"][0]["code"] == "helper_not_accepting"
        _, other = await get("/admin/v1/why/model/b/m")
        assert other["code"] == "not_linked"
        last = story.master.position.version
        _, now = await get("/admin/v1/at")
        assert (now["version"], now["head"], now["digest"]) == (last, last, story.master.position.digest)
        version = next(made.version for made in story.master.commits if LeaseGranted in map(type, made.decisions))
        _, first = await get(f"/admin/v1/at?version={version}&only=a/m")
        assert [queue["held"] for queue in first["queues"]] == [[request(number) for number in range(5)]]
        at_s = story.recorder.facts[-1].stamp_ns // 10**9 + 60
        _, timed = await get(f"/admin/v1/at?time={at_s}")
        assert timed["version"] == last
        # the feed is the only place where a master in doubt says so
        said = codec.encode(
            Envelope(
                id="x", source="/m", type="safe_mode.entered", cluster=CLUSTER, producer="master",
                data=codec.raw(SafeModeEntered(reason="version 7 is gone")),
            )
        )  # fmt: skip
        streams[DECISIONS] = ListedStream(DECISIONS, [StoredMessage(1, 1, "lw.test.safe_mode.entered", b"", said)])
        _, doubted = await get("/admin/v1/why/model/a/m")
        assert doubted["code"] == "safe_mode"
        assert "version 7 is gone" in doubted["headline"]


async def test_what_is_unknown_or_misspelt_is_said_with_both_keepers_and_their_reach(database: OpenStore):
    async with filled(lived(), database) as (projector, _), served(projector) as get:
        status, body = await get(f"/admin/v1/why/request/{request(99)}")
        assert (status, body["error"]["code"]) == (404, "not_kept")
        assert "NATS was asked; its LW_EVENTS begins at 1" in body["error"]["message"]
        assert "ClickHouse was asked; its LW_EVENTS begins at 1" in body["error"]["message"]
        assert body["error"]["message"].count(request(99)) == 1, "what nobody knows is named once"
        for path, code in (
            ("/admin/v1/why/commit/999", "not_kept"),
            ("/admin/v1/why/model/zoo/m", "not_kept"),
            ("/admin/v1/why/model/a/zoo", "not_kept"),
            ("/admin/v1/why/request/mine", "bad_query"),
            ("/admin/v1/why/model/a", "bad_query"),
            ("/admin/v1/why/nothing/a", "not_found"),
            ("/admin/v1/why/commit/1?x=1", "bad_query"),
            ("/admin/v1/at?version=999", "not_kept"),
            ("/admin/v1/at?version=1&only=zoo", "not_kept"),
            ("/admin/v1/at?version=1&time=1", "bad_query"),
            ("/admin/v1/at?time=yesterday", "bad_query"),
        ):
            status, body = await get(path)
            assert body.get("error", {}).get("code", "") == code, (path, status, body)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("why/request/mine", "request"),
        ("why/request/req_0123", "request"),
        (f"why/request/{request(1)}/more", "request"),
        ("why/request/%00", "request"),
        ("why/lease/nonsense", "lease"),
        ("why/lease/812", "lease"),
        ("why/lease/00010a2b-812", "lease"),
        ("why/lease/00010a2b-812-1-1", "lease"),
        ("why/commit/abc", "commit"),
        ("why/commit/-1", "commit"),
        ("why/commit/1.5", "commit"),
        ("why/commit/%D9%A3", "commit"),
        ("why/commit/1234567890123456789012345", "commit"),
        ("why/commit/00010a2b-812", "commit"),
        ("why/model/a", "model"),
        ("why/model/Nope/m", "node"),
        ("why/model/a/", "model"),
        ("why/model/a/%00", "model"),
        ("at?version=abc", "version"),
        ("at?version=-1", "version"),
        ("at?time=yesterday", "time"),
    ],
)
async def test_an_id_that_is_none_is_a_bad_query_that_names_it(path: str, param: str):
    def away() -> Store:
        raise StoreAwayError("clickhouse: gone")

    projector = a_projector(streams_of(lived()), away)
    async with running(projector), served(projector) as get:
        status, body = await get(f"/admin/v1/{path}")
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "bad_query", param), body


async def test_without_clickhouse_the_streams_answer():
    story = lived()

    def away() -> Store:
        raise StoreAwayError("clickhouse: gone")

    projector = a_projector(streams_of(story), away)
    async with running(projector), served(projector) as get:
        await projector.tried.wait()
        _, body = await get(f"/admin/v1/why/request/{request(1)}")
        assert (body["source"], body["helper"]) == ("NATS", "b")
        _, now = await get("/admin/v1/at")
        assert now["version"] == story.master.position.version


async def test_of_what_has_not_ended_by_the_tables_the_streams_are_asked_too(database: OpenStore):
    story = lived()
    async with filled(story, database) as (projector, streams), served(projector) as get:
        _, body = await get(f"/admin/v1/why/request/{request(2)}")
        assert (body["state"], body["source"]) == ("held", "NATS")
        story.recorder.state("a", started(request(2)))
        done = Finished(request=RequestId(request(2)), model=ModelId("m"), status=200, service_us=900_000)
        story.recorder.state("a", done, after_us=900_000)
        story.look()
        streams.update(streams_of(story))
        _, body = await get(f"/admin/v1/why/request/{request(2)}")
        assert (body["state"], body["source"]) == ("finished", "NATS")
        streams.update(streams_of(story, Away))
        _, body = await get(f"/admin/v1/why/request/{request(2)}")
        assert (body["state"], body["source"]) == ("held", "ClickHouse")


async def test_a_fact_that_the_master_did_not_believe_is_in_no_story_of_clickhouse(database: OpenStore):
    story = lived()
    forged = story.recorder.state("a", finished(request(3), helper="c"))
    story.recorder.facts[-1] = msgspec.structs.replace(forged, body=with_other_tag(forged.body))
    story.recorder.pseq["a"] -= 1
    story.recorder.state("a", held(request(8), 4))
    story.look()
    async with filled(story, database) as (projector, _), served(projector) as get:
        _, body = await get(f"/admin/v1/why/request/{request(3)}")
        assert body["state"] == "held"

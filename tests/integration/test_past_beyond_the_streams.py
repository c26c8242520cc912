"""The state at a time, and why a model lends nothing, when the streams no longer reach back: from what ClickHouse has kept."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.snapshots import Snapshots
from adapters.log.travel import last_until, state_at
from adapters.log.unkeyed import UnkeyedReader
from adapters.memory.stream import MemoryStream
from adapters.times import utc
from domain.events.commit import decode_commit
from domain.ports import StoredMessage, Stream
from domain.subjects import CONTROL, EVENTS, LEDGER, SNAPSHOTS
from services.past.at import told
from services.projector.api import Api
from services.projector.health import Health
from services.projector.projector import Projector, Setup
from tests.mutations.life import Life, lived
from tests.support.history import CLUSTER, START_NS
from tests.support.projections import QUICK, caught_up, running

pytestmark = pytest.mark.real

DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def life() -> Life:
    """A history of yesterday (older ones are not kept)."""
    return lived(3, later_ns=SystemClock().wall_us() * 1000 - START_NS - DAY_NS)


class Expiring(CopiedStream):
    """Drops the oldest messages when it is told to."""

    def __init__(self, name: str, messages: list[StoredMessage]) -> None:
        super().__init__(name, messages)
        self.whole = messages

    def expire(self, before: int) -> None:
        super().__init__(self.name, [message for message in self.whole if message.seq >= before])


class Scene:
    def __init__(
        self, streams: dict[str, Expiring], snapshots: MemoryStream, url: str, session: aiohttp.ClientSession
    ) -> None:
        self.streams, self.snapshots, self._url, self._session = streams, snapshots, url, session

    def expire(self, **first: int) -> None:
        """Let the streams drop what is before these messages, or their first halves, as their age limits do."""
        for name in first or (EVENTS, LEDGER):
            stream = self.streams[name]
            stream.expire(first.get(name, stream.whole[len(stream.whole) // 2].seq))

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        async with self._session.get(f"{self._url}/admin/v1/{path}", params=query) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def scene(life: Life, database: Callable[[], Store]) -> AsyncIterator[Scene]:
    streams = {name: Expiring(name, list(messages)) for name, messages in life.streams().items()}
    clock = SystemClock()
    snapshots = MemoryStream(SNAPSHOTS, clock)
    every: dict[str, Stream] = {**streams, SNAPSHOTS: snapshots}
    setup = Setup(cluster=CLUSTER, router="t", streams=every, open_store=database, clock=clock, limits=QUICK)
    projector = Projector(setup)
    async with running(projector), aiohttp.ClientSession() as session:
        await projector.tried.wait()
        await caught_up(projector, {name: messages[-1].seq for name, messages in life.streams().items()}, timeout_s=60)
        server = HttpServer(Api(projector, Health(projector, "t"), clock).handle, connections_max=8, served_by="p")
        yield Scene(streams, snapshots, f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}", session)
        await server.stop()


async def test_the_state_at_a_version_and_a_time_is_the_same_from_clickhouse_as_from_the_streams(
    scene: Scene, life: Life
):
    version, at_ns = life.ledger[3].seq, life.ledger[5].stamp_ns
    time = f"{at_ns // 10**9}.{at_ns % 10**9:09d}"
    before = [await scene.get("at", version=str(version)), await scene.get("at", time=time)]
    assert {(status, said["source"]) for status, said in before} == {(200, "NATS")}
    scene.expire()
    after = [await scene.get("at", version=str(version)), await scene.get("at", time=time)]
    assert {(status, said.get("source")) for status, said in after} == {(200, "ClickHouse")}, after
    assert [said | {"source": ""} for _, said in after] == [said | {"source": ""} for _, said in before]


async def test_a_time_after_a_commit_of_which_the_facts_are_gone_and_the_state_is_kept_is_told_from_clickhouse(
    scene: Scene, life: Life
):
    """The ledger's age limit is twice that of the facts, and snapshots have none."""
    await Snapshots(scene.snapshots, cluster=CLUSTER).save(*life.snapshot)
    made = life.ledger[life.snapshot[0] - 1]
    time = f"{made.stamp_ns // 10**9}.{made.stamp_ns % 10**9:09d}"
    status, before = await scene.get("at", time=time)
    assert (status, before["source"], before["version"]) == (200, "NATS", made.seq)
    assert before["facts"] > 1
    scene.expire(**{EVENTS: decode_commit(made.body).hi + 2, LEDGER: made.seq})
    status, after = await scene.get("at", time=time)
    assert (status, after.get("source")) == (200, "ClickHouse"), after
    assert after | {"source": ""} == before | {"source": ""}


async def test_what_neither_has_is_refused_once_with_where_each_begins_and_ends(scene: Scene, life: Life):
    first, last = (
        f"begins at version {each.seq} (stored {utc(each.stamp_ns)})" for each in life.ledger[:: len(life.ledger) - 1]
    )
    end, asked = f"and ends at {life.ledger[-1].seq}", "version 999999: must be within history, which"
    status, said = await scene.get("at", version="999999")
    assert (status, said["error"]["message"]) == (404, f"{asked} {first} {end}, in ClickHouse too")
    scene.expire(**{LEDGER: life.ledger[-1].seq})
    status, said = await scene.get("at", version="999999")
    assert (status, said["error"]["message"]) == (404, f"{asked} {last} {end}; in ClickHouse it {first} {end}")


async def test_why_a_model_lends_nothing_is_told_from_clickhouse_where_no_state_can_be_folded_from_the_streams(
    scene: Scene, life: Life
):
    streams = {name: CopiedStream(name, list(messages)) for name, messages in life.streams().items()}
    whole = Streams(streams[EVENTS], streams[CONTROL], streams[LEDGER])
    now = told(await state_at(whole, UnkeyedReader(CLUSTER)))
    node, model = now.queues[0].node, now.queues[0].model
    status, before = await scene.get(f"why/model/{node}/{model}")
    assert (status, before["source"]) == (200, "NATS")
    scene.expire()
    status, after = await scene.get(f"why/model/{node}/{model}")
    assert (status, after.get("source")) == (200, "ClickHouse"), after
    assert after | {"source": ""} == before | {"source": ""}


async def test_a_time_is_found_on_its_own_side_of_a_hole(life: Life):
    """An archive has holes where the projector was away; a message that is not there is neither older nor newer."""
    facts = list(life.facts)
    first, last = len(facts) // 4, 3 * len(facts) // 4
    holed = CopiedStream(EVENTS, facts[:first] + facts[last:])
    assert await last_until(holed, facts[first - 2].stamp_ns) == facts[first - 2].seq
    assert await last_until(holed, facts[first + 5].stamp_ns) == facts[first - 1].seq
    assert await last_until(holed, facts[last + 1].stamp_ns) == facts[last + 1].seq

"""Rows made again beside the live ones, on a real ClickHouse: the same rows, while rows come and questions are answered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from adapters.clickhouse.beside import make_beside
from adapters.clickhouse.store import Store
from domain.subjects import EVENTS, LEDGER
from projections.rollups import ROLLUPS
from projections.tables import RETAINED, column_names
from services.projector.projector import Projector
from tests.integration.test_projector_api import Client
from tests.support.facts import Teller, finished, granted, held, lent, plan, verdict
from tests.support.kinds import LOADS
from tests.support.projections import Bus, a_projector, caught_up, counts, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
DERIVED = [table for table in RETAINED if table != "events"]
COUNTED = [rollup.table for rollup in ROLLUPS]


class Scene:
    """A bus with a history, its projector, and a client."""

    def __init__(self, client: Client) -> None:
        self.client, self.projector, self.bus = client, client.projector, client.bus
        self.teller = Teller("n1")
        self.requests = 0

    async def goes_on(self, requests: int) -> None:
        for number in range(self.requests, self.requests + requests):
            await self.bus.tell(self.teller, held(number), lent(number), finished(number, helper="n2"))
            skipped = verdict(helper="n3", outcome="skipped", code="cost_rejected")
            await self.bus.commit(
                plan(verdict(), skipped), granted(), rejected=((1, "bad_mac"),) if number == 0 else ()
            )
        self.requests += requests

    async def arrived(self) -> None:
        await caught_up(self.projector, await self.bus.ends())

    @property
    def store(self) -> Store:
        assert self.projector.store is not None
        return self.projector.store

    def whole(self, *tables: str) -> dict[str, list[dict[str, Any]]]:
        """Return every column of every row, in order."""
        return {
            table: self.store.query(
                f"SELECT {', '.join(column_names(table))} FROM {table} FINAL ORDER BY ALL",
                raw=("subject", "headers", "body") if table == "events" else (),
            )
            for table in tables
        }

    async def rebuilt(self, source: str) -> dict[str, Any]:
        """Ask for a rebuild over HTTP, and return what is said of it at its end."""
        headers = {"Content-Type": "application/json"}
        status, body = await self.client.post(f"/admin/v1/projections/rebuild?from={source}", headers)
        assert (status, body["state"]) == (200, "asked"), body
        await until("the rebuild ends", lambda: not self.projector.rebuilt.busy, timeout_s=30)
        _, told, _ = await self.client.get("/admin/v1/projections")
        return dict(told["rebuild"])


@pytest.fixture
async def scene(database: OpenStore) -> AsyncIterator[Scene]:
    bus = Bus()
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        found = Scene(client)
        await found.goes_on(40)
        await bus.tell(found.teller, *LOADS)
        await found.arrived()
        yield found


async def test_rows_that_are_made_again_from_the_archive_are_the_same_rows(scene: Scene):
    before = scene.whole(*DERIVED, *COUNTED)
    for table in ("decisions", "requests", "loads_by_minute"):
        scene.store.command(f"ALTER TABLE {table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    told = await scene.rebuilt("archive")
    assert (told["state"], told["messages"], told["error"]) == ("done", told["of"], "")
    assert scene.whole(*DERIVED, *COUNTED) == before
    await scene.goes_on(5)
    await scene.arrived()
    assert counts(scene.store, "requests", EVENTS) == (45, 45), "it goes on in the new tables"
    await until("counts are compared", lambda: scene.projector.counted.looks > 0)
    [counted] = scene.store.query("SELECT toUInt64(sum(rows)) AS n FROM requests_by_minute")
    assert counted["n"] == 45, "and so do their views"


async def test_from_the_stream_the_archive_itself_is_made_again_and_what_the_stream_has_no_longer_is_kept(scene: Scene):
    before = scene.whole(*RETAINED, *COUNTED)
    scene.bus[EVENTS].expire(31)
    scene.store.command("ALTER TABLE events DELETE WHERE seq = 50 SETTINGS mutations_sync = 2")
    assert scene.whole("events") != {"events": before["events"]}
    told = await scene.rebuilt("stream")
    assert (told["state"], told["error"]) == ("done", "")
    assert scene.whole(*RETAINED, *COUNTED) == before


async def test_questions_are_answered_and_rows_come_in_all_the_while(scene: Scene):
    rows: list[int] = []

    async def ask() -> None:
        while True:
            status, body, _ = await scene.client.get("/v1/requests", limit=1000)
            assert status == 200, body
            rows.append(len(body["requests"]))
            await scene.arrived()

    asking = asyncio.ensure_future(ask())
    rebuilding = asyncio.ensure_future(scene.rebuilt("archive"))
    while not rebuilding.done():
        await scene.goes_on(2)
        await scene.arrived()
    assert (await rebuilding)["state"] == "done"
    await scene.arrived()
    first = len(rows)
    await until("another answer", lambda: len(rows) > first + 1)
    assert not asking.done()
    asking.cancel()
    assert rows == sorted(rows), "no answer lacked a row that an earlier one had"
    assert counts(scene.store, "requests", EVENTS) == (scene.requests, scene.requests)
    assert counts(scene.store, "commits", LEDGER) == (scene.requests, scene.requests)


async def test_counts_of_days_whose_rows_are_gone_survive(scene: Scene):
    names = "day, minute, owner, rows"
    scene.store.command(
        f"INSERT INTO requests_by_minute ({names}) VALUES ('2026-01-02', '2026-01-02 03:04:00', 'n1', 7)"
    )
    await scene.rebuilt("archive")
    found = scene.store.query("SELECT toUInt64(sum(rows)) AS n FROM requests_by_minute GROUP BY day ORDER BY day")
    assert [row["n"] for row in found] == [7, 40]


async def test_counts_of_more_days_than_one_insert_takes_survive(scene: Scene):
    scene.store.command(
        "INSERT INTO requests_by_minute (day, minute, owner, rows) "
        "SELECT today() - 40 - number AS day, toDateTime(day, 'UTC'), 'n1', 7 FROM numbers(150) "
        "SETTINGS max_partitions_per_insert_block = 0"
    )
    told = await scene.rebuilt("archive")
    assert (told["state"], told["error"]) == ("done", "")
    [found] = scene.store.query("SELECT uniqExact(day) AS days, toUInt64(sum(rows)) AS n FROM requests_by_minute")
    assert found == {"days": 151, "n": 150 * 7 + 40}


async def test_what_a_killed_rebuild_left_behind_is_gone_after_the_next_start(database: OpenStore):
    def leftovers(projector: Projector) -> int:
        assert projector.store is not None
        asked = "SELECT count() AS n FROM system.tables WHERE database = currentDatabase() AND name LIKE '%\\_new'"
        return int(projector.store.query(asked)[0]["n"])

    bus = Bus()
    async with running(a_projector(bus, database)) as projector:
        await projector.tried.wait()
        assert projector.store is not None
        make_beside(projector.store, DERIVED, ROLLUPS)
        assert leftovers(projector) == len(DERIVED) + 2 * len(ROLLUPS)
        projector.store.command("CREATE TABLE somebodys_new (a UInt8) ENGINE = Memory")
    async with running(a_projector(bus, database)) as projector:
        await projector.tried.wait()
        assert leftovers(projector) == 1, "only somebody's own"


async def test_only_a_request_that_says_json_begins_a_rebuild_and_only_one_at_a_time(scene: Scene):
    """A page in an operator's browser can send a plain POST to loopback; JSON it has to ask for first."""
    path = "/admin/v1/projections/rebuild"
    assert (await scene.client.post(path, {"Content-Type": "text/plain"}))[0] == 415
    assert (await scene.client.post(path + "?from=nowhere", {"Content-Type": "application/json"}))[0] == 400
    assert (await scene.client.get(path))[0] == 404
    assert scene.projector.rebuilt.state == "never"
    assert scene.projector.rebuild("archive")
    assert (await scene.client.post(path, {"Content-Type": "application/json"}))[0] == 409
    await until("the rebuild ends", lambda: not scene.projector.rebuilt.busy, timeout_s=30)


async def test_the_status_says_how_far_the_streams_are_and_what_the_tables_take(scene: Scene):
    _, told, _ = await scene.client.get("/admin/v1/projections")
    assert [step["number"] for step in told["migrations"]] == list(range(1, told["schema"] + 1))
    streams = {stream["stream"]: stream for stream in told["streams"]}
    assert (streams[LEDGER]["position"], streams[LEDGER]["lag"], streams[LEDGER]["behind_us"]) == (40, 0, 0)
    tables = {table["name"]: table for table in told["tables"]}
    assert tables["requests"]["rows"] == 40
    assert tables["requests"]["bytes"] > 0
    assert len(tables["requests"]["first_day"]) == 10
    assert told["rebuild"]["state"] == "never"

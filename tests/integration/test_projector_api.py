"""The read API over HTTP, on a real ClickHouse: what it answers, what it refuses, what it never shows."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import pytest

from adapters.clickhouse.store import Store, open_store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from domain.errors import StoreAwayError
from domain.events import LendReturned, NodeHealthChanged
from domain.ports import Clock
from domain.subjects import EVENTS, LEDGER
from services.projector import main
from services.projector.api import Api
from services.projector.health import Health
from services.projector.projector import Projector
from services.projector.routes import READERS, Desk
from tests.support.facts import (
    HELPER,
    LINK,
    MODEL,
    Teller,
    finished,
    granted,
    held,
    lease,
    lent,
    plan,
    request,
    verdict,
)
from tests.support.kinds import CONDITIONS, LOADS, OTHER
from tests.support.projections import Bus, a_projector, caught_up, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
CANARY = "my prompt is a secret 7f3a"


class Client:
    """Asks one API."""

    def __init__(self, projector: Projector, bus: Bus, clock: Clock | None = None) -> None:
        self.projector, self.bus = projector, bus
        own = clock or SystemClock()
        self._api = Api(projector, Health(projector, "test"), own)
        self._desk = Desk(projector, own)
        self._server = HttpServer(self._api.handle, connections_max=8, served_by="projector")
        self._http: aiohttp.ClientSession | None = None
        self._url = ""

    async def __aenter__(self) -> Self:
        self._url = f"http://127.0.0.1:{await self._server.start('127.0.0.1', 0)}"
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()
        await self._server.stop()

    def paths(self) -> tuple[str, ...]:
        return self._api.routes.paths()

    async def ask(self, statement: str) -> Any:
        """Ask ClickHouse as an answer does."""
        return await self._desk.ask(lambda store: store.query(statement))

    async def get(self, path: str, method: str = "GET", **params: Any) -> tuple[int, Any, dict[str, str]]:
        assert self._http is not None
        async with self._http.request(method, self._url + path, params=params) as answer:
            return answer.status, await answer.json(), dict(answer.headers)

    async def post(self, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        assert self._http is not None
        async with self._http.post(self._url + path, headers=headers) as answer:
            return answer.status, await answer.json()

    async def rows(self, path: str, **params: Any) -> tuple[list[dict[str, Any]], str]:
        """Return (rows, next cursor) of a good answer."""
        status, body, _ = await self.get(path, **params)
        assert status == 200, body
        return body[path.rpartition("/")[2]], body["next"]


@pytest.fixture
async def client(database: OpenStore) -> AsyncIterator[Client]:
    bus = Bus()
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        yield client


async def filled(client: Client, requests: int = 5) -> None:
    """Let `requests` requests be planned, lent and finished; every fifth comes back unstarted."""
    bus, teller = client.bus, Teller("n1")
    returned: dict[str, Any] = {"model": MODEL, "helper": HELPER, "link": LINK, "lease": lease(), "reason": "own_work"}
    for number in range(requests):
        await bus.commit(plan(verdict(), verdict(helper="n3", outcome="skipped", code="cost_rejected")), granted())
        await bus.tell(teller, held(number), lent(number))
        if number % 5 == 0:
            await bus.tell(teller, LendReturned(request=request(number), **returned), finished(number))
        else:
            await bus.tell(teller, finished(number, helper="n2"))
    await caught_up(client.projector, await bus.ends())


async def test_health_says_how_far_each_stream_is_and_what_runs(client: Client):
    await filled(client)
    status, body, _ = await client.get("/health")
    assert (status, body["status"]) == (200, "ok")
    streams = {stream["stream"]: stream for stream in body["streams"]}
    assert streams[EVENTS] | {"rows_written": 0} == {
        "stream": EVENTS,
        "epoch": 1,
        "position": 16,
        "last": 16,
        "lag": 0,
        "unreadable": 0,
        "void": 0,
        "rows_written": 0,
        "gone": 0,
        "error": "",
        "cause": "",
    }
    rows = {"events": 21, "decisions": 21, "requests": 5, "commits": 5, "rejected": 0, "loads": 0, "health": 0}
    rows |= {"checkpoints": 0}
    assert body["rows"] == rows
    assert body["versions"]["router"] == "test"
    assert body["versions"]["clickhouse"].startswith("26.")
    assert (body["witness"]["version"], body["witness"]["digest"]) == (5, client.bus.ledger.digest)


async def test_the_newest_decisions_come_first_asked_and_oldest_first_shown(client: Client):
    await filled(client)
    rows, _ = await client.rows("/v1/decisions", limit=3)
    assert [(row["kind"], row["side"]) for row in rows][-1] == ("lent", "owner")
    assert [row["at_ns"] for row in rows] == sorted(row["at_ns"] for row in rows)
    assert rows[-1]["at"].endswith("Z")
    assert rows[-1]["request"] == request(4)
    assert rows[-1]["router"] == "test"


async def test_following_a_cursor_shows_every_row_once_and_then_what_comes(client: Client):
    await filled(client, requests=7)
    seen: list[tuple[Any, ...]] = []
    cursor = ""
    while True:
        rows, cursor = await client.rows("/v1/decisions", limit=4, after=cursor)
        if not rows:
            break
        seen += [(row["stream"], row["seq"], row["item"]) for row in rows]
    assert len(seen) == len(set(seen)) == 7 * 3 + 7 + 2
    rows, cursor = await client.rows("/v1/decisions", after=cursor)
    assert rows == []
    await client.bus.commit(NodeHealthChanged(node=HELPER, state="stale", reason="silent"))
    await caught_up(client.projector, await client.bus.ends())
    rows, _ = await client.rows("/v1/decisions", after=cursor)
    assert [(row["kind"], row["helper"], row["outcome"]) for row in rows] == [("health", "n2", "stale")]


async def test_what_follows_the_newest_page_is_what_comes_later(client: Client):
    await filled(client)
    _, cursor = await client.rows("/v1/decisions", limit=2)
    await filled(client, requests=1)
    rows, _ = await client.rows("/v1/decisions", after=cursor)
    assert [row["kind"] for row in rows] == ["plan", "plan", "granted", "lent", "returned"]


async def test_decisions_are_filtered_by_every_column_that_people_ask_for(client: Client):
    await filled(client)
    for filters, kinds in (
        ({"owner": "n1", "helper": "n3"}, {"plan"}),
        ({"kind": "returned"}, {"returned"}),
        ({"reason": "cost_rejected"}, {"plan"}),
        ({"request": request(2)}, {"lent"}),
        ({"lease": lease(), "side": "master"}, {"granted"}),
        ({"link": LINK, "side": "owner"}, {"lent", "returned"}),
        ({"owner": "n9"}, set()),
    ):
        rows, _ = await client.rows("/v1/decisions", **filters)
        assert {row["kind"] for row in rows} == kinds, filters


async def test_requests_say_how_they_ended_and_where_they_were_lent(client: Client):
    await filled(client)
    rows, _ = await client.rows("/v1/requests", limit=2)
    short = [{name: row[name] for name in ("request", "outcome", "helper", "lent", "lent_to", "lease")} for row in rows]
    lent_once = {"outcome": "finished", "helper": "n2", "lent": 1, "lent_to": "n2", "lease": lease()}
    assert short == [{"request": request(3), **lent_once}, {"request": request(4), **lent_once}]
    [came_back], _ = await client.rows("/v1/requests", request=request(0))
    assert (came_back["helper"], came_back["returned"], came_back["wait_us"]) == ("", 1, 2000)


async def test_events_are_found_by_the_beginning_of_their_subject(client: Client):
    await filled(client)
    rows, _ = await client.rows("/v1/events", subject="lw.local.node.n1.lend.", event="lend.lent")
    assert {row["event"] for row in rows} == {"lend.lent"}
    assert len(rows) == 5
    assert "body" not in rows[0]
    rows, _ = await client.rows("/v1/events", stream=LEDGER, bodies="true", limit=1000)
    assert len(rows) == 5
    assert rows[0]["body"].startswith('{"version":1,')


async def test_stats_count_what_was_decided_lent_and_answered(client: Client):
    await filled(client)
    status, body, _ = await client.get("/v1/stats", window_s=60)
    assert status == 200
    assert {"kind": "plan", "outcome": "skipped", "reason": "cost_rejected", "rows": 5} in body["decisions"]
    assert body["lending"] == [
        {"owner": "n1", "helper": "n2", "lent": 5, "answered": 0, "returned": 1, "busy": 0, "cut_off": 0}
    ]
    assert {(row["lent"], row["requests"], row["wait_p99_us"]) for row in body["requests"]} == {
        (True, 4, 2000),
        (False, 1, 2000),
    }


async def test_what_the_master_did_not_believe_and_what_was_sent_twice_is_shown_once_or_never(client: Client):
    bus, teller = client.bus, Teller("n1")
    await bus.tell(teller, lent(1))
    again = teller.body(lent(1), pseq=1)
    await bus[EVENTS].publish(teller.subject(lent(1)), again)  # after the broker's window for duplicates
    await bus.tell(Teller("n1", incarnation="ff" * 16), lent(2), finished(2))
    await bus.commit(granted(), rejected=((3, "bad_mac"), (4, "bad_mac")))
    await caught_up(client.projector, await bus.ends())
    rows, _ = await client.rows("/v1/decisions", side="owner")
    assert [row["request"] for row in rows] == [request(1)]
    assert await client.rows("/v1/requests") == ([], "")
    rows, _ = await client.rows("/v1/events", producer="n1")
    assert len(rows) == 4, "the raw messages are all there"


BAD_QUERIES: Sequence[tuple[str, dict[str, str], str]] = (
    ("/v1/decisions", {"owner": "' OR 1=1"}, "owner"),
    ("/v1/decisions", {"owner": "n1'; DROP TABLE decisions; --"}, "owner"),
    ("/v1/decisions", {"helper": "n1\\"}, "helper"),
    ("/v1/decisions", {"kind": "plan' OR '1'='1"}, "kind"),
    ("/v1/decisions", {"kind": "nonsense"}, "kind"),
    ("/v1/decisions", {"reason": "{x:String}"}, "reason"),
    ("/v1/decisions", {"request": "req_1"}, "request"),
    ("/v1/decisions", {"after": "l1.2"}, "after"),
    ("/v1/decisions", {"after": "l1.2.3) OR (1=1"}, "after"),
    ("/v1/decisions", {"limit": "0"}, "limit"),
    ("/v1/decisions", {"limit": "1001"}, "limit"),
    ("/v1/decisions", {"limit": "1e3"}, "limit"),
    ("/v1/decisions", {"limit": "-1"}, "limit"),
    ("/v1/decisions", {"columns": "body"}, "columns"),
    ("/v1/requests", {"outcome": "finished\x00"}, "outcome"),
    ("/v1/events", {"subject": "lw.%' OR 1"}, "subject"),
    ("/v1/events", {"stream": "LW_SNAP"}, "stream"),
    ("/v1/events", {"bodies": "1"}, "bodies"),
    ("/v1/stats", {"window_s": "999999999999"}, "window_s"),
)


async def test_a_parameter_that_breaks_its_rule_is_refused_by_name(client: Client):
    await filled(client, requests=1)
    for path, params, param in BAD_QUERIES:
        status, body, _ = await client.get(path, **params)
        assert status == 400, params
        assert (body["error"]["code"], body["error"]["param"]) == ("bad_query", param), params
    assert len((await client.rows("/v1/decisions"))[0]) == 5, "and everything is still there"


async def test_a_model_id_with_quotes_is_a_value_like_any_other(client: Client):
    await filled(client, requests=1)
    for hostile in ("' OR 1=1 --", "{model:String}", "a\\'b", "%", "\u202e"):
        rows, _ = await client.rows("/v1/requests", model=hostile)
        assert rows == [], hostile
    rows, _ = await client.rows("/v1/requests", model=MODEL)
    assert len(rows) == 1


async def test_only_known_paths_and_only_get_are_served(client: Client):
    assert (await client.get("/v1/query"))[0] == 404
    assert (await client.get("/v1/decisions", method="POST"))[0] == 405
    assert (await client.get("/v1/decisions", method="DELETE"))[0] == 405


async def test_the_page_is_never_longer_than_its_limit_and_bodies_are_fewer(client: Client):
    teller = Teller("n1")
    await client.bus.tell(teller, *(held(number) for number in range(1100)))
    await caught_up(client.projector, await client.bus.ends())
    assert len((await client.rows("/v1/events", limit=1000))[0]) == 1000
    assert len((await client.rows("/v1/events"))[0]) == 100
    assert len((await client.rows("/v1/events", limit=1000, bodies="true"))[0]) == 100


async def test_before_the_tables_are_open_every_question_is_told_to_come_back(database: OpenStore):
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    bus = Bus()

    def slow() -> Store:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return database()

    projector = a_projector(bus, slow)
    async with running(projector), Client(projector, bus) as client:
        for path in ("/health", "/v1/decisions", "/v1/stats"):
            status, body, headers = await client.get(path)
            assert (status, headers["Retry-After"]) == (503, "1"), path
            assert path == "/health" or body["error"]["code"] == "starting"
        gate.set()
        await projector.tried.wait()
        assert (await client.get("/v1/decisions"))[0] == 200


async def test_while_clickhouse_is_away_health_says_so_and_why():
    def away() -> Store:
        raise StoreAwayError("clickhouse http://127.0.0.1:9/: does not answer")

    bus = Bus()
    projector = a_projector(bus, away)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        status, body, _ = await client.get("/health")
        assert (status, body["status"]) == (503, "clickhouse_away")
        assert "does not answer" in body["error"]


async def test_a_prompt_that_slipped_into_a_fact_is_in_no_answer_but_the_raw_one(client: Client):
    bus, teller = client.bus, Teller("n1")
    body = teller.body(lent(1)).replace(b'"out":1', b'"out":1,"prompt":"%b"' % CANARY.encode())
    await bus[EVENTS].publish(teller.subject(lent(1)), body)
    await bus.tell(teller, finished(1, code=f"bad request: {CANARY}"))
    await caught_up(client.projector, await bus.ends())
    for path in ("/v1/decisions", "/v1/requests", "/v1/stats", "/v1/events", "/health"):
        _, answer, _ = await client.get(path)
        assert CANARY not in repr(answer), path


async def test_many_readers_at_once_are_all_answered_while_rows_go_on_coming(client: Client):
    await filled(client)
    teller = Teller("n3")
    answers = asyncio.gather(*(client.get("/v1/decisions", limit=50) for _ in range(40)))
    await client.bus.tell(teller, *(held(number) for number in range(500)))
    assert {status for status, *_ in await answers} <= {200, 503}
    await caught_up(client.projector, await client.bus.ends())
    await until("an idle API", lambda: client.get("/health"))


async def test_loads_and_health_are_read_by_node_kind_and_cause(client: Client):
    bus = client.bus
    await bus.tell(Teller("n2"), *LOADS, *CONDITIONS)
    await bus.tell(Teller("n3"), LOADS[1])
    await bus.commit(NodeHealthChanged(node=HELPER, state="stale", reason="silent"))
    await caught_up(client.projector, await bus.ends())
    rows, _ = await client.rows("/v1/loads", node="n2", kind="loaded")
    assert [(row["model"], row["cause"], row["load_us"], row["displaced"]) for row in rows] == [
        (MODEL, "borrowed", 8_000_000, OTHER)
    ]
    rows, cursor = await client.rows("/v1/loads", cause="restore")
    assert [row["kind"] for row in rows] == ["restore_scheduled", "restored", "restore_cancelled"]
    assert await client.rows("/v1/loads", after=cursor, node="n9") == ([], cursor)
    rows, _ = await client.rows("/v1/health", node="n2", kind="changed")
    assert [(row["state"], row["reason"]) for row in rows] == [("stale", "silent")]
    for path, kind in (("/v1/loads", "plan"), ("/v1/health", "loaded"), ("/v1/decisions", "loaded")):
        status, body, _ = await client.get(path, kind=kind)
        assert (status, body["error"]["param"]) == (400, "kind"), path


async def test_rows_of_a_time_are_those_stamped_from_its_begin_and_before_its_end(client: Client):
    await filled(client, requests=6)
    everything, _ = await client.rows("/v1/requests", after="")
    since, until = everything[2]["at_ns"], everything[4]["at_ns"]
    rows, _ = await client.rows("/v1/requests", after="", since_ns=since, until_ns=until)
    assert [row["request"] for row in rows] == [row["request"] for row in everything[2:4]]
    rows, _ = await client.rows("/v1/requests", since_ns=until)
    assert [row["request"] for row in rows] == [row["request"] for row in everything[4:]]
    status, body, _ = await client.get("/v1/requests", since_ns="yesterday")
    assert (status, body["error"]["param"]) == (400, "since_ns")


async def test_rows_that_say_the_same_are_folded_into_one_that_says_how_often_and_since_when(client: Client):
    skipped = plan(verdict(outcome="skipped", code="cost_rejected"))
    for decision in (skipped, skipped, granted(), skipped, plan(verdict()), skipped):
        await client.bus.commit(decision)
    await client.bus.tell(Teller("n1"), lent(1), lent(2))
    await caught_up(client.projector, await client.bus.ends())
    rows, _ = await client.rows("/v1/decisions", folded="true")
    assert [(row["kind"], row["outcome"], row["rows"]) for row in rows] == [
        ("granted", "", 1),
        ("plan", "skipped", 3),
        ("plan", "granted", 1),
        ("plan", "skipped", 1),
        ("lent", "", 2),
    ]
    assert all(row["first_at_ns"] <= row["at_ns"] for row in rows)
    assert rows[1]["first_at_ns"] < rows[0]["at_ns"] < rows[1]["at_ns"]
    rows, _ = await client.rows("/v1/decisions", folded="true", reason="cost_rejected", limit=1)
    assert [(row["seq"], row["rows"]) for row in rows] == [(6, 1)]
    for params in ({"after": "l1.1.0"}, {"folded": "maybe"}):
        status, body, _ = await client.get("/v1/decisions", **({"folded": "true"} | params))
        assert (status, body["error"]["param"]) == (400, next(iter(params)))


async def test_a_run_goes_on_over_a_restart_of_the_projector(database: OpenStore):
    bus = Bus()
    skipped = plan(verdict(outcome="skipped", code="cost_rejected"))
    for _ in range(2):
        projector = a_projector(bus, database)
        async with running(projector):
            await bus.commit(skipped)
            await caught_up(projector, await bus.ends())
    store = database()
    assert store.query("SELECT seq, fold_id FROM decisions ORDER BY seq") == [
        {"seq": 1, "fold_id": 1},
        {"seq": 2, "fold_id": 1},
    ]


ODD = ["\u0663", "9" * 5000, "0001-01-01", "e1.1.1-c9.9.9"]
PARAMETERS = ["from", "time", "version", "limit", "after", "owner"]


async def test_no_question_however_odd_is_answered_by_a_fault_of_ours(client: Client):
    await filled(client, 1)
    paths = [path for path in client.paths() if path not in {"/admin/v1/why/", "/v1/lending/events"}]
    paths = [path for path in paths if "/telemetry/" not in path or path.endswith("/idle")]
    asked = [(path, {name: odd}) for path in paths for name in PARAMETERS for odd in ODD]
    asked += [
        (f"/admin/v1/why/{kind}/{quote(odd, safe='')}", {}) for kind in ("request", "lease", "commit") for odd in ODD
    ]
    faults = []
    for path, said in asked:
        status, body, _ = await client.get(path, **said)
        if status not in {200, 400, 404, 503}:
            faults.append((path, said, body))
    assert faults == []


async def test_slow_questions_and_many_who_ask_how_it_is_hold_up_no_row(engine_dsn: str):
    bus = Bus()
    name = f"slow_{secrets.token_hex(4)}"
    projector = a_projector(bus, lambda: open_store(engine_dsn, database=name, readers=main._CLIENTS))
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        slow = "SELECT sleepEachRow(0.5) FROM numbers(8) SETTINGS max_block_size = 1"
        questions = [asyncio.ensure_future(client.ask(slow)) for _ in range(READERS)]
        health = [asyncio.ensure_future(client.get("/health")) for _ in range(6)]
        await bus.tell(Teller("n1"), held(1))
        await caught_up(projector, await bus.ends(), timeout_s=3)
        assert not any(question.done() for question in questions)
        assert {status for status, *_ in await asyncio.gather(*health)} == {200}
        assert not any(question.done() for question in questions)
        await asyncio.gather(*questions)

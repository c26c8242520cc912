"""Telemetry over HTTP on a real ClickHouse: every figure is that of the facts, from rows and from counts by minute alike."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from adapters.clickhouse import idleness, telemetry
from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from domain.events import (
    Finished,
    Input,
    LendAnswered,
    LendReturned,
    Loaded,
    NodeHealthChanged,
    OwnerPlanned,
    Registered,
    Restored,
    Started,
)
from domain.events.status import ModelInfo
from domain.ids import ModelId, NodeId
from domain.subjects import EVENTS
from services.projector.api_telemetry import NAMES
from tests.integration.test_projector_api import Client
from tests.support.facts import HELPER, LINK, MODEL, Teller, finished, held, lease, lent, plan, request, verdict
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, running

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
OTHER = ModelId("llama/8b")
BEGIN_S = SystemClock().wall_us() // 1_000_000 // 86_400 * 86_400 - 43_200
"""Noon of yesterday."""
SENT: dict[str, Any] = {"model": MODEL, "helper": HELPER, "link": LINK, "lease": lease()}


class Scene:
    """A bus whose stamps the test sets, and a client of its projector's API."""

    def __init__(self, client: Client, clock: SteppedClock) -> None:
        self.client, self.clock = client, clock
        self.n1, self.n2 = Teller("n1"), Teller("n2")

    def at(self, second: float) -> "Scene":
        self.clock.now_us = round((BEGIN_S + second) * 1_000_000)
        return self

    async def n1_says(self, *facts: Input) -> "Scene":
        await self.client.bus.tell(self.n1, *facts)
        return self

    async def n2_says(self, *facts: Input) -> "Scene":
        await self.client.bus.tell(self.n2, *facts)
        return self

    async def silent(self, node: str) -> "Scene":
        await self.client.bus.commit(NodeHealthChanged(node=NodeId(node), state="stale", reason="silent"))
        return self

    async def asked(self, name: str, **said: Any) -> list[dict[str, Any]]:
        """Return the rows of an answer about the scene's ten minutes, in minutes from its beginning."""
        await caught_up(self.client.projector, await self.client.bus.ends())
        window = {"from": BEGIN_S, "to": BEGIN_S + 600, "step": 60}
        status, body, _ = await self.client.get(f"/admin/v1/telemetry/{name}", **(window | said))
        assert status == 200, body
        return [row | {"t": (row["t"] - BEGIN_S) // 60} for row in body[name]]


@pytest.fixture
async def scene(database: OpenStore) -> AsyncIterator[Scene]:
    clock = SteppedClock(BEGIN_S * 1_000_000)
    bus = Bus(clock)
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        yield Scene(client, clock)


def ended(number: int, *, helper: str = "", model: ModelId = MODEL, wait_us: int = 0, service_us: int = 0) -> Finished:
    return msgspec.structs.replace(
        finished(number, helper=helper),
        model=model,
        wait_us=wait_us,
        service_us=service_us,
        tokens_in=100,
        tokens_out=50,
    )


async def test_requests_waits_service_and_tokens_are_those_of_the_facts_by_minute_model_and_node(scene: Scene):
    await scene.at(10).n1_says(
        ended(1, wait_us=1000, service_us=500_000), ended(2, helper="n2", wait_us=3000, service_us=100_000)
    )
    await scene.at(70).n1_says(ended(3, model=OTHER, wait_us=5000, service_us=1_000_000))
    requests = await scene.asked("requests")
    assert [(row["t"], row["model"], row["lent"], row["requests"]) for row in requests] == [
        (0, MODEL, False, 1),
        (0, MODEL, True, 1),
        (1, OTHER, False, 1),
    ]
    waits = await scene.asked("waits", model=MODEL)
    assert [(row["requests"], row["wait_mean_us"], row["wait_max_us"]) for row in waits] == [(2, 2000, 3000)]
    service = await scene.asked("service")
    assert [(row["t"], row["node"], row["service_p99_us"]) for row in service] == [
        (0, "n1", 500_000),
        (0, "n2", 100_000),
        (1, "n1", 1_000_000),
    ]
    tokens = await scene.asked("tokens", node="n2")
    assert [(row["node"], row["tokens_in"], row["tokens_out"], row["out_per_service_s"]) for row in tokens] == [
        ("n2", 100, 50, 500)
    ]


async def test_lends_and_returns_are_counted_for_each_pair_and_why_helpers_were_skipped_for_each_minute(scene: Scene):
    await scene.at(5).n1_says(lent(1), lent(2))
    await scene.n1_says(LendAnswered(request=request(1), status=200, service_us=7, **SENT))
    await scene.n1_says(LendReturned(request=request(2), reason="own_work", **SENT))
    skipped = verdict(helper="n3", outcome="skipped", code="cost_rejected")
    for _ in range(3):
        await scene.client.bus.commit(plan(verdict(), skipped, left_out=(("outranked", 5),)))
    [pair] = await scene.asked("lending")
    assert {name: pair[name] for name in ("owner", "helper", "lent", "answered", "returned", "cut_off")} == {
        "owner": "n1",
        "helper": "n2",
        "lent": 2,
        "answered": 1,
        "returned": 1,
        "cut_off": 0,
    }
    helpers = await scene.asked("helpers")
    assert [(row["helper"], row["outcome"], row["reason"], row["candidates"]) for row in helpers] == [
        ("", "left_out", "outranked", 15),
        ("n2", verdict().outcome, verdict().code, 3),
        ("n3", "skipped", "cost_rejected", 3),
    ]


async def test_what_was_sent_twice_or_not_believed_counts_once_or_not_at_all(scene: Scene):
    fact = ended(1)
    await scene.at(5).n1_says(fact)
    body = scene.n1.body(fact, pseq=1)
    await scene.client.bus[EVENTS].publish(scene.n1.subject(fact), body)  # the broker has forgotten its id
    await scene.n1_says(ended(2))
    await scene.client.bus.commit(rejected=((3, "bad_mac"),))
    assert [row["requests"] for row in await scene.asked("requests")] == [1]


async def test_counts_by_minute_say_what_the_rows_say(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    await scene.at(10).n1_says(*(ended(number, wait_us=number, service_us=10) for number in range(40)))
    await scene.n1_says(*(lent(number) for number in range(9)))
    await scene.n2_says(Loaded(model=OTHER, load_us=4, cause="borrowed", displaced=MODEL))
    await scene.client.bus.commit(plan(verdict(), verdict(helper="n3", outcome="skipped", code="cost_rejected")))
    names = ("requests", "tokens", "lending", "helpers", "loads", "waits", "service")
    exact = {name: await scene.asked(name) for name in names}
    monkeypatch.setattr(telemetry, "EXACT_ROWS_MAX", 0)
    for name in names:
        assert exact[name], name
        counted = await scene.asked(name)
        only_rows = ("ping_pong", "p50_us", "p95_us", "p99_us", "max_us")
        assert [{key: value for key, value in row.items() if not key.endswith(only_rows)} for row in exact[name]] == [
            {key: value for key, value in row.items() if not key.endswith(only_rows)} for row in counted
        ], name
        assert all(row[key] is None for row in counted for key in row if key.endswith(only_rows))


async def test_a_model_that_is_driven_out_and_comes_back_soon_went_to_and_fro(scene: Scene):
    await scene.at(10).n2_says(Loaded(model=OTHER, load_us=4_000_000, cause="borrowed", displaced=MODEL))
    await scene.at(100).n2_says(Restored(model=MODEL, load_us=5_000_000))
    await scene.at(110).n2_says(Loaded(model=OTHER, load_us=4_000_000, cause="borrowed", displaced=MODEL))
    await scene.at(590).n2_says(Restored(model=MODEL, load_us=5_000_000))
    rows = await scene.asked("loads")
    assert [
        (row["t"], row["loads"], row["loading_us"], row["displaced"], row["restored"], row["ping_pong"]) for row in rows
    ] == [
        (0, 1, 4_000_000, 1, 0, 0),
        (1, 2, 9_000_000, 1, 1, 1),
        (9, 1, 5_000_000, 0, 1, 0),
    ]
    assert rows[1]["loads_per_hour"] == 120


def registered(model: ModelId) -> Registered:
    info = ModelInfo(id=model, local_id=model, lane="text")
    return Registered(url="http://127.0.0.1:1", models=(info,), version="1", depth=1)


async def test_a_node_is_idle_only_while_it_was_known_to_be_well_and_served_nothing(scene: Scene):
    """n1 serves from second 100 to 160, and starts what has not ended at 500; n2 is silent from 300 on; n3 comes then."""
    await scene.at(-60).n1_says(registered(MODEL))
    await scene.n2_says(registered(OTHER))
    await scene.at(160).n1_says(ended(1, service_us=60_000_000), ended(2, helper="n3", service_us=60_000_000))
    await scene.at(300).silent("n2")
    await scene.client.bus.tell(Teller("n3"), registered(MODEL))
    await scene.at(500).n1_says(Started(request=request(9), model=MODEL, work=1, wait_us=0, in_engine=1))
    rows = await scene.asked("idle")
    told = {node: "".join(row["state"][0] for row in rows if row["node"] == node) for node in ("n1", "n2", "n3")}
    assert told == {"n1": "ibbiiiiibb", "n2": "iiiiiuuuuu", "n3": "uuuuuuiiii"}
    assert [round(row["served_us"] / 1e6) for row in rows if row["node"] == "n1"] == [0, 20, 40, 0, 0, 0, 0, 0, 40, 60]


async def test_nobody_is_called_idle_by_a_part_of_what_is_known(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    await scene.at(-60).n1_says(registered(MODEL))
    await scene.at(70).n1_says(ended(1, service_us=5_000_000), ended(2, service_us=5_000_000))
    await scene.at(80).n2_says(registered(OTHER))
    await caught_up(scene.client.projector, await scene.client.bus.ends())
    window: dict[str, Any] = {"from": BEGIN_S, "to": BEGIN_S + 600}
    monkeypatch.setattr(idleness, "FACTS_MAX", 2)
    assert (await scene.client.get("/admin/v1/telemetry/idle", **window))[0] == 200
    monkeypatch.setattr(idleness, "FACTS_MAX", 1)
    status, body, _ = await scene.client.get("/admin/v1/telemetry/idle", **window)
    assert (status, body["error"]["param"]) == (400, "from")


async def test_savings_are_the_predicted_backlog_of_the_owner_alone_against_what_was_measured(scene: Scene):
    """At second 10 the owner has three requests and 100 s to go alone; with the helper the last of them ends 40 s later."""
    big = msgspec.structs.replace(
        plan(verdict()), held=2, in_engine=1, out=0, drain_us=100_000_000, lent_drain_us=45_000_000
    )
    await scene.at(10).client.bus.commit(big)
    await scene.at(30).n1_says(ended(1, wait_us=5_000_000, service_us=20_000_000))
    await scene.at(40).n1_says(ended(2, helper="n2", wait_us=11_000_000, service_us=20_000_000))
    await scene.at(45).n1_says(ended(8, wait_us=1_000_000, service_us=4_000_000))  # came later: not of this backlog
    [early] = await scene.asked("savings")
    assert (early["measured_us"], early["saved_us"]) == (None, None), "one of the three has not ended"
    await scene.at(50).n1_says(ended(3, wait_us=21_000_000, service_us=20_000_000))
    [row] = await scene.asked("savings")
    assert {
        name: row[name] for name in ("t", "owner", "home_us", "planned_us", "backlog", "ended", "ended_at_helpers")
    } == {
        "t": 0,
        "owner": "n1",
        "home_us": 100_000_000,
        "planned_us": 45_000_000,
        "backlog": 3,
        "ended": 3,
        "ended_at_helpers": 1,
    }
    assert round(row["measured_us"] / 1e6) == 40
    assert row["saved_us"] == row["home_us"] - row["measured_us"]


async def test_a_backlog_that_lasts_over_several_steps_is_saved_once(scene: Scene):
    """Its greatest plan is in the second minute; one before it and one after it see parts of the same backlog."""

    def seen(held: int, drain_s: int) -> OwnerPlanned:
        said = plan(verdict())
        return msgspec.structs.replace(
            said, held=held, in_engine=0, out=0, drain_us=drain_s * 1_000_000, lent_drain_us=drain_s * 500_000
        )

    await scene.at(50).client.bus.commit(seen(1, 30))
    await scene.at(70).client.bus.commit(seen(3, 100))
    await scene.at(115).n1_says(ended(1, wait_us=40_000_000, service_us=26_000_000))
    await scene.at(118).n1_says(ended(2, helper="n2", wait_us=60_000_000, service_us=1_000_000))
    await scene.at(125).client.bus.commit(seen(1, 20))
    await scene.at(140).n1_says(ended(3, wait_us=60_000_000, service_us=24_000_000))
    await scene.at(400).client.bus.commit(seen(1, 20))
    await scene.at(410).n1_says(ended(4, wait_us=10_000_000, service_us=1_000_000))
    rows = await scene.asked("savings")
    told = [(row["t"], row["saved_us"] is not None, (row["counted_in"] - BEGIN_S) // 60) for row in rows]
    assert told == [(0, False, 1), (1, True, 1), (2, False, 1), (6, True, 6)]
    assert sum(round((row["saved_us"] or 0) / 1e6) for row in rows) == (100 - 70) + (20 - 10)


async def test_what_was_predicted_of_one_request_stands_beside_what_it_took(scene: Scene):
    said = msgspec.structs.replace(
        plan(verdict()),
        held=2,
        in_engine=0,
        out=0,
        owner_job_us=5_000_000,
        drain_us=10_000_000,
        lent_drain_us=5_000_000,
    )
    await scene.at(10).client.bus.commit(said)
    await scene.at(20).n1_says(ended(1, wait_us=12_000_000, service_us=1_000_000))
    await scene.at(21).n1_says(ended(2, helper="n2", wait_us=12_000_000, service_us=9_000_000))
    [row] = await scene.asked("savings")
    assert (row["home_job_us"], row["owner_service_us"]) == (5_000_000, 1_000_000)


async def test_a_window_that_breaks_a_rule_is_refused_by_its_name(scene: Scene):
    broken: list[tuple[str, dict[str, Any]]] = [
        ("step", {"step": 90}),
        ("step", {"step": 60, "from": BEGIN_S, "to": BEGIN_S + 86_400 * 30}),
        ("from", {"from": BEGIN_S + 1, "to": BEGIN_S}),
        ("from", {"from": "yesterday-ish"}),
        ("from", {"from": "812"}),
        ("node", {"node": "No Node"}),
        ("model", {"model": "x" * 300}),
        ("limit", {"limit": 5}),
    ]
    for param, said in broken:
        status, body, _ = await scene.client.get("/admin/v1/telemetry/requests", **said)
        assert (status, body["error"]["param"]) == (400, param), said


async def test_every_question_has_an_answer_while_there_is_nothing(scene: Scene):
    for name in NAMES:
        assert await scene.asked(name) == [], name


async def test_decisions_are_asked_for_in_the_words_that_people_use(scene: Scene):
    await scene.at(5).n1_says(held(1), lent(1))
    await scene.client.bus.commit(plan(verdict(), verdict(helper="n3", outcome="skipped", code="cost_rejected")))
    await scene.at(100).client.bus.commit(plan(verdict(helper="n3", outcome="skipped", code="cost_rejected")))
    await caught_up(scene.client.projector, await scene.client.bus.ends())
    path = "/admin/v1/decisions"
    assert len((await scene.client.rows(path))[0]) == 4
    assert [row["version"] for row in (await scene.client.rows(path, code="cost_rejected"))[0]] == [1, 2]
    [row], _ = await scene.client.rows(path, **{"code": "cost_rejected", "from": str(BEGIN_S + 60), "to": "now"})
    assert row["version"] == 2
    assert [row["kind"] for row in (await scene.client.rows(path, model=MODEL, request=request(1)))[0]] == ["lent"]
    assert await scene.client.rows(path, model="none/such") == ([], "")
    status, body, _ = await scene.client.get(path, code="a", reason="b")
    assert (status, body["error"]["param"]) == (400, "code")

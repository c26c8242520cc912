"""Telemetry over HTTP on a real ClickHouse: every figure is that of the facts, from rows and from counts by minute alike."""

from typing import Any

import pytest

from adapters.clickhouse import idleness, telemetry
from domain.events import (
    BorrowStarted,
    Failed,
    Input,
    LendAnswered,
    LendReturned,
    Loaded,
    Rejected,
    RequestOrphaned,
    Restored,
    Started,
    Unloaded,
)
from domain.ids import ModelId, NodeId
from domain.subjects import EVENTS
from services.projector.api_telemetry import NAMES
from tests.support.facts import HELPER, LINK, MODEL, Teller, held, lease, lent, plan, request, verdict
from tests.support.projections import caught_up
from tests.support.telemetry_scene import BEGIN_S, Scene, ended, registered, scene

pytestmark = pytest.mark.real
__all__ = ["scene"]  # a fixture

OTHER = ModelId("llama/8b")
SENT: dict[str, Any] = {"model": MODEL, "helper": HELPER, "link": LINK, "lease": lease()}


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


async def test_who_never_waited_and_who_was_never_served_do_not_thin_out_the_figures(scene: Scene):
    rejected = Rejected(request=request(2), model=MODEL, status=503, code="queue_full")
    failed = Failed(
        request=request(3), model=MODEL, wait_us=3000, service_us=1_500_000, status=502, code="engine_failed"
    )
    await scene.at(10).n1_says(ended(1, wait_us=1000, service_us=500_000), rejected, failed)
    await scene.client.bus.commit(RequestOrphaned(node=NodeId("n1"), model=MODEL, request=request(4)))
    [waits] = await scene.asked("waits")
    assert (waits["requests"], waits["wait_mean_us"]) == (2, 2000)
    [tokens] = await scene.asked("tokens")
    assert (tokens["requests"], tokens["out_per_service_s"]) == (1, 100)
    assert sum(row["requests"] for row in await scene.asked("requests")) == 4


async def test_loads_an_hour_are_of_the_time_that_the_window_shows_of_a_step(scene: Scene):
    await scene.at(100).n1_says(Loaded(model=OTHER, load_us=4, cause="own"))
    [row] = await scene.asked("loads", **{"from": BEGIN_S + 90, "to": BEGIN_S + 110})
    assert row["loads_per_hour"] == 3600 / 20


async def test_a_window_whose_rows_are_gone_is_answered_from_counts_by_minute(scene: Scene):
    await scene.at(10).n1_says(ended(1))
    await scene.asked("requests")
    store = scene.client.projector.store
    assert store is not None
    store.command("TRUNCATE TABLE requests")
    assert [row["requests"] for row in await scene.asked("requests")] == [1]


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
    def displaces(load_us: int) -> tuple[Input, ...]:
        loaded = Loaded(model=OTHER, load_us=load_us, cause="borrowed", displaced=MODEL)
        return Unloaded(model=MODEL, cause="borrowed"), loaded

    def restores(load_us: int) -> tuple[Input, ...]:
        """A load that brings a model back is said twice."""
        back = Loaded(model=MODEL, load_us=load_us, cause="restore"), Restored(model=MODEL, load_us=load_us)
        return Unloaded(model=OTHER, cause="restore"), *back

    await scene.at(10).n2_says(*displaces(4_000_000))
    await scene.at(100).n2_says(*restores(5_000_000))
    await scene.at(110).n2_says(*displaces(4_000_000))
    await scene.at(590).n2_says(*restores(5_000_000))
    rows = await scene.asked("loads")
    assert [
        (row["t"], row["loads"], row["loading_us"], row["displaced"], row["restored"], row["ping_pong"]) for row in rows
    ] == [
        (0, 1, 4_000_000, 1, 0, 0),
        (1, 2, 9_000_000, 1, 1, 2),
        (9, 1, 5_000_000, 0, 1, 0),
    ], "the model and, ten seconds later, what had driven it out; not the model once more, eight minutes later"
    assert rows[1]["loads_per_hour"] == 120


async def test_a_node_is_idle_only_while_it_was_known_to_be_well_and_served_nothing(scene: Scene):
    """n1 serves from second 100 to 160, and starts what has not ended at 500; n2 is silent from 300 on; n3 comes then."""
    await scene.at(-60).n1_says(registered(MODEL))
    await scene.n2_says(registered(OTHER))
    await scene.at(160).n1_says(ended(1, service_us=60_000_000), ended(2, helper="n3", service_us=60_000_000))
    await scene.at(300).silent("n2")
    await scene.client.bus.tell(Teller("n3"), registered(MODEL))
    await scene.at(500).n1_says(Started(request=request(9), model=MODEL, work=1, wait_us=0, in_engine=1))
    rows = await scene.at(600).asked("idle")
    told = {node: "".join(row["state"][0] for row in rows if row["node"] == node) for node in ("n1", "n2", "n3")}
    assert told == {"n1": "ibbiiiiibb", "n2": "iiiiiuuuuu", "n3": "uuuuuuiiii"}
    assert [round(row["served_us"] / 1e6) for row in rows if row["node"] == "n1"] == [0, 20, 40, 0, 0, 0, 0, 0, 40, 60]


@pytest.mark.parametrize("orphaned", [False, True])
async def test_what_a_dead_process_had_begun_runs_no_longer_than_its_node_was_heard_of(scene: Scene, orphaned: bool):
    """n1 starts a request at 10 and n2 a borrowed one; n1 is silent from 130 on and comes back at 290 as a new process."""
    await scene.at(-60).n1_says(registered(MODEL))
    await scene.n2_says(registered(MODEL))
    await scene.at(10).n1_says(Started(request=request(9), model=MODEL, work=1, wait_us=0, in_engine=1))
    await scene.n2_says(BorrowStarted(request=request(8), owner=NodeId("n1"), model=MODEL, link=LINK, lease=lease()))
    await scene.at(130).silent("n1")
    await scene.at(250).n2_says(registered(MODEL))
    await scene.at(290).n1_says(registered(MODEL))
    if orphaned:  # the master gives up what that process had
        await scene.client.bus.commit(RequestOrphaned(node=NodeId("n1"), model=MODEL, request=request(9)))
    rows = await scene.at(600).asked("idle")
    told = {node: "".join(row["state"][0] for row in rows if row["node"] == node) for node in ("n1", "n2")}
    assert told == {"n1": "bbbuuiiiii", "n2": "bbbbbiiiii"}
    assert {row["why"] for row in rows if row["state"] == "unknown"} == {"stale"}
    assert {row["why"] for row in rows if row["state"] != "unknown"} == {""}


async def test_of_what_is_still_to_come_nobody_is_called_idle_or_busy(scene: Scene):
    await scene.at(-60).n1_says(registered(MODEL))
    await scene.n2_says(registered(OTHER))
    await scene.at(130).n1_says(Started(request=request(9), model=MODEL, work=1, wait_us=0, in_engine=1))
    rows = await scene.at(299).asked("idle")
    told = {node: "".join(row["state"][0] for row in rows if row["node"] == node) for node in ("n1", "n2")}
    assert told == {"n1": "iibbbuuuuu", "n2": "iiiiiuuuuu"}
    assert {row["why"] for row in rows if row["state"] == "unknown"} == {"not_stored_yet"}


async def test_of_what_the_tables_do_not_hold_yet_nobody_is_called_idle(scene: Scene):
    """ClickHouse takes nothing from 250 on, where n1 starts a request."""
    await scene.at(-60).n1_says(registered(MODEL))
    await caught_up(scene.client.projector, await scene.client.bus.ends())
    store = scene.client.projector.store
    assert store is not None
    store.command("ALTER TABLE events ADD CONSTRAINT full CHECK seq < 2")
    await scene.at(250).n1_says(Started(request=request(9), model=MODEL, work=1, wait_us=0, in_engine=1))
    scene.at(600)
    window: dict[str, Any] = {"from": BEGIN_S, "to": BEGIN_S + 600}
    status, body, _ = await scene.client.get("/admin/v1/telemetry/idle", **window)
    assert status == 200, body
    assert "".join(row["state"][0] for row in body["idle"]) == "iiiiuuuuuu"
    assert {row["why"] for row in body["idle"] if row["state"] == "unknown"} == {"not_stored_yet"}
    store.command("ALTER TABLE events DROP CONSTRAINT full")
    assert "".join(row["state"][0] for row in await scene.asked("idle")) == "iiiibbbbbb"


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


async def test_a_window_from_the_beginning_of_time_has_what_there_is(scene: Scene):
    """Its steps are the longest that there may be, and what lies before it is nothing."""
    went = Unloaded(model=OTHER, cause="own"), Loaded(model=OTHER, load_us=4, cause="own")
    await scene.at(5).n1_says(held(1), held(2), went[0])
    await scene.client.bus.commit(plan(verdict()))
    await scene.at(9).n1_says(ended(1, service_us=7), ended(2, service_us=7), lent(3), went[1])
    await caught_up(scene.client.projector, await scene.client.bus.ends())
    ever: dict[str, Any] = {"from": "1970-01-01", "to": BEGIN_S + 600}
    for name in ("requests", "waits", "service", "tokens", "lending", "helpers", "loads", "savings"):
        status, body, _ = await scene.client.get(f"/admin/v1/telemetry/{name}", **ever)
        assert status == 200, body
        assert len(body[name]) == 1, name
    assert (await scene.client.get("/admin/v1/telemetry/loads", **ever))[1]["loads"][0]["ping_pong"] == 1
    rows, _ = await scene.client.rows("/admin/v1/decisions", to="1970-01-01")
    assert rows == []


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

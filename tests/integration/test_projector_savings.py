"""What telemetry says that lending saved, on a real ClickHouse: the backlog of a plan against what became of it."""

from typing import Any

import msgspec
import pytest

from adapters.clickhouse.savings import savings
from adapters.clickhouse.sink import Sink
from adapters.clickhouse.store import Store
from adapters.clickhouse.telemetry import Window
from domain.events import Cancelled, Input, OwnerPlanned
from domain.events.commit import encode_commit
from domain.ports import StoredMessage
from domain.subjects import EVENTS, LEDGER, ledger_subject
from projections.project import LAST_TABLE, Context, project
from projections.tables import RETAINED
from tests.support.facts import MODEL, Ledger, Teller, held, lent, plan, request, verdict
from tests.support.telemetry_scene import BEGIN_S, Scene, ended, registered, scene

pytestmark = pytest.mark.real
__all__ = ["scene"]  # a fixture


async def test_savings_are_the_predicted_backlog_of_the_owner_alone_against_what_was_measured(scene: Scene):
    """At second 10 the owner has three requests and 100 s to go alone; with the helper the last of them ends 40 s later."""
    big = msgspec.structs.replace(
        plan(verdict()), held=2, in_engine=1, out=0, drain_us=100_000_000, lent_drain_us=45_000_000
    )
    await scene.at(9).n1_says(held(1), held(2), held(3))
    await scene.at(10).client.bus.commit(big)
    await scene.at(12).n1_says(lent(2))
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

    await scene.at(49).n1_says(held(1))
    await scene.at(50).client.bus.commit(seen(1, 30))
    await scene.at(69).n1_says(lent(1), held(2), held(3))
    await scene.at(70).client.bus.commit(seen(3, 100))
    await scene.at(71).n1_says(lent(2), lent(3))
    await scene.at(115).n1_says(ended(1, wait_us=40_000_000, service_us=26_000_000))
    await scene.at(118).n1_says(ended(2, helper="n2", wait_us=60_000_000, service_us=1_000_000))
    await scene.at(125).client.bus.commit(seen(1, 20))
    await scene.at(140).n1_says(ended(3, wait_us=60_000_000, service_us=24_000_000))
    await scene.at(399).n1_says(held(4))
    await scene.at(400).client.bus.commit(seen(1, 20))
    await scene.at(401).n1_says(lent(4))
    await scene.at(410).n1_says(ended(4, wait_us=10_000_000, service_us=1_000_000))
    rows = await scene.asked("savings")
    told = [(row["t"], row["saved_us"] is not None, (row["counted_in"] - BEGIN_S) // 60) for row in rows]
    assert told == [(0, False, 1), (1, True, 1), (2, False, 1), (6, True, 6)]
    assert sum(round((row["saved_us"] or 0) / 1e6) for row in rows) == (100 - 70) + (20 - 10)


def two_held() -> OwnerPlanned:
    """Return a plan with leases that sees two requests, of which the owner alone has 100 s."""
    said = plan(verdict())
    figures = {"drain_us": 100_000_000, "lent_drain_us": 45_000_000, "owner_job_us": 50_000_000}
    return msgspec.structs.replace(said, held=2, in_engine=0, out=0, **figures)


async def test_an_end_is_stored_later_than_it_happened_and_its_request_is_of_the_backlog_all_the_same(scene: Scene):
    """Reckoned back from its end, each of them came a second after the plan, which was made at once."""
    await scene.at(10).n1_says(held(1), held(2))
    await scene.client.bus.commit(two_held())
    await scene.n1_says(lent(2))
    await scene.at(31).n1_says(ended(1, service_us=20_000_000), ended(2, helper="n2", service_us=20_000_000))
    await scene.at(32).n1_says(ended(3, wait_us=17_000_000, service_us=2_000_000))  # it came after all of them
    [row] = await scene.asked("savings")
    assert (row["backlog"], row["ended"], round(row["measured_us"] / 1e6), round(row["saved_us"] / 1e6)) == (
        2,
        2,
        21,
        79,
    )


async def test_what_the_commit_had_read_the_end_of_is_of_no_backlog_of_its_plan(scene: Scene):
    """The first one ended before the commit was stored, and has an end that was read; its stamp is that of the plan."""
    await scene.at(1).n1_says(held(1), held(2), held(3))
    await scene.at(10).n1_says(ended(1, wait_us=1_000_000, service_us=8_000_000))
    await scene.client.bus.commit(two_held())
    await scene.n1_says(lent(3))
    await scene.at(40).n1_says(ended(2, wait_us=9_000_000, service_us=30_000_000))
    [early] = await scene.asked("savings")
    assert early["measured_us"] is None
    await scene.at(60).n1_says(ended(3, wait_us=30_000_000, service_us=29_000_000, helper="n2"))
    [row] = await scene.asked("savings")
    assert round(row["measured_us"] / 1e6) == 50


async def test_a_backlog_of_which_nothing_was_lent_saves_nothing_whatever_was_predicted(scene: Scene):
    await scene.at(10).n1_says(held(1), held(2))
    await scene.client.bus.commit(two_held())
    await scene.at(30).n1_says(*(ended(number, wait_us=10_000_000, service_us=10_000_000) for number in (1, 2)))
    [row] = await scene.asked("savings")
    assert (row["lent"], round(row["measured_us"] / 1e6), row["saved_us"]) == (0, 20, 0)


async def test_who_left_would_not_have_been_served_alone_and_what_was_lent_before_would_have_been(scene: Scene):
    await scene.at(9).n1_says(held(1), lent(1), held(2), held(3))
    await scene.at(10).client.bus.commit(msgspec.structs.replace(two_held(), out=1))
    await scene.n1_says(lent(3))
    left = Cancelled(request=request(2), model=MODEL, wait_us=1_000_000, code="held")
    await scene.at(11).n1_says(left, ended(1, helper="n2", wait_us=1_000_000, service_us=1_000_000))
    await scene.at(40).n1_says(ended(3, helper="n2", wait_us=1_000_000, service_us=30_000_000))
    [row] = await scene.asked("savings")
    assert (row["home_us"], row["unfinished"], row["lent"]) == (150_000_000, 1, 2)
    assert round(row["saved_us"] / 1e6) == 150 - 50 - 30


@pytest.mark.parametrize("what", ["process", "spool"])
async def test_what_a_new_process_of_the_owner_or_a_spool_makes_unknown_is_not_measured(scene: Scene, what: str):
    await scene.at(10).n1_says(held(1), held(2))
    await scene.client.bus.commit(two_held())
    await scene.n1_says(lent(2))
    if what == "process":
        await scene.at(20).n1_says(registered(MODEL))
    first, second = ended(1, wait_us=1, service_us=20_000_000), ended(2, helper="n2", wait_us=1, service_us=20_000_000)
    await scene.at(30).n1_says(first)
    await scene.client.bus[EVENTS].publish(scene.n1.subject(second), scene.n1.body(second, late=what == "spool"))
    [row] = await scene.asked("savings")
    assert (row["ended"], row["measured_us"], row["saved_us"], row["saved_share"]) == (2, None, None, None)


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
    await scene.at(9).n1_says(held(1), held(2))
    await scene.at(10).client.bus.commit(said)
    await scene.at(20).n1_says(ended(1, wait_us=12_000_000, service_us=1_000_000))
    await scene.at(21).n1_says(ended(2, helper="n2", wait_us=12_000_000, service_us=9_000_000))
    [row] = await scene.asked("savings")
    assert (row["home_job_us"], row["owner_service_us"]) == (5_000_000, 1_000_000)


async def test_steps_of_savings_are_as_short_as_the_window_allows_since_a_step_shows_one_backlog(scene: Scene):
    steps: dict[str, list[int]] = {"savings": [], "requests": []}
    for name, found in steps.items():
        for days in (1, 30):
            window: dict[str, Any] = {"from": BEGIN_S - days * 86_400, "to": BEGIN_S}
            status, body, _ = await scene.client.get(f"/admin/v1/telemetry/{name}", **window)
            assert status == 200, body
            found.append(body["step"])
    assert steps == {"savings": [60, 3600], "requests": [900, 21_600]}


def test_an_end_in_an_earlier_life_of_the_stream_was_before_the_plan_whatever_its_sequence(store: Store):
    """LW_EVENTS was made anew: the end at sequence 90 of its first life is older than the plan that had read up to 2."""

    def write(stream: str, epoch: int, messages: list[StoredMessage]) -> None:
        sink = Sink(store, RETAINED, last_table=LAST_TABLE)
        sink.reached(stream, epoch)
        sink.write(stream, epoch, project(stream, epoch, messages, Context(router="test", events_epoch=epoch)).rows)

    def at(second: int) -> int:
        return (BEGIN_S + second) * 1_000_000_000

    n1 = Teller("n1")
    write(EVENTS, 1, [n1.tells(ended(9, wait_us=1_000_000, service_us=1_000_000), 90, at_ns=at(8))])
    facts: tuple[Input, ...] = (
        held(1),
        held(2),
        lent(2),
        ended(1, wait_us=1_000_000, service_us=20_000_000),
        ended(2, wait_us=21_000_000, service_us=20_000_000),
    )
    seconds = (9, 9, 11, 30, 50)
    write(
        EVENTS,
        2,
        [n1.tells(fact, seq, at_ns=at(s)) for seq, (fact, s) in enumerate(zip(facts, seconds, strict=True), 1)],
    )
    commit = Ledger().commit(two_held(), hi=2)
    write(LEDGER, 1, [StoredMessage(1, at(10), ledger_subject("local"), b"", encode_commit(commit))])
    [row] = savings(store, Window(since_s=BEGIN_S, until_s=BEGIN_S + 600, step_s=60)).rows
    assert (row["ended"], row["measured_us"]) == (2, 40_000_000)

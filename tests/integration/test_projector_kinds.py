"""Every kind of row comes out of real events, through the projector, into the real tables, and out of the read API's queries."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import asdict

from adapters.clickhouse import checkpoints, queries
from adapters.clickhouse.store import Store
from domain.ids import NodeId
from domain.subjects import EVENTS, observation_subject
from projections import decision_log, health, loads
from projections.tables import column_names
from tests.support.facts import CLUSTER, HELPER, LINK, Teller
from tests.support.kinds import CONDITIONS, DECISIONS, HELPERS, LOADS, OTHER, OWNERS, SEEN
from tests.support.projections import Bus, a_projector, caught_up, running

pytestmark = pytest.mark.real

Rows = list[dict[str, Any]]
Question = Callable[..., tuple[Rows, str]]


@pytest.fixture
async def told(database: Callable[[], Store]) -> dict[str, Rows]:
    """Return the rows of each table once one of everything was stated, in order of statement."""
    bus = Bus()
    helper, master = Teller(HELPER), Teller("master")
    projector = a_projector(bus, database)
    async with running(projector):
        await bus.commit(*DECISIONS)
        await bus.tell(Teller("n1"), *OWNERS)
        await bus.tell(helper, *HELPERS, *LOADS, *CONDITIONS)
        for observation in SEEN:
            await bus[EVENTS].publish(observation_subject(CLUSTER, 1, observation), master.body(observation))
        await caught_up(projector, await bus.ends())
        assert projector.store is not None
        asked = queries.Asked(limit=1000, after="")
        named: dict[str, Question] = {
            "decisions": queries.decisions,
            "loads": queries.loads,
            "health": queries.health,
        }
        rows = {table: ask(projector.store, column_names(table), asked)[0] for table, ask in named.items()}
        return rows | {"checkpoints": [asdict(each) for each in checkpoints.newest(projector.store, 10)]}


def of_kind(rows: Rows, kind: str) -> dict[str, Any]:
    [found] = [row for row in rows if row["kind"] == kind]
    return found


def states(rows: Rows, kind: str, **stated: Any) -> None:
    row = of_kind(rows, kind)
    assert {name: row[name] for name in stated} == stated, kind


async def test_every_kind_of_row_is_reachable_and_no_other_is_written(told: dict[str, Rows]):
    for table, kinds in (("decisions", decision_log.KINDS), ("loads", loads.KINDS), ("health", health.KINDS)):
        assert {row["kind"] for row in told[table]} == set(kinds), table
        assert len(told[table]) == len(kinds), table


async def test_a_plan_row_says_what_the_verdict_weighed(told: dict[str, Rows]):
    states(
        told["decisions"],
        "plan",
        trigger="enqueued",
        held=8,
        drain_us=11_000_000,
        outcome="skipped",
        reason="helper_recently_busy",
        source="helper",
        switch_us=3_000_000,
        job_us=1_000_000,
        back_us=9_000_000,
        ready_us=4_000_000,
        samples=17,
        probe_in_us=2_500_000,
        idle_us=500_000,
        out=1,
        quota=3,
        policy="1",
        router="test",
    )


async def test_the_masters_words_on_a_link_and_a_helper_say_their_numbers(told: dict[str, Rows]):
    rows = told["decisions"]
    states(rows, "granted", owner_job_us=2_000_000, work=64_000_000, ready_us=750_000, context=8192, vision=True)
    states(rows, "priced", faster=True, job_us=1_000_000, owner_job_us=2_000_000, link=LINK)
    states(rows, "checked", quiet_us=180_000_000, owner="n1", helper="n2")
    states(rows, "stalled", quiet_us=185_000_000, owner="n1", helper="n2")
    states(rows, "breaker", outcome="opened", failures=3, quarantine_us=15_000_000, helper="n2")


async def test_an_owners_rows_say_slots_what_is_out_and_both_times_of_a_kept_request(told: dict[str, Rows]):
    rows = told["decisions"]
    for kind, slots in (("lease_updated", 2), ("lease_cleared", 0), ("lease_refused", 2), ("lent", 2), ("returned", 2)):
        states(rows, kind, side="owner", owner="n1", helper="n2", slots=slots, out=1)
    states(rows, "lease_refused", reason="expired")
    states(rows, "held_for_helper", owner_finish_us=9_000_000, owner_job_us=4_000_000, job_us=1_000_000)
    states(rows, "held_for_helper", helper_finish_us=5_000_000, wait_us=1_200_000)
    states(rows, "relay_refused", reason="helper_unreachable")


async def test_a_helpers_rows_say_what_waited_and_what_was_handed_back_and_what_still_runs(told: dict[str, Rows]):
    rows = told["decisions"]
    states(rows, "native_waited_behind_borrowed", side="helper", borrowed_in_engine=2, wait_us=4_000_000)
    states(rows, "borrowed_returned", side="helper", owner="n1", after_arrival=True)
    states(rows, "still_running", side="helper", owner="n1", running_us=200_000_000)


async def test_loads_say_for_whom_how_long_and_what_had_to_leave(told: dict[str, Rows]):
    rows = told["loads"]
    states(rows, "loaded", node="n2", cause="borrowed", load_us=8_000_000, displaced=OTHER, ok=True)
    states(rows, "load_failed", cause="own", reason="no_memory", ok=False, load_us=0)
    states(rows, "restore_scheduled", model=OTHER, delay_us=1_500_000, ok=False)
    states(rows, "restored", model=OTHER, load_us=7_000_000, ok=True)
    states(rows, "restore_cancelled", reason="own_work", ok=False)


async def test_health_says_it_of_one_node_whoever_states_it(told: dict[str, Rows]):
    rows = told["health"]
    assert {row["node"] for row in rows} == {"n2"}
    states(rows, "changed", state="unhealthy", reason="heartbeat_missed", producer="")
    states(rows, "heartbeat_missed", silent_us=6_000_000, producer="master")
    states(rows, "not_accepting", reason="restoring", producer=str(NodeId("n2")))
    states(rows, "registered", node_version="0.1.0")


async def test_a_checkpoint_is_a_row_with_all_that_it_states(told: dict[str, Rows]):
    assert told["checkpoints"] == [asdict(SEEN[-1])]

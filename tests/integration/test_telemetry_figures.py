"""Each figure of telemetry is what plain Python counts from the events of a recorded run: nodes that lend, load and fail."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.clickhouse import telemetry
from adapters.clickhouse.savings import savings
from adapters.clickhouse.store import Store, open_store
from adapters.clickhouse.telemetry import SERIES, Window
from adapters.clock import SystemClock
from services.projector.api_telemetry import NAMES, question
from services.simulator.model.scenario import Arrival, Fault, Scenario
from tests.replay.million.virtual import Streamed
from tests.support.counted import VIEWS, Counted
from tests.support.recorded import a_life, a_scenario, project_all, with_stamps

pytestmark = pytest.mark.real

BEGIN_S = SystemClock().wall_us() // 1_000_000 // 86_400 * 86_400 - 43_200 + 25
"""Almost half a minute after noon of yesterday."""
SEEDS = range(5, 30)
"""Of the lives that are tried until one has everything."""
WINDOW = Window(since_s=BEGIN_S + 7, until_s=BEGIN_S + 100, step_s=60)
"""Neither end stands on a minute."""


class Life:
    """A recorded run in tables, and as it was stored."""

    def __init__(self, store: Store, stored: Streamed) -> None:
        self.store, self.counted, self.as_it_came = store, Counted(stored), Counted(stored, as_it_came=True)


@pytest.fixture(scope="module")
def life(engine_dsn: str) -> Iterator[Life]:
    lives = (with_stamps(a_life(events=3500, seed=seed, nodes=10, job_s=0.4), BEGIN_S) for seed in SEEDS)
    stored = next((lived for lived in lives if not missing_in(Counted(lived))), None)
    assert stored is not None, "in none of the lives does everything happen that is counted"
    asyncio.run(project_all(stored, lambda: open_store(engine_dsn, database="figures", readers=1)))
    store = open_store(engine_dsn, database="figures", readers=1)
    yield Life(store, stored)
    store.command("DROP DATABASE IF EXISTS figures")
    store.close()


def missing_in(counted: Counted) -> set[str]:
    """Return what does not happen in a recorded run, so that a comparison would compare nothing."""
    requests, lending, loads = counted.requests(WINDOW), counted.lending(WINDOW), counted.loads(WINDOW)
    wanted = {"finished", "cancelled", "failed", "orphaned"} - {row["outcome"] for row in requests}
    wanted |= {"granted", "skipped", "probe"} - {row["outcome"] for row in counted.helpers(WINDOW)}
    wanted |= {"busy", "idle", "unknown"} - {row["state"] for row in counted.idle(WINDOW)}
    happened = (
        ("lent", "answered", "returned", "cut_off", "cleared"),
        ("displaced", "restored", "ping_pong", "for_borrowed"),
    )
    for names, rows in zip(happened, (lending, loads), strict=True):
        wanted |= {name for name in names if not sum(row[name] for row in rows)}
    measured = [row["measured_us"] is not None for row in counted.backlogs(WINDOW).values()]
    wanted |= {"measured"} if sum(measured) < 5 else set()
    wanted |= {"unmeasured"} if all(measured) else set()
    return wanted | ({"sent twice"} if counted.repeated < 50 else set())


@pytest.mark.parametrize("name", VIEWS)
def test_each_figure_of_a_view_is_that_counted_from_the_events(life: Life, name: str):
    expected = VIEWS[name](life.counted, WINDOW)
    found = question(name)(life.store, WINDOW)
    assert found.source == "rows"
    assert len(expected) > 1
    for row, counted in zip(in_order(found.rows), in_order(expected), strict=True):
        values = counted.pop("values", None)
        assert {key: row[key] for key in counted} == {key: close(value) for key, value in counted.items()}
        if values is not None:
            assert_quantiles(row, name.removesuffix("s"), values)


@pytest.mark.parametrize("name", SERIES)
def test_each_figure_from_counts_by_minute_is_that_of_every_event_as_it_came(
    life: Life, name: str, monkeypatch: pytest.MonkeyPatch
):
    minutes = Window(since_s=BEGIN_S - 25, until_s=BEGIN_S + 95, step_s=60)
    monkeypatch.setattr(telemetry, "EXACT_ROWS_MAX", -1)
    found = question(name)(life.store, minutes)
    assert found.source == "minutes"
    expected = VIEWS[name](life.as_it_came, minutes)
    assert len(expected) > 1
    for row, counted in zip(in_order(found.rows), in_order(expected), strict=True):
        for only_of_rows in ("values", "ping_pong", "wait_max_us", "service_max_us"):
            counted.pop(only_of_rows, None)
        assert {key: row[key] for key in counted} == {key: close(value) for key, value in counted.items()}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in an order that does not depend on who counted."""
    keys = ("t", "owner", "node", "helper", "model", "outcome", "lent", "reason")
    return sorted(rows, key=lambda row: [row[key] for key in keys if key in row])


def close(value: Any) -> Any:
    """Return what equals `value`: a fraction is rounded."""
    return pytest.approx(value, abs=0.06) if isinstance(value, float) else value


def assert_quantiles(row: dict[str, Any], name: str, values: list[int]) -> None:
    """Each quantile lies among the values where it belongs: they are estimates."""
    for part in (50, 95, 99):
        quantile = row[f"{name}_p{part}_us"]
        quantile += quantile / 1e6  # it is a short float
        assert values[0] <= quantile <= 1.00001 * values[-1]
        assert abs(bisect_right(values, quantile) / len(values) - part / 100) <= 0.05 + 2 / len(values)


def test_every_view_is_compared():
    assert {*VIEWS, "savings"} == set(NAMES)


def test_the_backlog_of_each_plan_is_what_its_commit_had_read_of(life: Life):
    expected = life.counted.backlogs(WINDOW)
    found = {(row["t"], row["owner"], row["model"]): row for row in savings(life.store, WINDOW).rows}
    assert found.keys() == expected.keys()
    measured = {key: row["measured_us"] for key, row in expected.items()}
    assert {key: row["measured_us"] for key, row in found.items()} == measured
    for key in (key for key, known_us in measured.items() if known_us is not None):
        assert {name: found[key][name] for name in expected[key]} == expected[key], key


# -- a burst, lent and not


def burst(**more: Any) -> Scenario:
    """Return a burst of sixteen requests of two seconds each at node 0, which node 1 may help with."""
    drawn: dict[str, Any] = {"speeds": (1.0, 1.0), "loaded": (0, 0), "load_s": (1.0, 1.0), "links": {0: (1,)}}
    drawn |= {"unit_s": (2.0,), "one_model": True}
    drawn["arrivals"] = tuple(Arrival(5 + 0.01 * number, 0, 1.0, 1.0, False) for number in range(16))
    return Scenario(name="burst", **(drawn | more))


def drained_s(scenario: Scenario) -> tuple[float, int]:
    """Return how long the burst took in the simulator, and how many were lent."""
    _, cluster = a_scenario(scenario)
    jobs = cluster.clients.jobs
    ends = [job.ended_s for job in jobs if job.ended_s is not None]
    return max(ends) - min(job.arrived_s for job in jobs), sum(job.ran_at != job.owner for job in jobs)


async def saved(scenario: Scenario, database: Any) -> list[dict[str, Any]]:
    """Return what telemetry says was saved, long after the burst is over."""
    stored, _ = a_scenario(scenario)
    await project_all(with_stamps(stored, BEGIN_S), database)
    return savings(database(), Window(since_s=BEGIN_S - 300, until_s=BEGIN_S + 600, step_s=60)).rows


async def test_half_a_burst_lent_saves_what_the_simulator_says_the_same_burst_takes_longer_alone(database: Any):
    (alone_s, none), (lent_s, lent) = drained_s(burst(links={})), drained_s(burst())
    assert (none, lent) == (0, 8)
    rows = await saved(burst(), database)
    assert sum(row["saved_us"] or 0 for row in rows) / 1e6 == pytest.approx(alone_s - lent_s, rel=0.1)
    [row] = [row for row in rows if row["saved_us"] is not None]
    assert row["home_us"] / 1e6 == pytest.approx(alone_s, rel=0.05)
    assert row["measured_us"] / 1e6 == pytest.approx(lent_s, rel=0.05)
    assert row["lent"] >= lent - 1


async def test_a_burst_with_a_helper_too_slow_to_be_lent_to_saves_nothing(database: Any):
    slow = burst(speeds=(1.0, 0.02))
    assert drained_s(slow)[1] == 0
    assert await saved(slow, database) == []


async def test_a_helper_that_hangs_with_what_it_borrowed_loses_time_and_that_is_a_negative_number(database: Any):
    hung = burst(faults=(Fault(6.0, 1, "hang", 300.0),))
    rows = await saved(hung, database)
    (alone_s, _), (lent_s, _) = drained_s(burst(links={})), drained_s(hung)
    assert lent_s > alone_s + 5
    assert sum(row["saved_us"] or 0 for row in rows) / 1e6 == pytest.approx(alone_s - lent_s, rel=0.1)

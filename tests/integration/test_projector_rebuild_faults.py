"""Rows made again while it all goes wrong: kill -9 at any statement, tables that vanish, a ClickHouse that refuses half-way."""

import os
import random
from collections.abc import Callable
from functools import partial

import pytest

from adapters.clickhouse.store import Store
from domain.errors import StoreError
from domain.subjects import EVENTS, LEDGER
from projections.rollups import ROLLUPS
from services.projector.projector import Projector
from tests.support.facts import Teller, finished, granted, held, lent, plan, verdict
from tests.support.lives import life
from tests.support.projections import Bus, a_projector, caught_up, counts, running
from tests.support.projector_child import EXPECTED
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

OpenStore = Callable[[], Store]
LONG = partial(pytest.param, marks=pytest.mark.long)
CHILD = "tests.support.rebuild_child"
SEED = os.environ.get("LW_SEED") or str(random.SystemRandom().randrange(10**6))
STATEMENTS = 60
"""About as many as an undisturbed rebuild of these rows needs, while new ones come in."""


async def killed_then_whole(dsn: str, moments: list[tuple[str, int]]) -> None:
    database = f"rebuilt_{os.urandom(4).hex()}"
    for moment, number in moments:
        await life(CHILD, dsn, database, moment, number)
    _, told = await life(CHILD, dsn, database, "never")
    print(f"LW_SEED={SEED}: {moments}, then {told.pop('statements')} statements")
    assert told.pop("rebuild") == "done"
    assert told == EXPECTED


@pytest.mark.long
async def test_a_rebuild_that_is_killed_while_rows_come_in_loses_and_doubles_none(killed_dsn: str):
    dice = random.Random(SEED)
    await killed_then_whole(killed_dsn, [(dice.choice(["before", "after"]), dice.randrange(1, STATEMENTS))])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("campaign", range(int(os.environ.get("LW_KILLS", "24")) // 3))
async def test_campaign_of_kills_of_a_rebuild(killed_dsn: str, campaign: int):
    dice = random.Random(f"{SEED}/{campaign}")
    await killed_then_whole(
        killed_dsn, [(dice.choice(["before", "after"]), dice.randrange(1, STATEMENTS)) for _ in range(3)]
    )


class RefusingStore(Store):
    """Refuses one statement, as a server does that is restarted just then."""

    refused = ""
    """How it begins."""

    def command(self, statement: str) -> None:
        if RefusingStore.refused and statement.startswith(RefusingStore.refused):
            RefusingStore.refused = ""
            raise StoreError(f"clickhouse: was restarted: {statement[:40]}", code=394)
        super().command(statement)


async def a_history(bus: Bus, first: int, requests: int) -> None:
    teller = Teller("n1", pseq=3 * first)
    for number in range(first, first + requests):
        await bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
        await bus.commit(plan(verdict(), verdict()), granted())


def views(store: Store) -> int:
    names = {"names": [rollup.view for rollup in ROLLUPS]}
    asked = (
        "SELECT count() AS n FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}"
    )
    return int(store.query(asked, names)[0]["n"])


def left_over(store: Store) -> int:
    asked = "SELECT count() AS n FROM system.tables WHERE database = currentDatabase() AND name LIKE '%\\_new'"
    return int(store.query(asked)[0]["n"])


@pytest.mark.parametrize(
    "refused",
    ["EXCHANGE TABLES requests ", LONG("EXCHANGE TABLES decisions_by_minute "), LONG("CREATE TABLE requests_new")],
)
async def test_a_rebuild_that_clickhouse_refuses_half_way_leaves_all_as_it_was(database: OpenStore, refused: str):
    def open_it() -> Store:
        store = database()
        store.__class__ = RefusingStore
        return store

    bus = Bus()
    await a_history(bus, 0, 30)
    projector = a_projector(bus, open_it)
    async with running(projector):
        await caught_up(projector, await bus.ends())
        RefusingStore.refused = refused
        assert projector.rebuild("archive")
        await until("it is refused", lambda: projector.rebuilt.state == "failed", timeout_s=20)
        assert "was restarted" in projector.rebuilt.error
        await a_history(bus, 30, 10)
        await caught_up(projector, await bus.ends())
        asking = database()
        await until("what it made is dropped", lambda: left_over(asking) == 0)
        assert views(asking) == len(ROLLUPS), "counts go on"
        await _is_whole(projector, asking, 40)
        assert projector.rebuild("archive"), "another may begin"
        await until("it is done", lambda: projector.rebuilt.state == "done", timeout_s=20)
        await _is_whole(projector, asking, 40)


@pytest.mark.parametrize("dropped", ["events", LONG("requests"), LONG("requests_by_minute")])
async def test_a_table_that_somebody_drops_is_made_and_filled_again(database: OpenStore, dropped: str):
    bus = Bus()
    await a_history(bus, 0, 30)
    projector = a_projector(bus, database)
    async with running(projector):
        await caught_up(projector, await bus.ends())
    asking = database()
    asking.command(f"DROP TABLE {dropped} SYNC")
    await a_history(bus, 30, 1)
    projector = a_projector(bus, database)
    async with running(projector):
        await caught_up(projector, await bus.ends())
        await until("it is filled", lambda: not projector.rebuilt.busy, timeout_s=20)
        await _is_whole(projector, asking, 31)
        assert counts(asking, "events", EVENTS) == (93, 93)


async def test_a_rebuild_whose_tables_vanish_can_be_asked_for_again(database: OpenStore):
    bus = Bus()
    await a_history(bus, 0, 30)
    projector = a_projector(bus, database)
    async with running(projector):
        await caught_up(projector, await bus.ends())
        asking = database()
        opened = projector.store
        assert projector.rebuild("archive")
        await until("it runs", lambda: projector.rebuilt.state == "running")
        asking.command("DROP TABLE events SYNC")
        await a_history(bus, 30, 1)
        await until("the tables are opened anew", lambda: projector.store not in {None, opened}, timeout_s=20)
        assert not projector.rebuilt.busy, projector.rebuilt
        await caught_up(projector, await bus.ends())
        assert projector.rebuild("archive")
        await until("it ends", lambda: not projector.rebuilt.busy, timeout_s=20)


async def _is_whole(projector: Projector, store: Store, requests: int) -> None:
    assert counts(store, "requests", EVENTS) == (requests, requests)
    assert counts(store, "commits", LEDGER) == (requests, requests)
    looks = projector.counted.looks
    await until("counts are compared", lambda: projector.counted.looks > 0 or looks)
    [counted] = store.query("SELECT toUInt64(sum(rows)) AS n FROM requests_by_minute")
    assert counted["n"] == requests

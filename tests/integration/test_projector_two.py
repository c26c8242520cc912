"""Two projectors before one ClickHouse server: one writes, the other waits and takes over."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from adapters.clickhouse.causes import cause_of
from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.store import open_store
from adapters.clock import SystemClock
from domain.errors import StoreError
from domain.subjects import EVENTS
from projections.tables import MIGRATIONS
from services.projector import alone as alone_module
from services.projector import backoff as backoff_module
from services.projector.projector import Projector, Setup
from tests.integration.test_projector_api import Client
from tests.support.chdb import ON_SERVER
from tests.support.clickhouse_http import HttpClickhouse
from tests.support.facts import CLUSTER, Teller, finished, lent
from tests.support.lives import life
from tests.support.projections import QUICK, Bus, caught_up, counts, running
from tests.support.projector_child import EXPECTED
from tests.support.sick_clickhouse import Sickness, sick_clickhouse
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
AWAY = Sickness(instead=(502, b"<html><body>Bad Gateway</body></html>"))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait long for another attempt."""
    monkeypatch.setattr(backoff_module, "_MAX_S", 0.5)


@pytest.fixture
async def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Return a server that any number of processes can reach."""
    if ON_SERVER:
        yield str(request.getfixturevalue("engine_dsn"))
        return
    async with HttpClickhouse(tmp_path / "clickhouse") as server:
        yield server.dsn


def a_projector_on(host: str, dsn: str, bus: Bus) -> Projector:
    """Return a projector on another machine: one on this one is seen to have ended."""
    opening = partial(open_store, dsn, database=f"two_{id(bus):x}", readers=3)
    return Projector(
        Setup(
            cluster=CLUSTER,
            router="test",
            streams=bus.streams,
            open_store=opening,
            clock=bus.clock,
            host=host,
            limits=QUICK,
        )
    )


@pytest.mark.long
async def test_of_two_processes_that_start_at_once_one_writes_and_the_other_waits_for_its_end(dsn: str):
    database = f"at_once_{os.urandom(4).hex()}"
    lives = await asyncio.gather(*(life("tests.support.projector_child", dsn, database, "never") for _ in range(2)))
    inserts = sorted(told.pop("inserts") for _, told in lives)
    assert [told for _, told in lives] == [EXPECTED] * 2
    assert inserts[0] < 10 < inserts[1], "the second one found everything there"


async def test_the_second_one_says_who_writes_and_goes_on_when_the_first_one_ends(dsn: str):
    bus, teller = Bus(), Teller("n1")
    await bus.tell(teller, *(lent(number) for number in range(10)))
    first, second = a_projector_on("attic", dsn, bus), a_projector_on("studio", dsn, bus)
    async with AsyncExitStack() as of_second, AsyncExitStack() as of_first:
        await of_first.enter_async_context(running(first))
        await caught_up(first, await bus.ends())
        await of_second.enter_async_context(running(second))
        await until("the other one waits", lambda: second.causes == {"taken"})
        async with Client(second, bus) as client:
            status, health, _ = await client.get("/health")
        assert (status, "on attic" in health["error"]) == (503, True), health["error"]
        await of_first.aclose()
        await bus.tell(teller, *(lent(number) for number in range(10, 20)))
        await caught_up(second, await bus.ends(), timeout_s=60)
        assert second.store is not None
        assert await asyncio.to_thread(counts, second.store, "events", EVENTS) == (20, 20)


async def test_one_that_was_cut_off_makes_way_for_the_one_that_took_over(dsn: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alone_module, "BEAT_S", 0.2)
    monkeypatch.setattr(alone_module, "ALIVE_S", 4)  # whole seconds: less, and a busy machine is taken for gone
    bus, teller = Bus(), Teller("n1")
    async with sick_clickhouse(dsn) as door:
        first, second = a_projector_on("attic", door.dsn, bus), a_projector_on("studio", dsn, bus)
        async with running(first):
            await bus.tell(teller, *(lent(number) for number in range(10)))
            await caught_up(first, await bus.ends())
            async with running(second):
                await until("the other one waits", lambda: second.causes == {"taken"})
                door.suffers(AWAY)
                await bus.tell(teller, *(lent(number) for number in range(10, 20)))
                await caught_up(second, await bus.ends(), timeout_s=60)
                door.is_well()
                await until("the first one makes way", lambda: first.causes == {"taken"}, timeout_s=30)
                await bus.tell(teller, *(lent(number) for number in range(20, 30)))
                await caught_up(second, await bus.ends(), timeout_s=60)
                assert second.store is not None
                rows, messages = await asyncio.to_thread(counts, second.store, "events", EVENTS)
                assert messages == 30
                final = "SELECT count() AS n FROM events FINAL WHERE stream = {s:String}"
                assert (await asyncio.to_thread(second.store.query, final, {"s": EVENTS}))[0]["n"] == 30, rows


async def test_a_table_that_was_dropped_is_filled_by_the_one_that_writes_though_another_one_waits(dsn: str):
    bus, teller = Bus(), Teller("n1")
    await bus.tell(teller, *(finished(number) for number in range(10)))
    first, second = a_projector_on("attic", dsn, bus), a_projector_on("studio", dsn, bus)
    async with running(first):
        await caught_up(first, await bus.ends())
        assert first.store is not None
        await asyncio.to_thread(first.store.command, "DROP TABLE requests SYNC")
        async with running(second):
            await until("the other one waits", lambda: second.causes == {"taken"})
            await bus.tell(teller, *(finished(number) for number in range(10, 20)))

            async def filled() -> bool:
                with suppress(StoreError):  # it is not there yet
                    store = first.store
                    return store is not None and await asyncio.to_thread(counts, store, "requests", EVENTS) == (20, 20)
                return False

            await until("it has its rows again", filled, timeout_s=60)


async def test_one_whose_word_is_gone_opens_tables_anew_that_another_one_may_have_made_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(alone_module, "BEAT_S", 0.05)
    store = await asyncio.to_thread(open_store, dsn, database=f"anew_{os.urandom(4).hex()}")
    await asyncio.to_thread(migrate, store, MIGRATIONS)
    alone = alone_module.Alone("attic", SystemClock())
    await alone.begin(store)
    keeping = asyncio.create_task(alone.keep(store))

    async def ended() -> bool:
        await asyncio.to_thread(store.command, "TRUNCATE TABLE writers")
        return keeping.done()

    try:
        await until("it finds that its word is gone", ended, timeout_s=30, every_s=0.1)
        with pytest.raises(StoreError, match="somebody has dropped it") as raised:
            keeping.result()
        assert cause_of(raised.value) == "no_table"
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(store.close)

"""A projector that was away for longer than the streams keep: what is gone is named, everywhere, and the rest is read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.clickhouse.idleness import gone
from adapters.clickhouse.notes import Notes
from adapters.clickhouse.sink import Sink
from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from adapters.keys import Credentials, save_credentials
from adapters.log.copied import CopiedStream
from adapters.log.verify import Part
from domain.events import Input, Started
from domain.subjects import CONTROL, EVENTS, LEDGER
from projections.project import LAST_TABLE, Context, project
from projections.tables import RETAINED
from services.cli.audit_source import Source, opened
from services.cli.audit_workers import verified
from services.projector.api import Api
from services.projector.health import Health
from services.projector.metrics import ProjectorMetrics
from services.projector.projector import Projector, Setup
from tests.integration.test_projector_api import Client
from tests.mutations.life import lived
from tests.support.facts import MODEL, Teller, granted, lent, plan, request, verdict
from tests.support.history import CLUSTER, SECRET, START_NS
from tests.support.projections import QUICK, Bus, SteppedClock, a_projector, caught_up, counts, running
from tests.support.telemetry_scene import ended, registered
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
DAY_NS = 86_400 * 10**9


async def test_what_the_streams_let_go_of_meanwhile_is_named_and_the_rest_is_read(database: OpenStore):
    bus, teller = Bus(), Teller("n1")
    await bus.tell(teller, *(lent(number) for number in range(20)))
    for _ in range(10):
        await bus.commit(plan(verdict()), granted())
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    await bus.tell(teller, *(lent(number) for number in range(20, 100)))
    for _ in range(30):
        await bus.commit(plan(verdict()), granted())
    bus[EVENTS].expire(before=61)
    bus[LEDGER].expire(before=21)
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await caught_up(projector, await bus.ends())
        _, health, _ = await client.get("/health")
        assert sorted((gap["stream"], gap["first_seq"], gap["last_seq"]) for gap in health["gaps"]) == [
            (EVENTS, 21, 60),
            (LEDGER, 11, 20),
        ]
        assert {each["stream"]: each["gone"] for each in health["streams"]} == {EVENTS: 40, LEDGER: 10, CONTROL: 0}
        text = ProjectorMetrics(projector, lambda: True).instruments.exposition("text/plain")[1].decode()
        assert f'leaseway_projector_gone_total{{stream="{EVENTS}"}} 40.0' in text
        assert (health["status"], projector.progress[LEDGER].void) == ("ok", 0), "after the gap the chain goes on"
        assert counts(database(), "events", EVENTS) == (60, 60)
        assert counts(database(), "decisions", LEDGER) == (2 * 30, 30)


async def test_nobody_is_called_idle_of_whom_messages_are_gone(database: OpenStore):
    """What n1 starts from 150 to 250 is gone when the projector comes back."""
    begin_s = SystemClock().wall_us() // 60_000_000 * 60 - 3600
    clock = SteppedClock(begin_s * 1_000_000)
    bus, teller = Bus(clock), Teller("n1")

    async def tell(second: int, *facts: Input) -> None:
        clock.now_us = (begin_s + second) * 1_000_000
        await bus.tell(teller, *facts)

    await tell(-60, registered(MODEL))
    await tell(130, ended(1, service_us=5_000_000))
    async with running(a_projector(bus, database)) as projector:
        await caught_up(projector, await bus.ends())
    await tell(150, Started(request=request(2), model=MODEL, work=1, wait_us=0, in_engine=1))
    await tell(250, Started(request=request(3), model=MODEL, work=1, wait_us=0, in_engine=1))
    await tell(310, ended(4, service_us=5_000_000))
    bus[EVENTS].expire(before=5)
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await caught_up(projector, await bus.ends())
        clock.now_us = (begin_s + 480) * 1_000_000
        window: dict[str, Any] = {"from": begin_s, "to": begin_s + 480}
        _, body, _ = await client.get("/admin/v1/telemetry/idle", **window)
        assert "".join(row["state"][0] for row in body["idle"]) == "iibuubii"
        assert {row["why"] for row in body["idle"] if row["state"] == "unknown"} == {"messages_gone"}


def test_a_gap_at_the_end_of_a_streams_life_ends_where_the_next_life_begins(store: Store):
    def write(epoch: int, at_ns: int) -> None:
        sink = Sink(store, RETAINED, last_table=LAST_TABLE)
        sink.reached(EVENTS, epoch)
        messages = [Teller("n1").tells(lent(1), 1, at_ns=at_ns)]
        sink.write(EVENTS, epoch, project(EVENTS, epoch, messages, Context(router="test", events_epoch=epoch)).rows)

    now_ns = SystemClock().wall_us() * 1000
    write(1, now_ns)
    Notes(store, "local").add_gap(EVENTS, 1, 2, 5, now_ns=now_ns)
    assert gone(store) == [{"from_ns": now_ns, "to_ns": 0}]
    write(2, now_ns + 7)
    assert gone(store) == [{"from_ns": now_ns, "to_ns": now_ns + 7}]


async def test_what_goes_while_it_waits_for_clickhouse_is_named_too(database: OpenStore):
    """It holds two batches and reads on after them: what is gone by then is the gap, and no more."""
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    class WaitingStore(Store):
        def insert_columns(self, table: str, columns: dict[str, list[object]], *, token: str) -> None:  # type: ignore[override]
            if table == "events":
                asyncio.run_coroutine_threadsafe(held.wait(), loop).result()
            super().insert_columns(table, columns, token=token)

    def open_it() -> Store:
        store = database()
        store.__class__ = WaitingStore
        return store

    bus, teller = Bus(), Teller("n1")
    bus[EVENTS].batch_max = 50
    await bus.tell(teller, *(lent(number) for number in range(1000)))
    projector = a_projector(bus, open_it)
    async with running(projector):
        await until("it holds what it has read", lambda: projector.store is not None, timeout_s=60)
        await until("a batch that waits", lambda: projector.progress[EVENTS].epoch == 1, timeout_s=60)
        bus[EVENTS].expire(before=801)
        held.set()
        await caught_up(projector, await bus.ends())
        assert projector.notes is not None
        [gap] = projector.notes.gaps()
        assert gap["last_seq"] == 800
        kept = 1000 - (int(str(gap["last_seq"])) - int(str(gap["first_seq"])) + 1)
        assert counts(database(), "events", EVENTS) == (kept, kept)


@pytest.fixture
async def gapped(database: OpenStore) -> AsyncIterator[tuple[str, int, int]]:
    """Serve the archive of a history of yesterday of which the projector missed some facts; return (url, first, last) missed."""
    life = lived(3, later_ns=SystemClock().wall_us() * 1000 - START_NS - DAY_NS)
    whole = life.streams()
    facts = list(whole[EVENTS])
    first, last = facts[len(facts) // 2].seq, facts[len(facts) // 2 + 20].seq
    streams = {name: CopiedStream(name, list(messages)) for name, messages in whole.items()}
    streams[EVENTS] = CopiedStream(EVENTS, [message for message in facts if not first <= message.seq <= last])
    clock = SystemClock()
    setup = Setup(cluster=CLUSTER, router="t", streams=streams, open_store=database, clock=clock, limits=QUICK)
    projector = Projector(setup)
    async with running(projector):
        await projector.tried.wait()
        await caught_up(projector, {name: messages[-1].seq for name, messages in whole.items()}, timeout_s=60)
        api = Api(projector, Health(projector, "t"), clock)
        server = HttpServer(api.handle, connections_max=8, served_by="projector")
        yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}", first, last
        await server.stop()


async def test_an_audit_of_the_archive_names_all_that_is_missing(gapped: tuple[str, int, int], tmp_path: Path):
    url, first, last = gapped
    secrets = Credentials(name="o", role="operator", cluster=CLUSTER, nkey_seed="", cluster_mac_secret=SECRET)
    save_credentials(tmp_path / "o.json", secrets)
    source = Source(kind="archive", cluster=CLUSTER, key=str(tmp_path / "o.json"), projector_url=url)
    async with opened(source) as place:
        report = await verified(source, place, Part(), workers=1, fold_max=1000, progress=lambda _, __: None)
    assert not report.clean
    [difference] = report.differences
    assert difference.place == "events"
    assert f"messages {first} to {last} are not in the archive" in difference.detail

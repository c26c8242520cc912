"""A ClickHouse that takes no rows, whatever the reason: it is named, nothing is lost or kept in memory, all is caught up with."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.clickhouse import store as store_module
from adapters.clickhouse.causes import CAUSES
from adapters.clickhouse.store import open_store
from adapters.memory.stream import MemoryStream
from domain.ports import StoredMessage
from domain.subjects import EVENTS, LEDGER
from services.projector import backoff as backoff_module
from services.projector import health as health_module
from services.projector.batches import BatchLimits
from services.projector.metrics import ProjectorMetrics
from services.projector.projector import Projector
from tests.integration.test_projector_api import Client
from tests.support.chdb import ON_SERVER
from tests.support.clickhouse_http import HttpClickhouse
from tests.support.facts import Teller, granted, lent, plan, verdict
from tests.support.projections import Bus, a_projector, caught_up, counts, running
from tests.support.sick_clickhouse import Door, Sickness, sick_clickhouse
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

REFUSING = {
    "read_only": "table_readonly = 1",
    "disk_full": "min_free_disk_bytes_to_perform_insert = 1000000000000000000",
    "too_many_parts": "parts_to_throw_insert = 1, parts_to_delay_insert = 0",
}
if not ON_SERVER:  # an embedded engine counts neither parts nor room before it takes rows that are streamed to it
    del REFUSING["disk_full"], REFUSING["too_many_parts"]
"""What makes the table of messages refuse them, by the cause that it is."""
SICK = {
    "memory": Sickness(settings={"max_memory_usage": "1", "max_untracked_memory": "0"}, writes_only=True),
    "read_only": Sickness(settings={"readonly": "1"}, writes_only=True),
    "not_allowed": Sickness(user="nobody"),
    "no_table": Sickness(database="nowhere"),
    "slow": Sickness(delay_s=30),
    "away": Sickness(instead=(502, b"<html><body>Bad Gateway</body></html>")),
}
READ_ON = {"read_only", "memory", *REFUSING}
"""What these suffer from keeps nobody from asking."""
PIECE, BATCH = 200, 500
_TROUBLE = "leaseway_clickhouse_trouble"


class TellingStream(MemoryStream):
    """Says how far it was read."""

    read_up_to = 0

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        async for batch in super().read(after=after, until=until):
            TellingStream.read_up_to = batch[-1].seq
            yield batch


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait long for an answer, or for another attempt."""
    monkeypatch.setattr(store_module, "ANSWER_S", 1)
    monkeypatch.setattr(store_module, "READ_ANSWER_S", 1)
    monkeypatch.setattr(backoff_module, "_MAX_S", 0.5)


@pytest.fixture
async def door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Door]:
    """Return a door before an engine in a process of its own, or before the server of these tests."""
    if ON_SERVER:
        async with sick_clickhouse(str(request.getfixturevalue("engine_dsn"))) as made:
            yield made
        return
    async with HttpClickhouse(tmp_path / "clickhouse") as server, sick_clickhouse(server.dsn) as made:
        yield made


def a_bus() -> Bus:
    bus = Bus()
    bus.streams[EVENTS] = TellingStream(EVENTS, bus.clock, batch_max=PIECE)
    return bus


def through(door: Door, bus: Bus) -> Projector:
    database = f"sick_{id(bus):x}"
    limits = BatchLimits(messages=BATCH, wait_s=0.01)
    return a_projector(bus, lambda: open_store(door.dsn, database=database, readers=3), limits=limits)


async def comes(bus: Bus, first: int, count: int) -> None:
    await bus.tell(Teller("n1", pseq=first), *(lent(number) for number in range(first, first + count)))
    for _ in range(10):
        await bus.commit(plan(verdict(), verdict()), granted())


async def metric(projector: Projector, name: str) -> str:
    """Return the lines of a metric."""
    measured = ProjectorMetrics(projector, lambda: True)
    text = measured.instruments.exposition("text/plain")[1].decode()
    return "\n".join(line for line in text.splitlines() if line.startswith(name))


class Patient:
    """A projector before a ClickHouse that falls ill, and what it has to hold in the end."""

    def __init__(self, bus: Bus, projector: Projector, client: Client) -> None:
        self.bus, self.projector, self.client = bus, projector, client
        self.told = self.committed = 0

    async def goes_on(self, count: int) -> None:
        await comes(self.bus, self.told, count)
        self.told, self.committed = self.told + count, self.committed + 10

    async def is_ill(self, cause: str) -> None:
        """Check that it says so, and keeps nothing that it cannot store."""
        before = self.projector.progress[EVENTS].position
        await self.goes_on(3 * BATCH)
        await until(f"{cause} to be named", lambda: self.projector.causes == {cause}, timeout_s=15)
        status, health, _ = await self.client.get("/health")
        assert cause in health["causes"], health
        assert (status == 200) == (cause in READ_ON), (cause, status, health["status"])
        assert f'leaseway_clickhouse_trouble{{cause="{cause}"}} 1.0' in await metric(self.projector, _TROUBLE)
        assert self.projector.progress[EVENTS].position - before < 3 * BATCH, cause
        assert TellingStream.read_up_to - before <= 2 * BATCH + 2 * PIECE, "the rest stays in the stream"

    async def is_well_again(self) -> None:
        await caught_up(self.projector, await self.bus.ends(), timeout_s=40)
        await until("it says that all is well", lambda: not self.projector.causes)

    async def is_whole(self) -> None:
        store = self.projector.store
        assert store is not None
        for table in ("events", "decisions"):
            assert await asyncio.to_thread(counts, store, table, EVENTS) == (self.told, self.told), table
        for table in ("events", "commits"):
            assert await asyncio.to_thread(counts, store, table, LEDGER) == (self.committed, self.committed), table
        assert "trouble{" not in await metric(self.projector, _TROUBLE)


@contextlib.asynccontextmanager
async def a_patient(door: Door) -> AsyncIterator[Patient]:
    bus = a_bus()
    projector = through(door, bus)
    async with running(projector), Client(projector, bus) as client:
        patient = Patient(bus, projector, client)
        await patient.goes_on(50)
        await patient.is_well_again()
        yield patient
        await patient.is_whole()


async def test_a_table_that_refuses_rows_is_named_and_all_is_caught_up_with(door: Door):
    async with a_patient(door) as patient:
        store = patient.projector.store
        assert store is not None
        for cause, settings in REFUSING.items():
            await asyncio.to_thread(store.command, f"ALTER TABLE events MODIFY SETTING {settings}")
            await patient.is_ill(cause)
            names = ", ".join(setting.partition(" ")[0] for setting in settings.split(", "))
            await asyncio.to_thread(store.command, f"ALTER TABLE events RESET SETTING {names}")
            await patient.is_well_again()


@pytest.mark.long
async def test_each_reason_for_which_no_rows_are_taken_is_named_and_all_is_caught_up_with(door: Door):
    async with a_patient(door) as patient:
        for cause, sickness in SICK.items():
            door.suffers(sickness)
            await patient.is_ill(cause)
            door.is_well()
            await patient.is_well_again()
    assert SICK.keys() | REFUSING.keys() <= CAUSES.keys()


WRONG = {
    "a page in its place": Sickness(instead=(200, b"<html><body>Please sign in</body></html>")),
    "nothing at all": Sickness(instead=(200, b"")),
    "an answer that is cut off": Sickness(cut_at=10),
}


async def test_whatever_answers_in_its_place_the_projector_lives_and_goes_on_afterwards(door: Door):
    bus = a_bus()
    projector = through(door, bus)
    async with running(projector) as live, Client(projector, bus) as client:
        await comes(bus, 0, 50)
        await caught_up(projector, await bus.ends())
        told = 50
        for name, sickness in WRONG.items():
            door.suffers(sickness)
            await comes(bus, told, 50)
            told += 50
            await until(f"{name} to be met", lambda: door.refused > 3, timeout_s=20)
            status, health, _ = await client.get("/health")
            assert status == 503, (name, health)
            door.is_well()
            await caught_up(live, await bus.ends(), timeout_s=40)
        assert projector.store is not None
        assert await asyncio.to_thread(counts, projector.store, "events", EVENTS) == (told, told)


@pytest.mark.long
async def test_one_that_is_read_only_from_the_start_answers_questions_all_the_same(door: Door):
    bus = a_bus()
    await comes(bus, 0, 50)
    first = through(door, bus)
    async with running(first):
        await caught_up(first, await bus.ends())
    door.suffers(Sickness(settings={"readonly": "2"}))
    await comes(bus, 50, 50)
    projector = through(door, bus)
    async with running(projector), Client(projector, bus) as client:
        await until("it is named", lambda: projector.causes == {"read_only"}, timeout_s=15)
        status, said, _ = await client.get("/v1/decisions", limit=1000)
        assert (status, len(said["decisions"])) == (200, 50 + 10 * 3), "of what was stored before"
        door.is_well()
        await caught_up(projector, await bus.ends())


async def test_while_it_says_nothing_health_answers_within_seconds_and_names_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "READ_ANSWER_S", 20)
    monkeypatch.setattr(health_module, "_TABLES_S", 0.5)
    bus = a_bus()
    projector = through(door, bus)
    async with running(projector), Client(projector, bus) as client:
        await comes(bus, 0, 50)
        await caught_up(projector, await bus.ends())
        door.suffers(Sickness(delay_s=30))
        async with asyncio.timeout(3):  # however many ask
            answers: list[Any] = await asyncio.gather(*(client.get("/health") for _ in range(6)))
        assert {(status, body["status"], "slow" in body["causes"]) for status, body, _ in answers} == {
            (503, "clickhouse_slow", True)
        }
        door.is_well()
        await until("it is well", lambda: projector.store is not None)
        assert (await client.get("/health"))[0] == 200

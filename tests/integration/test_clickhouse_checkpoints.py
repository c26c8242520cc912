"""Signed checkpoints in ClickHouse, on a real one: each once, the newest for ever, and made again like any other row."""

from collections.abc import AsyncIterator, Callable

import pytest

from adapters.clickhouse import checkpoints
from adapters.clickhouse.retention import drop_days
from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from adapters.keys import Signer, new_nkey
from adapters.log.checkpoints import is_signed, sign
from domain.events import Checkpoint, SettingChanged
from domain.ids import Generation
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, observation_subject
from projections.project import Context, project
from services.projector.projector import Projector
from services.projector.retain import NEWEST, RETENTION
from tests.integration.test_clickhouse_sink import a_sink
from tests.integration.test_projector_api import Client
from tests.support.facts import CLUSTER, DAY_NS, Teller, control
from tests.support.projections import Bus, a_projector, caught_up, counts, running
from tests.support.waiting import until

pytestmark = pytest.mark.real

OpenStore = Callable[[], Store]
SIGNER = Signer(new_nkey()[0])
NOW_NS = SystemClock().wall_us() * 1000
MASTER = Teller("master")


def at(version: int, generation: str = "00010000") -> Checkpoint:
    draft = Checkpoint(
        cluster=CLUSTER,
        generation=Generation(generation),
        version=version,
        digest="ab" * 16,
        hi=version * 3,
        chi=1,
        state="cd" * 16,
        tail_hi=version * 3 + 2,
        tail_chi=1,
        tail="ef" * 16,
        at_us=NOW_NS // 1000,
    )
    return sign(draft, SIGNER)


async def say(bus: Bus, *said: Checkpoint) -> None:
    for each in said:
        await bus[EVENTS].publish(observation_subject(CLUSTER, 1, each), MASTER.body(each))


def write(store: Store, *aged: tuple[int, Checkpoint]) -> None:
    """Write checkpoints that are so many days old, each as one message after the other."""
    messages = [
        StoredMessage(
            seq, NOW_NS - days * DAY_NS, observation_subject(CLUSTER, 1, each), b"", MASTER.body(each, pseq=seq)
        )
        for seq, (days, each) in enumerate(aged, 1)
    ]
    a_sink(store).write(EVENTS, 1, project(EVENTS, 1, messages, Context(router="test")).rows)


def versions(store: Store) -> list[int]:
    return [each.version for each in checkpoints.newest(store, 100)]


@pytest.fixture
async def client(database: OpenStore) -> AsyncIterator[Client]:
    bus = Bus()
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        await say(bus, at(1), at(2), at(3))
        await caught_up(projector, await bus.ends())
        yield client


def opened(client: Client) -> Store:
    store: Store | None = client.projector.store
    assert store is not None
    return store


async def test_a_projected_checkpoint_comes_back_with_a_signature_that_holds(client: Client):
    found = checkpoints.newest(opened(client), 2)
    assert found == [at(3), at(2)]
    assert all(map(is_signed, found))
    _, health, _ = await client.get("/health")
    assert health["rows"]["checkpoints"] == 3


async def test_one_that_is_projected_again_from_the_beginning_is_there_once(database: OpenStore):
    bus = Bus()
    await say(bus, at(1), at(2))
    for _ in range(2):
        async with running(a_projector(bus, database)) as projector:
            await caught_up(projector, await bus.ends())
        store = database()
        assert counts(store, "checkpoints", EVENTS) == (2, 2)
        store.command("TRUNCATE TABLE projector_state")
        store.command("TRUNCATE TABLE events")  # what tells a projector how far it is


def test_days_beyond_the_retention_are_dropped_and_those_within_it_stay(store: Store):
    write(store, (40, at(1)), (31, at(2)), (29, at(3)), (0, at(4)))
    assert len(drop_days(store, "checkpoints", 30, newest=NEWEST)) == 2
    assert versions(store) == [4, 3]
    assert drop_days(store, "checkpoints", 30, newest=NEWEST) == []


def test_the_newest_is_never_dropped_however_old_it_is(store: Store):
    write(store, (90, at(8)), (80, at(9)), (70, at(3)), (60, at(5)))
    assert len(drop_days(store, "checkpoints", 30, newest=NEWEST)) == 3
    assert versions(store) == [9]


def test_of_two_generations_the_later_one_has_the_newest(store: Store):
    write(store, (90, at(1, "00020000")), (80, at(9)))
    drop_days(store, "checkpoints", 30, newest=NEWEST)
    assert [each.generation for each in checkpoints.newest(store, 9)] == ["00020000"]


async def test_the_operators_retention_holds_for_checkpoints_as_for_the_other_tables(database: OpenStore):
    bus = Bus()
    async with running(a_projector(bus, database)) as projector:
        await projector.tried.wait()
        store = projector.store
        assert store is not None
        write(store, (20, at(1)), (5, at(2)), (0, at(3)))
        await bus[CONTROL].publish(*control(SettingChanged(name=RETENTION, value=10 * DAY_NS // 1000)))
        await until("twenty days are too old", lambda: versions(store) == [3, 2])
        await bus[CONTROL].publish(*control(SettingChanged(name=RETENTION, value=2 * DAY_NS // 1000)))
        await until("five days are too old", lambda: versions(store) == [3])


async def rebuilt(projector: Projector, source: str) -> None:
    assert projector.rebuild(source)
    await until("the rebuild ends", lambda: not projector.rebuilt.busy, timeout_s=30)
    assert (projector.rebuilt.state, projector.rebuilt.error) == ("done", "")


@pytest.mark.parametrize("source", ["archive", "stream"])
async def test_a_rebuild_makes_them_again_and_keeps_the_one_whose_message_is_no_longer_there(
    client: Client, source: str
):
    store = opened(client)
    store.command("ALTER TABLE checkpoints DELETE WHERE version = 2 SETTINGS mutations_sync = 2")
    insert_old(store)
    assert versions(store) == [77, 3, 1]
    await rebuilt(client.projector, source)
    assert versions(store) == [77, 3, 2, 1]
    await say(client.bus, at(78))
    await caught_up(client.projector, await client.bus.ends())
    assert versions(store) == [78, 77, 3, 2, 1], "it goes on in the new table"


def insert_old(store: Store) -> None:
    """Write a row of a day of which `events` has nothing, of an earlier life of the stream."""
    old = at(77)
    message = StoredMessage(9, NOW_NS - 20 * DAY_NS, observation_subject(CLUSTER, 1, old), b"", MASTER.body(old))
    rows = project(EVENTS, 0, [message], Context(router="test")).rows
    store.insert_columns("checkpoints", rows["checkpoints"].columns, token="old")


async def test_messages_that_an_older_release_projected_are_given_as_they_were_stored(client: Client):
    opened(client).command("ALTER TABLE checkpoints DELETE WHERE version = 2 SETTINGS mutations_sync = 2")
    path = "/admin/v1/archive/checkpoints"
    _, told, _ = await client.get(path, unlisted="true")
    assert [row["version"] for row in told["checkpoints"]] == [3, 1]
    assert len(told["unlisted"]) == 1
    _, told, _ = await client.get(path, limit="1")
    assert [row["version"] for row in told["checkpoints"]] == [3]
    assert "unlisted" not in told
    assert (await client.get(path, limit="0"))[0] == 400

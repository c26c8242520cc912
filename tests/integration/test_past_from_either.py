"""What is asked of the past is answered alike by ClickHouse and by the streams: every moment, request, lease and commit."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from adapters.clickhouse.store import Store, open_store
from adapters.clock import SystemClock
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.travel import NothingThereError
from adapters.log.unkeyed import UnkeyedReader
from adapters.times import Moment
from domain.events import LeaseGranted
from domain.events.codec import decode_envelope, decode_input
from domain.events.commit import decode_commit
from domain.ports import StoredMessage
from services.past.archive import ArchivePast
from services.past.at import Streamed, cluster_then
from services.past.source import NotKnownError, Past
from services.past.stored import streams_kept
from services.past.streams import StreamsPast
from services.past.why import why_commit, why_lease, why_request
from tests.replay.million import virtual
from tests.replay.million.virtual import Streamed as Recorded
from tests.support.history import CLUSTER
from tests.support.recorded import a_life, project_all

pytestmark = pytest.mark.real

BEGIN_NS = SystemClock().wall_us() * 1000 - 7200 * 10**9


class Both:
    """One history, as it was stored and in tables."""

    def __init__(self, recorded: Recorded, store: Store) -> None:
        self.recorded, self._store = recorded, store
        held = (("LW_EVENTS", recorded.facts), ("LW_CONTROL", recorded.control), ("LW_LEDGER", recorded.ledger))
        self.streams = Streams(*(CopiedStream(name, messages) for name, messages in held))
        self.now_ns = max(messages[-1].stamp_ns for _, messages in held) + 10**9

    async def ask(self, question: Any, *args: object, **kwargs: object) -> Any:
        return await asyncio.to_thread(question, self._store, *args, **kwargs)

    def pasts(self) -> tuple[Past, Past]:
        return ArchivePast(self.ask), StreamsPast(self.streams)

    async def at(self, moment: Moment) -> tuple[Any, Any]:
        """Return the state then, from the streams and from ClickHouse; of a moment without one, the error."""
        return await self._then(self.streams, moment), await self._then(streams_kept(self.ask), moment)

    async def _then(self, streams: Streams, moment: Moment) -> Any:
        try:
            return await cluster_then(Streamed(streams, UnkeyedReader(CLUSTER), None), moment, end_ns=self.now_ns)
        except NothingThereError as error:
            return str(error)


@pytest.fixture(scope="module")
def both(engine_dsn: str) -> Iterator[Both]:
    with pytest.MonkeyPatch.context() as patched:  # digests are over stamps, and tables drop what is old
        patched.setattr(virtual, "START_NS", BEGIN_NS)
        recorded = a_life(events=500, seed=8, nodes=6, job_s=0.4)
    asyncio.run(project_all(recorded, lambda: open_store(engine_dsn, database="either", readers=1)))
    store = open_store(engine_dsn, database="either", readers=1)
    yield Both(recorded, store)
    store.command("DROP DATABASE IF EXISTS either")
    store.close()


def moments(recorded: Recorded, count: int) -> list[Moment]:
    """Return versions, and times on, before and after stamps: of commits, facts and control events."""
    dice = random.Random(1)
    every: list[StoredMessage] = [*recorded.facts, *recorded.control, *recorded.ledger]
    edges = [recorded.ledger[0].stamp_ns, recorded.ledger[-1].stamp_ns, recorded.facts[0].stamp_ns, every[-1].stamp_ns]
    edges += [dice.choice(every).stamp_ns for _ in range(count)]
    versions = [1, len(recorded.ledger), len(recorded.ledger) + 1, *dice.sample(range(1, len(recorded.ledger)), count)]
    times = [Moment(at_ns=stamp + dice.choice((-1, 0, 1, 10**6))) for stamp in edges]
    return [Moment(), Moment(ago_ns=3600 * 10**9), Moment(at_ns=2**64), *(Moment(number=v) for v in versions), *times]


async def test_the_state_at_any_moment_is_the_same_from_either(both: Both):
    there = 0
    for moment in moments(both.recorded, 4):
        from_streams, from_clickhouse = await both.at(moment)
        assert from_clickhouse == from_streams, moment
        there += not isinstance(from_streams, str)
    assert there > 8


async def test_why_a_request_a_lease_or_a_commit_went_as_it_did_is_the_same_from_either(both: Both):
    told: dict[str, int] = {"request": 0, "lease": 0, "commit": 0}
    for kind, name in subjects(both.recorded):
        archive, streams = [await story(past, kind, name, both.now_ns) for past in both.pasts()]
        assert plain(archive) == plain(streams), (kind, name)
        told[kind] += not isinstance(streams, str)
    assert min(told.values()) >= 5, told


def subjects(recorded: Recorded) -> list[tuple[str, str]]:
    dice, requests = random.Random(2), dict[str, None]()
    for message in recorded.facts:
        try:
            requests[getattr(decode_input(decode_envelope(message.body).data), "request", "")] = None
        except msgspec.DecodeError:
            continue
    requests.pop("", None)
    commits = [decode_commit(message.body) for message in recorded.ledger]
    leases = [one.lease for made in commits for one in made.decisions if isinstance(one, LeaseGranted)]
    found = [("request", name) for name in dice.sample([*requests], min(25, len(requests)))]
    found += [("lease", name) for name in dice.sample(leases, min(15, len(leases)))]
    return found + [("commit", str(version)) for version in dice.sample(range(1, len(commits) + 1), 12)]


async def story(past: Past, kind: str, name: str, now_ns: int) -> Any:
    try:
        if kind == "request":
            return await why_request(past, name)
        if kind == "lease":
            return await why_lease(past, name, now_ns=now_ns)
        return await why_commit(past, int(name))
    except NotKnownError as error:
        return str(error)


def plain(story: Any) -> Any:
    """Return a story without who told it."""
    if isinstance(story, str):
        return story.partition(" (")[0]
    return msgspec.to_builtins(story) | {"source": ""}

"""The master on a real nats-server: it decides, yields, comes back, and refuses to go on when history is in doubt."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.keys import new_nkey
from domain.events import LeaseGranted, LinkPriced, NodeHealthChanged, NodeSnapshot, Registered, SafeModeLeft, Witness
from domain.events.commit import encode_commit
from domain.ids import Generation, LinkId, ModelId, NodeId
from domain.master.state import encode_state
from domain.subjects import EVENTS
from services.cli.history import leases
from tests.mutations.blocks import blocks_of, forget, records_of
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.local_nodes import signed
from tests.support.nats import CLUSTER, ServerUnderTest, provisioned_server
from tests.support.waiting import until

pytestmark = pytest.mark.real
ON = link("n1", "n2")


@pytest.fixture
async def cluster(nats_server: ServerUnderTest):
    async with cluster_on(nats_server) as made:
        yield made


async def burst(cluster: ClusterUnderTest, name: str = "", count: int = 8) -> None:
    await cluster.state("n1", started(f"req_{name}s"), *(held(f"req_{name}{i}", i + 1) for i in range(count)))


async def begin(cluster: ClusterUnderTest) -> None:
    await cluster.state("n1", registered(), finished("req_fit"))
    await cluster.state("n2", registered())
    await cluster.decree(ON)


async def test_a_burst_is_leased_published_signed_and_verifies(cluster: ClusterUnderTest):
    loop, _ = await cluster.master()
    await begin(cluster)
    await burst(cluster)
    granted = await cluster.decisions(LeaseGranted)
    assert granted[0].helper == "n2"  # type: ignore[union-attr]
    await until("the feed has the lease", lambda: published(cluster))
    report = await cluster.verify()
    assert report.line() == f"audit verify: {len(await cluster.commits())} commits, 0 differences"
    assert loop.mode == "active"


async def published(cluster: ClusterUnderTest, kind: str = "lease.granted") -> bool:
    return any(envelope.type == kind for envelope in await cluster.feed())


async def test_who_reads_the_feed_for_leases_passes_over_other_words_on_the_link(cluster: ClusterUnderTest):
    await cluster.master()
    await begin(cluster)
    await cluster.state("n1", *(finished(f"req_a{i}") for i in range(3)))
    await cluster.state("n2", *(finished(f"req_b{i}", service_us=500_000) for i in range(3)))
    await until("the owner is told of a faster helper", lambda: published(cluster, "lease.priced"))
    await burst(cluster)
    await until("the feed has the lease", lambda: published(cluster))
    found = await leases(await cluster.bus("projector"))
    assert isinstance(found[0], LeaseGranted)


async def test_a_node_that_falls_silent_is_unhealthy_and_its_lease_is_cleared(cluster: ClusterUnderTest):
    await cluster.master()
    await begin(cluster)
    await burst(cluster)
    await cluster.decisions(LeaseGranted)
    (await cluster.bus("n2"))._keeper.cancel()  # its connection goes on, nobody beats: cut the wire
    await (await cluster.bus("n2")).close()
    changed = await cluster.decisions(NodeHealthChanged)
    assert (changed[0].node, changed[0].state) == ("n2", "unhealthy")  # type: ignore[union-attr]


async def test_a_new_master_goes_on_where_the_old_one_was_killed(cluster: ClusterUnderTest):
    loop, _ = await cluster.master("master-one")
    await begin(cluster)
    await burst(cluster)
    await cluster.decisions(LeaseGranted)
    await (await cluster.bus("master-one")).close()
    successor, _ = await cluster.master("master-two")
    await until("the successor is active", lambda: successor.mode == "active")
    assert successor.state.term == loop.state.term + 1
    await burst(cluster, "x", 4)
    await until("it decides", lambda: successor.history.position.version > loop.history.position.version)
    assert (await cluster.verify()).clean


async def test_two_masters_never_decide_the_same_version_and_the_second_stands_by(cluster: ClusterUnderTest):
    first, _ = await cluster.master("master-one")
    await until("one is active", lambda: first.mode == "active")
    second, _ = await cluster.master("master-two")
    await second.ready.wait()
    await begin(cluster)
    await burst(cluster)
    await cluster.decisions(LeaseGranted)
    assert second.mode == "standby"
    await until("the standby follows", lambda: second.history.position.version >= 1)
    assert second.history.position.digest in {made.digest for made in await cluster.commits()}


async def stale_master(cluster: ClusterUnderTest, round_: int) -> None:
    """Stop a master between deciding and publishing; another commits meanwhile; let the first go on."""
    stale, gate = await cluster.master(f"stale-{round_}")
    await until("it is active", lambda: stale.mode == "active")
    gate.open.clear()
    await burst(cluster, f"r{round_}", 3)
    await gate.waiting.wait()
    decided = stale.state.term
    stale.parts.observer._bus.beat = lambda subject: None  # type: ignore[method-assign]  # frozen: it does not beat either
    other, _ = await cluster.master(f"other-{round_}")
    await until("the other decides", lambda: other.mode == "active" and other.state.term > decided)
    await burst(cluster, f"q{round_}", 1)
    before = [encode_commit(made) for made in await cluster.commits()]
    await until("the other committed", lambda: other.history.position.version > stale.history.position.version)
    gate.open.set()
    await until("the stale one is deposed", lambda: gate.outcomes and gate.outcomes[-1] is False)
    after = await cluster.commits()
    assert [encode_commit(made) for made in after[: len(before)]] == before
    versions = {(made.version, made.term) for made in after}
    assert len(versions) == len({version for version, _ in versions})
    feed = await cluster.feed()
    assert {envelope.cause for envelope in feed} <= {f"{made.generation}-{made.version}" for made in after}
    for name in (f"stale-{round_}", f"other-{round_}"):
        await (await cluster.bus(name)).close()


async def test_a_stale_masters_commit_is_refused_and_it_knows(cluster: ClusterUnderTest):
    await begin(cluster)
    await stale_master(cluster, 0)
    assert (await cluster.verify()).clean


LATER = Generation("ffff0000")


def witness_of(version: int, seed: str, *, cluster: str = CLUSTER) -> Witness:
    """Return what a node says that saw a decision signed with `seed`."""
    link = LinkPriced(
        link=LinkId("l"),
        owner=NodeId("n1"),
        owner_model=ModelId("m"),
        helper=NodeId("n2"),
        helper_model=ModelId("m"),
        faster=True,
    )
    body = signed(link, generation=LATER, version=version, seed=seed, cluster=cluster)
    return Witness(generation=LATER, version=version, signed=body.decode())


async def register(cluster: ClusterUnderTest, witness: Witness) -> None:
    await cluster.state("n1", Registered(url="http://h", models=(), version="1", depth=2, witness=witness))


async def test_a_ledger_behind_its_witness_means_safe_mode(cluster: ClusterUnderTest):
    loop, _ = await cluster.master()
    await until("it is active", lambda: loop.mode == "active")
    await register(cluster, witness_of(99, cluster.server.credentials("master").master_seed))
    await until("safe mode", lambda: loop.mode == "safe_mode")
    assert "n1 has seen version 99" in loop.doubt


@pytest.mark.parametrize("lie", ["unsigned", "signed by itself", "signed for another version", "of another cluster"])
async def test_a_node_cannot_end_all_deciding_by_a_witness_that_it_invents(cluster: ClusterUnderTest, lie: str):
    secrets = cluster.server.credentials("master")
    invented = {
        "unsigned": Witness(generation=LATER, version=99),
        "signed by itself": witness_of(99, new_nkey()[0]),
        "signed for another version": msgspec.structs.replace(witness_of(1, secrets.master_seed), version=99),
        "of another cluster": witness_of(99, secrets.master_seed, cluster="elsewhere"),
    }[lie]
    loop, _ = await cluster.master()
    await until("it is active", lambda: loop.mode == "active")
    await register(cluster, invented)
    before = loop.history.position.version
    await begin(cluster)
    await burst(cluster)
    await until("it decides on", lambda: loop.history.position.version > before)
    assert (loop.mode, loop.doubt) == ("active", "")


@asynccontextmanager
async def archive_that_has_seen(version: int) -> AsyncIterator[str]:
    """Yield the url of a projector's /health as it is when ClickHouse holds commits up to `version`."""
    seen = {"generation": "ffff0000", "version": version, "digest": "", "seq": version}

    async def health(_request: web.BaseRequest) -> web.Response:
        return web.json_response({"status": "ok", "witness": seen})

    server = TestServer(web.Application())
    server.app.router.add_get("/health", health)
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


async def test_a_ledger_behind_clickhouse_means_safe_mode_and_an_archive_that_is_away_means_nothing(
    cluster: ClusterUnderTest,
):
    async with archive_that_has_seen(7) as archive:
        loop, _ = await cluster.master("master-one", archive=archive)
        await until("safe mode", lambda: loop.mode == "safe_mode")
        assert "ClickHouse has seen version 7" in loop.doubt
    other, _ = await cluster.master("master-two", archive="http://127.0.0.1:9")
    await until("it is active", lambda: other.mode == "active")


async def test_a_lost_input_is_reported_and_puts_the_next_master_in_safe_mode(cluster: ClusterUnderTest):
    """One flipped bit on the disk makes the server drop stored messages at its next start, with a warning at most."""
    await cluster.master("master-one")
    await begin(cluster)
    await burst(cluster)
    await cluster.decisions(LeaseGranted)
    await (await cluster.bus("master-one")).close()
    await flip_a_bit(cluster.server, b"req_3")
    report = await cluster.verify()
    assert "LW_EVENTS" in report.differences[0].detail
    successor, _ = await cluster.master("master-two")
    await until("safe mode", lambda: successor.mode == "safe_mode")
    assert "LW_EVENTS" in successor.doubt
    before = len(await cluster.commits())
    await burst(cluster, "late", 2)
    assert len(await cluster.commits()) == before
    await cluster.new_generation("disk replaced")
    await until("it decides again", lambda: successor.mode == "active", timeout_s=15)
    made = await cluster.commits()
    left = made[before].decisions[0]
    assert isinstance(left, SafeModeLeft)
    assert (left.reason, left.old_version) == ("disk replaced", before)
    assert made[before].generation > made[0].generation
    assert (await cluster.verify()).clean


async def test_a_relaxed_bus_that_lost_its_newest_facts_begins_a_new_generation_by_itself_and_names_the_gap(
    tmp_path: Path,
):
    async with provisioned_server(tmp_path / "data", durability="relaxed") as server, cluster_on(server) as cluster:
        await cluster.master("master-one", relaxed=True)
        await begin(cluster)
        await burst(cluster)
        await cluster.decisions(LeaseGranted)
        await (await cluster.bus("master-one")).close()
        before = await cluster.commits()
        await lose_the_tail(server, b"req_3")
        successor, _ = await cluster.master("master-two", relaxed=True)
        await until("it decides again", lambda: successor.mode in {"active", "safe_mode"}, timeout_s=15)
        assert successor.mode == "active", successor.doubt
        left = (await cluster.commits())[len(before)].decisions[0]
        assert isinstance(left, SafeModeLeft)
        assert left.reason.startswith("history_gap: LW_EVENTS: ")
        assert (left.old_version, left.old_digest) == (before[-1].version, before[-1].digest)
        nothing_open = NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="generation")
        await cluster.state("n1", registered(), nothing_open, finished("req_fit2"))  # as a node does that hears of it
        await cluster.state("n2", registered(), nothing_open)
        await burst(cluster, "again")
        await until("it leases again", lambda: successor.state.leases)
        assert (await cluster.verify()).clean


async def test_a_hole_in_the_facts_of_a_relaxed_bus_is_safe_mode_as_on_every_other(tmp_path: Path):
    """No power cut takes a fact and leaves a later one."""
    async with provisioned_server(tmp_path / "data", durability="relaxed") as server, cluster_on(server) as cluster:
        await cluster.master("master-one", relaxed=True)
        await begin(cluster)
        await burst(cluster)
        await cluster.decisions(LeaseGranted)
        await (await cluster.bus("master-one")).close()
        before = len(await cluster.commits())
        await flip_a_bit(server, b"req_3")
        successor, _ = await cluster.master("master-two", relaxed=True)
        await until("it decides or doubts", lambda: successor.mode in {"active", "safe_mode"}, timeout_s=15)
        assert "no power cut takes that" in successor.doubt
        assert len(await cluster.commits()) == before


async def lose_the_tail(server: ServerUnderTest, inside: bytes) -> None:
    """Lose the stored message that holds `inside` and all behind it, while the server is down, as a power cut does."""
    await server.stop()
    block = next(path for path in blocks_of(server.data, EVENTS) if inside in path.read_bytes())
    content = block.read_bytes()
    record = next(each for each in records_of(content) if inside in content[each.at : each.at + each.size])
    block.write_bytes(content[: record.at])
    forget(server.data, EVENTS)
    await server.restart()


async def flip_a_bit(server: ServerUnderTest, inside: bytes) -> None:
    """Change one byte of the stored message that holds `inside`, while the server is down."""
    await server.stop()
    blocks = [path for path in server.data.rglob("*.blk") if "LW_EVENTS" in str(path) and inside in path.read_bytes()]
    content = bytearray(blocks[0].read_bytes())
    content[content.index(inside)] ^= 1
    blocks[0].write_bytes(content)
    await server.restart()


async def test_a_restart_begins_at_the_newest_snapshot_that_a_commit_vouches_for(cluster: ClusterUnderTest):
    await cluster.master("master-one")
    await begin(cluster)
    await burst(cluster)
    await cluster.decisions(LeaseGranted)
    await (await cluster.bus("master-one")).close()
    second, _ = await cluster.master("master-two")
    await until("it is active", lambda: second.mode == "active")
    claim = (await cluster.commits())[-1]
    assert (claim.lo, claim.n, claim.decisions) == (claim.hi, 0, ())
    assert await second.parts.snapshots.newest() == (claim.version, encode_state(second.state))

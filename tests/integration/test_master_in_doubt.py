"""A master on a real bus that may not trust its history: what it signed tells it, and it says so to everybody."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from adapters.keys import Signer
from adapters.log.checkpoints import CheckpointBook, is_signed, sign
from adapters.log.verify import Part
from domain.events import Checkpoint, LeaseGranted, SafeModeEntered, codec
from services.master.http import application
from services.master.loop import MasterLoop
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
async def cluster(nats_server: ServerUnderTest):
    async with cluster_on(nats_server) as made:
        yield made


async def lend(cluster: ClusterUnderTest) -> MasterLoop:
    loop, _ = await cluster.master("one", checkpoint_every_s=0.2)
    await cluster.state("n1", registered(), finished("req_fit"), started("req_s"))
    await cluster.state("n2", registered())
    await cluster.decree(link("n1", "n2"))
    await cluster.state("n1", *(held(f"req_{i}", i + 1) for i in range(8)))
    await cluster.decisions(LeaseGranted)
    return loop


async def stop(cluster: ClusterUnderTest, loop: MasterLoop) -> CheckpointBook:
    await cluster.end("one")
    await loop.sign_off()
    return CheckpointBook(cluster.server.data / "checkpoints-one")


async def successor(cluster: ClusterUnderTest) -> MasterLoop:
    """Start another master with the data directory of the first."""
    book = cluster.server.data / "checkpoints-one"
    book.rename(cluster.server.data / "checkpoints-two")
    loop, _ = await cluster.master("two")
    await until("it decides or doubts", lambda: loop.mode in {"active", "safe_mode"}, timeout_s=30)
    return loop


async def health(loop: MasterLoop) -> tuple[int, dict[str, Any]]:
    async with TestClient(TestServer(application(loop, Path("none")))) as client:
        answer = await client.get("/health")
        return answer.status, json.loads(await answer.text())


async def test_checkpoints_are_signed_kept_and_stored_and_an_audit_meets_them(cluster: ClusterUnderTest):
    loop = await lend(cluster)

    async def stated() -> list[Checkpoint]:
        stream = (await cluster.streams()).events
        bodies = [
            message.body
            async for batch in stream.read(after=0, until=(await stream.bounds()).last)
            for message in batch
        ]
        facts = [codec.decode_input(codec.decode_envelope(body).data) for body in bodies]
        return [fact for fact in facts if isinstance(fact, Checkpoint)]

    found = await until("a checkpoint in the stream", stated)
    assert all(is_signed(each) for each in found)
    book = await stop(cluster, loop)
    kept = await book.read()
    assert {each.version for each in found} <= {each.checkpoint.version for each in kept}
    report = await cluster.verify(part=Part(checkpoints=kept))
    assert report.clean, report.differences
    assert report.checkpoints_met == len(kept)
    again = await successor(cluster)
    assert again.mode == "active", again.doubt


async def test_a_commit_other_than_the_one_signed_means_safe_mode_said_on_health_and_in_the_feed(
    cluster: ClusterUnderTest,
):
    book = await stop(cluster, await lend(cluster))
    newest = (await book.read())[-1].checkpoint
    secrets = cluster.server.credentials("master")
    other = msgspec.structs.replace(newest, digest="ab" * 16)
    await book.add(sign(other, Signer(secrets.master_seed)))
    before = len(await cluster.commits())
    loop = await successor(cluster)
    assert loop.mode == "safe_mode"
    status, said = await health(loop)
    assert (status, said["status"]) == (503, "safe_mode")
    assert "a checkpoint in checkpoints/" in said["doubt"]

    async def told() -> list[SafeModeEntered]:
        bodies = [codec.decode_decision(envelope.data) for envelope in await cluster.feed()]
        return [each for each in bodies if isinstance(each, SafeModeEntered)]

    entered = await until("safe mode in the feed", told)
    assert entered[0].reason == said["doubt"]
    assert len(await cluster.commits()) == before


async def test_facts_that_no_commit_had_folded_and_that_changed_are_noticed_by_what_was_signed(
    cluster: ClusterUnderTest,
):
    loop = await lend(cluster)
    await cluster.state("n2", started("req_own"))  # nothing follows from it yet
    await until("it is read", lambda: loop.where().span.facts)
    book = await stop(cluster, loop)
    newest = (await book.read())[-1].checkpoint
    assert newest.tail
    other = msgspec.structs.replace(newest, tail="ab" * 16)
    await book.add(sign(other, Signer(cluster.server.credentials("master").master_seed)))
    again = await successor(cluster)
    assert again.mode == "safe_mode"
    assert "one of these is not what a checkpoint" in again.doubt


async def test_a_stream_that_is_gone_though_commits_were_seen_means_safe_mode(cluster: ClusterUnderTest):
    await stop(cluster, await lend(cluster))
    admin = await cluster.server.client("provisioner")
    await admin.jetstream().delete_stream("LW_EVENTS")
    loop = await successor(cluster)
    assert loop.mode == "safe_mode"
    assert "LW_EVENTS" in loop.doubt


async def test_what_a_master_does_not_serve_is_a_typed_error(cluster: ClusterUnderTest):
    loop, _ = await cluster.master("one")
    async with TestClient(TestServer(application(loop, Path("none")))) as client:
        for method, path, status, code in (
            ("GET", "/admin/v1/nope", 404, "not_found"),
            ("GET", "/admin/v1/state/n1", 404, "not_found"),
            ("DELETE", "/admin/v1/state", 405, "method_not_allowed"),
        ):
            answer = await client.request(method, path)
            told = json.loads(await answer.text())["error"]
            assert (answer.status, told["code"], told["type"]) == (status, code, "invalid_request_error")

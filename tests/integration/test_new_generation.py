"""An operator's new generation sorts behind all that was seen of older ones, whatever of that is lost or cannot be read."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.keys import Signer
from adapters.log.checkpoints import CheckpointBook, sign
from adapters.log.history import Streams, begin_generation
from domain.events import Checkpoint
from domain.ids import Generation
from domain.subjects import CONTROL, EVENTS, LEDGER, ledger_subject
from services.config import ClusterConfig, Config
from services.standalone.provisioning import checkpoint, provision_bus, renew
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.nats import CLUSTER, provisioned_server

pytestmark = pytest.mark.real


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async with provisioned_server(tmp_path / "data") as server, cluster_on(server) as made:
        yield made


def config_of(cluster: ClusterUnderTest) -> Config:
    return Config(cluster=ClusterConfig(name=CLUSTER), data=cluster.server.data)


async def renewed(cluster: ClusterUnderTest) -> Generation:
    made = await renew(config_of(cluster), cluster.server.url, "we looked", from_file=False)
    return made.generation


async def test_it_sorts_behind_what_was_signed_though_ledger_and_witness_are_lost(cluster: ClusterUnderTest):
    signer = Signer(cluster.server.credentials("master").master_seed)
    draft = Checkpoint(
        cluster=CLUSTER, generation=Generation("0007abcd"), version=9, digest="ab" * 16, hi=1, chi=1, at_us=1
    )
    await CheckpointBook(cluster.server.data / "checkpoints").add(sign(draft, signer))
    assert (await renewed(cluster)).startswith("0008")


async def test_it_sorts_behind_the_ledger_though_its_newest_message_is_no_commit(cluster: ClusterUnderTest):
    bus, subject = await cluster.bus("master"), ledger_subject(CLUSTER)
    ledger = bus.stream(LEDGER)
    streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), ledger)
    await begin_generation(streams, Generation("0004abcd"), "once before", publish_to=subject)
    await ledger.publish(subject, b"{")
    assert (await renewed(cluster)).startswith("0005")


async def test_a_witness_that_cannot_be_read_stops_nobody_from_coming_up_and_is_put_aside_by_the_new_generation(
    cluster: ClusterUnderTest,
):
    """The bus comes up all the same: it is for the master to doubt, while every node serves its own requests."""
    witness = checkpoint(cluster.server.data)
    witness.write_bytes(b"\0" * 40)
    await provision_bus(config_of(cluster), cluster.server.url, {}, {}, from_file=False)
    assert (await renewed(cluster)).startswith("0001")
    assert not witness.exists()
    assert witness.with_suffix(".unreadable").read_bytes() == b"\0" * 40

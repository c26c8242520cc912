"""An operator's new generation sorts behind all that was seen of older ones, whatever of that is lost or cannot be read."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from adapters.keys import Signer, new_nkey, save_credentials
from adapters.log.checkpoints import CheckpointBook, sign
from adapters.log.generations import Beginners
from adapters.log.history import Streams
from adapters.log.renewal import begin_generation
from adapters.nats.enrolment import key_path
from domain.events import Checkpoint
from domain.events.commit import decode_commit
from domain.ids import Generation
from domain.subjects import CONTROL, EVENTS, LEDGER, ledger_subject
from services.config import ClusterConfig, Config
from services.standalone.provisioning import checkpoint, provision_bus, renew
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.nats import CLUSTER, provisioned_server
from tests.support.waiting import until

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


async def test_it_carries_the_operators_signature_and_every_master_has_the_key_to_check_it(cluster: ClusterUnderTest):
    await renewed(cluster)
    (message,) = [each async for batch in (await cluster.streams()).ledger.read(after=0, until=1) for each in batch]
    master = cluster.server.credentials("master")
    assert master.operator_public == Signer(cluster.server.credentials("operator").nkey_seed).public
    who = Beginners(cluster=CLUSTER, operator=master.operator_public)
    assert who.complaint(decode_commit(message.body), message.body) == ""


async def test_it_sorts_behind_a_generation_that_a_forger_has_given_the_last_name_of_all(cluster: ClusterUnderTest):
    """Else nothing could follow it, and no master would ever decide again."""
    bus = await cluster.bus("master")
    streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), bus.stream(LEDGER))
    await begin_generation(streams, Generation("ffffffff"), "mine", cluster=CLUSTER, signer=Signer(new_nkey()[0]))
    doubting, _ = await cluster.master()
    await until("it doubts", lambda: doubting.mode == "safe_mode")
    assert await renewed(cluster) > "ffffffff"
    await until("it decides", lambda: doubting.mode == "active")


async def test_a_master_of_before_is_told_the_operators_key_by_the_next_provisioning(cluster: ClusterUnderTest):
    path = key_path(cluster.server.data, "master")
    master = cluster.server.credentials("master")
    save_credentials(path, msgspec.structs.replace(master, operator_public=""))
    await provision_bus(config_of(cluster), cluster.server.url, {}, {}, from_file=False)
    assert cluster.server.credentials("master") == master


async def test_it_sorts_behind_the_ledger_though_its_newest_message_is_no_commit(cluster: ClusterUnderTest):
    bus, subject = await cluster.bus("master"), ledger_subject(CLUSTER)
    ledger = bus.stream(LEDGER)
    streams = Streams(bus.stream(EVENTS), bus.stream(CONTROL), ledger)
    operator = Signer(cluster.server.credentials("operator").nkey_seed)
    await begin_generation(streams, Generation("0004abcd"), "once before", cluster=CLUSTER, signer=operator)
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


async def test_an_operators_key_that_is_lost_is_made_anew_and_its_word_is_the_operators(cluster: ClusterUnderTest):
    """Else no word could end safe mode any more."""
    path = key_path(cluster.server.data, "operator")
    lost = cluster.server.credentials("operator")
    path.unlink()
    await renewed(cluster)
    operator, master = cluster.server.credentials("operator"), cluster.server.credentials("master")
    public = Signer(operator.nkey_seed).public
    assert public != Signer(lost.nkey_seed).public
    assert (operator.cluster_mac_secret, operator.master_public) == (lost.cluster_mac_secret, lost.master_public)
    assert master.operator_public == public
    (message,) = [each async for batch in (await cluster.streams()).ledger.read(after=0, until=1) for each in batch]
    assert Beginners(cluster=CLUSTER, operator=public).complaint(decode_commit(message.body), message.body) == ""

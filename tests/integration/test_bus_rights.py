"""Each role may do what its work needs; everything else the server refuses and logs."""

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from adapters.nats.accounts import STREAMS
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS
from tests.support.nats import ServerUnderTest
from tests.support.rogue import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.real

RUIN = [f"$JS.API.STREAM.{verb}.{name}" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE") for name in STREAMS]
FACT, LEASE = f"{ROOT}.node.n1.status.accepting", f"{ROOT}.lease.n1.n2.0011223344556677.granted"
COMMIT, SETTING, OBSERVED = f"{ROOT}.ledger", f"{ROOT}.control.settings.cluster", f"{ROOT}.obs.1.due"
SNAPSHOT, SAFE = f"{ROOT}.snap.1.0", f"{ROOT}.safe_mode.left"
SAID = {
    FACT: EVENTS,
    OBSERVED: EVENTS,
    SETTING: CONTROL,
    COMMIT: LEDGER,
    LEASE: DECISIONS,
    SAFE: DECISIONS,
    SNAPSHOT: SNAPSHOTS,
}
MAY_SAY = {
    "master": {COMMIT, LEASE, SAFE, OBSERVED, SNAPSHOT},
    "operator": {SETTING},
    "projector": set[str](),
    "provisioner": set[str](),
    "system": set[str](),
    "n1": {FACT},
    "n2": set[str](),
    "gateway-main": set[str](),
}


@pytest.mark.parametrize("name", MAY_SAY)
async def test_a_role_says_what_is_its_own_and_nothing_else(nats_server: ServerUnderTest, name: str) -> None:
    refused: list[str] = []
    client = await nats_server.client(name, errors=refused)
    for subject in MAY_SAY[name]:
        assert f'"stream":"{SAID[subject]}"' in (await client.request(subject, b"{}", timeout=5)).data.decode()
    assert refused == []
    forbidden = sorted(SAID.keys() - MAY_SAY[name])
    for subject in forbidden:
        await client.publish(subject, b"{}")
    await until("the refusals", lambda: len(refused) == len(forbidden))
    assert sorted(each.split('"')[1] for each in refused) == forbidden


@pytest.mark.parametrize("name", ["master", "operator", "projector", "n1", "gateway-main", "system"])
async def test_nobody_but_the_provisioner_makes_changes_empties_or_deletes_a_stream(
    nats_server: ServerUnderTest, name: str
) -> None:
    refused: list[str] = []
    client = await nats_server.client(name, errors=refused)
    for subject in RUIN:
        await client.publish(subject, b"{}")
    await until("the refusals", lambda: len(refused) == len(RUIN))


async def test_the_provisioner_cannot_empty_a_stream_either(nats_server: ServerUnderTest) -> None:
    refused: list[str] = []
    client = await nats_server.client("provisioner", errors=refused)
    await client.publish(f"$JS.API.STREAM.PURGE.{LEDGER}", b"{}")
    await client.publish(f"$JS.API.STREAM.MSG.DELETE.{LEDGER}", b'{"seq":1}')
    await until("the refusals", lambda: len(refused) == 2)


@pytest.mark.parametrize("name", ["master", "operator", "projector"])
async def test_the_trusted_read_every_stream(nats_server: ServerUnderTest, name: str) -> None:
    await (await nats_server.client("n1")).request(FACT, b"{}", timeout=5)
    refused: list[str] = []
    client = await nats_server.client(name, errors=refused)
    jetstream = client.jetstream()
    for stream in STREAMS:
        assert (await jetstream.stream_info(stream)).config.name == stream
    assert (await jetstream.get_msg(EVENTS, 1)).subject == FACT
    await jetstream.add_consumer(
        EVENTS, ConsumerConfig(name="reading", ack_policy=AckPolicy.NONE, inactive_threshold=5)
    )
    inbox = client.new_inbox()
    pulled = await client.subscribe(inbox)
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS}.reading", b'{"batch":1}', reply=inbox)
    assert (await pulled.next_msg(5)).subject == FACT
    await pulled.unsubscribe()
    assert refused == []


async def test_a_heartbeat_reaches_every_master(nats_server: ServerUnderTest) -> None:
    masters = [await nats_server.client("master") for _ in range(2)]
    heard = [await master.subscribe(f"{ROOT}.hb.>") for master in masters]
    for master in masters:
        await master.flush()
    await (await nats_server.client("n1")).publish(f"{ROOT}.hb.n1", b"")
    assert [(await each.next_msg(5)).subject for each in heard] == [f"{ROOT}.hb.n1"] * 2
    for each in heard:
        await each.unsubscribe()


async def test_a_node_hears_its_leases_as_they_are_published_and_again_from_its_consumer(
    nats_server: ServerUnderTest,
) -> None:
    node, master = await nats_server.client("n2"), await nats_server.client("master")
    heard = await node.subscribe(f"{ROOT}.lease.*.n2.>")
    inbox = node.new_inbox()
    pulled = await node.subscribe(inbox)
    await node.publish(f"$JS.API.CONSUMER.MSG.NEXT.{DECISIONS}.n2", b'{"batch":1}', reply=inbox)
    await node.flush()
    await master.request(LEASE, b"signed", timeout=5)
    first, again = await heard.next_msg(5), await pulled.next_msg(5)
    assert (first.subject, first.data, again.subject, again.data) == (LEASE, b"signed", LEASE, b"signed")
    await node.publish(again.reply, b"+ACK")
    reading = (await nats_server.client("operator")).jetstream()

    async def acknowledged() -> bool:
        return bool((await reading.consumer_info(DECISIONS, "n2")).num_ack_pending == 0)

    await until("the acknowledgement", acknowledged)
    for each in (heard, pulled):
        await each.unsubscribe()

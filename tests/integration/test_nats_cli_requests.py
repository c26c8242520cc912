"""What the `nats` command line and the official clients send to read, sent as they send it: it is taken, or refused aloud.

None of these programs comes with a package that is installed here. Their requests were read in their sources (natscli with jsm.go
and nats.go in 2026, nats.js 3.4): subjects, bodies, inboxes and the order in which they come.
"""

import asyncio
import json
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from adapters.nats.provision import administer
from domain.subjects import DECISIONS, EVENTS
from tests.support.nats import ServerUnderTest
from tests.support.rogue import ROOT
from tests.support.tools import API, enrol, mirrors, take
from tests.support.waiting import until

pytestmark = pytest.mark.real

NAME = "obs-dash"
FACT = f"{ROOT}.node.n1.status.accepting"
SECOND_NS = 1_000_000_000


@pytest.fixture
async def bus(nats_server: ServerUnderTest) -> ServerUnderTest:
    """A bus with the tool dash, and three facts that were stored before it came."""
    await enrol(nats_server, "dash")
    async with administer(nats_server.data, nats_server.url, "n1") as node:
        for number in range(3):
            await node.request(FACT, b'{"number":%d}' % number, timeout=5)

    async def mirrored() -> bool:
        return (await mirrors(nats_server))[EVENTS] == 3

    await until("the mirror", mirrored)
    return nats_server


async def once(client: Client, subject: str, body: bytes = b"") -> Msg:
    """Ask in the old style, as `nats consumer next` does: an inbox for each request, which ends after one message."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox, max_msgs=1)
    await client.publish(subject, body, reply=inbox)
    return await answers.next_msg(10)


def taken(message: Msg) -> tuple[int, int]:
    """Return (its sequence, its number)."""
    return message.metadata.sequence.stream, json.loads(message.data)["number"]


async def test_consumer_next_gets_what_is_stored_one_by_one_and_goes_on_where_it_was(bus: ServerUnderTest) -> None:
    """It asks for the consumer's state first and goes on without it."""
    for expected in ([(1, 0), (2, 1)], [(3, 2)]):
        refused: list[str] = []
        client = await bus.client(NAME, errors=refused)
        await client.publish(f"{API}.CONSUMER.INFO.{EVENTS}.{NAME}", b"", reply=client.new_inbox())
        await until("the refusal", lambda: refused)  # noqa: B023  # awaited in its own round
        for wanted in expected:
            asked = json.dumps({"expires": 5 * SECOND_NS, "batch": 1}).encode()
            message = await once(client, f"{API}.CONSUMER.MSG.NEXT.{EVENTS}.{NAME}", asked)
            assert taken(message) == wanted
            await client.publish(message.reply, b"+ACK")
            await client.flush()
        await client.close()


async def test_a_client_that_consumes_with_heartbeats_gets_all_and_what_comes(bus: ServerUnderTest) -> None:
    """As `Consume` of nats.go and `consume()` of nats.js: one long pull with a heartbeat."""
    client = await bus.client(NAME)
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    pull = {"batch": 500, "expires": 30 * SECOND_NS, "idle_heartbeat": SECOND_NS}
    await client.publish(f"{API}.CONSUMER.MSG.NEXT.{EVENTS}.{NAME}", json.dumps(pull).encode(), reply=inbox)
    for number in range(3):
        message = await answers.next_msg(5)
        assert taken(message) == (number + 1, number)
        await message.ack()
    beat = await answers.next_msg(5)
    assert beat.headers is not None
    assert beat.headers["Status"] == "100"
    async with administer(bus.data, bus.url, "n1") as node:
        await node.request(FACT, b'{"number":3}', timeout=5)
    while (message := await answers.next_msg(5)).headers is not None and "Status" in message.headers:
        pass
    assert taken(message) == (4, 3)


def makes_a_consumer(policy: dict[str, Any]) -> bytes:
    config = {"ack_policy": "none", "inactive_threshold": 5 * SECOND_NS, "replay_policy": "instant", **policy}
    return json.dumps({"stream_name": EVENTS, "config": config, "action": "create"}).encode()


BY_SEQUENCE = makes_a_consumer({"deliver_policy": "by_start_sequence", "opt_start_seq": 1})
ORDERED = makes_a_consumer({"deliver_policy": "all", "name": "abc_1", "mem_storage": True, "num_replicas": 1})
PUSH = makes_a_consumer({"deliver_policy": "all", "deliver_subject": f"_INBOX_{NAME}.x", "flow_control": True})
REFUSED = {
    "nats account info": [("INFO", b"")],
    "nats stream ls": [("STREAM.LIST", b'{"offset":0}'), ("STREAM.NAMES", b'{"offset":0}')],
    "nats sub SUBJECT --all": [("STREAM.NAMES", b'{"subject":"lw.local.>"}')],
    "nats sub --stream, nats stream info, view, report": [(f"STREAM.INFO.{EVENTS}", b"")],
    "nats sub --stream --start-sequence": [(f"CONSUMER.CREATE.{EVENTS}.abc", BY_SEQUENCE)],
    "nats sub --stream --since, filtered": [(f"CONSUMER.CREATE.{EVENTS}.abc.lw.local.lease.>", BY_SEQUENCE)],
    "an ordered consumer": [(f"CONSUMER.CREATE.{EVENTS}.abc_1", ORDERED)],
    "a push consumer of before": [(f"CONSUMER.CREATE.{EVENTS}", PUSH), (f"CONSUMER.DURABLE.CREATE.{EVENTS}.abc", PUSH)],
    "nats consumer info, js.Consumer() of nats.go, consumers.get() of nats.js": [
        (f"CONSUMER.INFO.{EVENTS}.{NAME}", b"")
    ],
    "nats consumer ls": [(f"CONSUMER.NAMES.{EVENTS}", b'{"offset":0}'), (f"CONSUMER.LIST.{EVENTS}", b'{"offset":0}')],
    "nats consumer edit, rm, pause": [
        (f"CONSUMER.CREATE.{EVENTS}.{NAME}", ORDERED),
        (f"CONSUMER.DELETE.{EVENTS}.{NAME}", b""),
        (f"CONSUMER.PAUSE.{EVENTS}.{NAME}", b'{"pause_until":"2099-01-01T00:00:00Z"}'),
    ],
    "nats stream get": [(f"STREAM.MSG.GET.{EVENTS}", b'{"seq":1}'), (f"DIRECT.GET.{EVENTS}", b'{"seq":1}')],
    "nats stream backup, edit, rm, purge, rmm, seal": [
        (f"STREAM.{verb}.{EVENTS}", b"{}")
        for verb in ("SNAPSHOT", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "RESTORE")
    ],
}


async def test_whatever_else_they_ask_is_refused_by_name_and_they_go_on_reading(bus: ServerUnderTest) -> None:
    refused: list[str] = []
    client = await bus.client(NAME, errors=refused)
    asked = [f"{API}.{what}" for each in REFUSED.values() for what, _ in each]
    for each in REFUSED.values():
        for what, body in each:
            await client.publish(f"{API}.{what}", body, reply=client.new_inbox())
    without_domain = [f"$JS.API.CONSUMER.INFO.{EVENTS}.{NAME}", f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS}.{NAME}"]
    of_servers = ["$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.OBS.INFO", f"{ROOT}.lease.n1.n2.x.granted"]
    for subject in without_domain + of_servers:
        await client.publish(subject, b"", reply=client.new_inbox())
    wanted = sorted(subject.lower() for subject in asked + without_domain + of_servers)
    await until("all refusals", lambda: len(refused) == len(wanted))
    assert sorted(each.split('"')[1] for each in refused) == wanted
    assert all("permissions violation" in each.lower() for each in refused)
    assert len(await take(client, EVENTS, NAME, 3)) == 3


async def test_without_its_inbox_prefix_a_client_is_told_what_it_may_not_hear(bus: ServerUnderTest) -> None:
    refused: list[str] = []
    client = await bus.client(NAME, errors=refused)
    await client.subscribe("_INBOX.abcdefgh.*")
    await until("the refusal", lambda: refused)
    assert "_inbox.abcdefgh.*" in refused[0].lower()


async def test_a_pull_beyond_its_bounds_is_answered_with_a_status(bus: ServerUnderTest) -> None:
    client = await bus.client(NAME)
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    subject = f"{API}.CONSUMER.MSG.NEXT.{DECISIONS}.{NAME}"
    await client.publish(subject, b'{"batch":1001,"expires":1000000000}', reply=inbox)
    status = await answers.next_msg(5)
    assert status.headers is not None
    assert status.headers["Status"] == "409"
    for _ in range(9):  # of which eight may wait
        await client.publish(subject, b'{"batch":1,"expires":60000000000}', reply=inbox)
    async with asyncio.timeout(5):
        status = await answers.next_msg(5)
    assert status.headers is not None
    assert status.headers["Status"] == "409"

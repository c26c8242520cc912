"""What nodes and gateways may do over the bus as it is provisioned, and what it tells them where they may not."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from adapters.keys import Credentials, new_nkey
from adapters.nats.connection import connect
from domain.errors import BusError, NoAnswerError, NotAllowedError, PublishRefusedError
from domain.ports import StoredMessage
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real


async def take(messages: AsyncGenerator[StoredMessage, None], count: int) -> list[StoredMessage]:
    """Return the first `count` messages that came from the stream."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(10):
        async for message in messages:
            if message.seq:
                found.append(message)
            if len(found) == count:
                return found
    raise AssertionError("a follower ends only by an error")


async def test_a_node_gets_all_of_control_again_at_each_start(nats_server: ServerUnderTest):
    operator = await connect(nats_server.url, nats_server.credentials("operator"), name="operator")
    for number in range(1200):  # more than may be unacknowledged at once
        operator.stream(CONTROL).publish_soon(f"lw.local.control.links.a{number}", b"%d" % number)
    await until("all to be stored", lambda: _reaches(operator.stream(CONTROL), 1200))
    for _ in range(3):
        node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
        follower = node.follower(CONTROL, [], "n1")
        messages = follower.messages()
        assert [m.seq for m in await take(messages, 1200)] == list(range(1, 1201))
        operator.send(b"lw.local.control.links.new", b"new")
        while (await anext(messages)).body != b"new":
            pass
        await messages.aclose()
        await node.close()
    await operator.close()


async def _reaches(stream: object, last: int) -> bool:
    bounds = await stream.bounds()  # type: ignore[attr-defined]
    return bool(bounds.last >= last)


async def test_a_node_hears_its_own_leases_as_they_are_published_and_again_from_its_durable(
    nats_server: ServerUnderTest,
):
    master = await connect(nats_server.url, nats_server.credentials("master"), name="master")
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    follower = node.follower(DECISIONS, ["lw.local.lease.n1.>", "lw.local.lease.*.n1.>"], "n1")
    messages = follower.messages()
    first = asyncio.create_task(anext(messages))
    await asyncio.wait([asyncio.create_task(asyncio.wait_for(follower.started.wait(), 5))])
    feed = master.stream(DECISIONS)
    await feed.publish("lw.local.lease.n2.n3.l0.granted", b"not for n1", headers={"Lw-Order": "g-1.0"})
    await feed.publish("lw.local.lease.n1.n2.l1.granted", b"as owner", headers={"Lw-Order": "g-1.1"})
    await feed.publish("lw.local.lease.n2.n1.l2.granted", b"as helper", headers={"Lw-Order": "g-1.2"})
    heard = [await first]
    async with asyncio.timeout(10):
        while len(heard) < 4:
            heard.append(await anext(messages))
    assert sorted((m.seq, m.body) for m in heard) == [
        (0, b"as helper"),
        (0, b"as owner"),
        (2, b"as owner"),
        (3, b"as helper"),
    ]
    assert all(b"Lw-Order: g-1." in m.headers for m in heard)
    await messages.aclose()
    await node.close()
    # what was acknowledged does not come again; what was published meanwhile does
    await feed.publish("lw.local.lease.n1.n2.l1.cleared", b"missed")
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    messages = node.follower(DECISIONS, ["lw.local.lease.n1.>"], "n1").messages()
    assert (await take(messages, 1))[0].body in {b"as helper", b"missed"}  # the last one may not have been acknowledged
    await messages.aclose()
    await node.close()
    await master.close()


async def test_a_follower_goes_on_after_a_restart_of_the_server(nats_server: ServerUnderTest):
    operator = await connect(nats_server.url, nats_server.credentials("operator"), name="operator")
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    follower = node.follower(CONTROL, [], "n1")
    messages = follower.messages()
    control = operator.stream(CONTROL)
    await control.publish("lw.local.control.links.a", b"1")
    assert (await take(messages, 1))[0].seq == 1
    for restart in range(2, 5):
        if restart % 2:
            nats_server.kill()
        await nats_server.restart()
        await control.publish("lw.local.control.links.a", b"%d" % restart)
        while (await take(messages, 1))[0].seq != restart:  # what was not acknowledged yet comes again
            pass
    await messages.aclose()
    await node.close()
    await operator.close()


async def test_heartbeats_of_nodes_reach_the_master(nats_server: ServerUnderTest):
    master = await connect(nats_server.url, nats_server.credentials("master"), name="master")
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    beats = master.beats("lw.local.hb.*")
    first = asyncio.create_task(anext(beats))

    async def beat() -> bool:
        node.beat("lw.local.hb.n1")
        return first.done()

    await until("a heartbeat", beat)
    assert await first == "lw.local.hb.n1"
    await beats.aclose()
    await node.close()
    await master.close()


async def test_what_a_node_may_not_do_is_an_error_at_once_and_not_a_silence(nats_server: ServerUnderTest):
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(PublishRefusedError, match=r"lw\.local\.node\.n2") as refused:
        await node.stream(EVENTS).publish("lw.local.node.n2.status.stopped", b"{}")
    assert refused.value.reason == "not_allowed"
    with pytest.raises(NotAllowedError, match=LEDGER):
        await node.stream(LEDGER).last()
    with pytest.raises(NotAllowedError, match=r"lw\.local\.ledger"):
        await anext(node.follower(DECISIONS, ["lw.local.ledger"], "n1").messages())
    with pytest.raises(NotAllowedError, match="n2"):
        await anext(node.follower(DECISIONS, [], "n2", from_start=True).messages())
    assert loop.time() - begun < 1.5
    assert (await node.stream(EVENTS).publish("lw.local.node.n1.status.stopped", b"{}")).seq == 1
    await node.close()


async def test_a_bus_that_is_not_there_is_said_in_one_line_or_waited_for(tmp_path: Path, nats_server: ServerUnderTest):
    stranger = Credentials(
        name="n1", role="node", cluster="local", nkey_seed=nats_server.credentials("n2").nkey_seed[::1]
    )
    with pytest.raises(BusError, match="must be reachable within"):
        await connect("nats://127.0.0.1:1", stranger, name="n1", wait_s=0.3)
    bus = await connect("nats://127.0.0.1:1", stranger, name="n1", wait_s=0.1, required=False)
    assert not bus.connected
    await bus.close()
    unknown = Credentials(name="n9", role="node", cluster="local", nkey_seed=new_nkey()[0])
    with pytest.raises(BusError, match="Authorization Violation"):
        await connect(nats_server.url, unknown, name="n9", wait_s=0.5)


async def test_a_full_stream_says_so(tmp_path: Path, nats_server: ServerUnderTest):
    client = await nats_server.client("provisioner")
    info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{EVENTS}")).data)
    config = {**info["config"], "max_bytes": 4096}
    await client.request(f"$JS.API.STREAM.UPDATE.{EVENTS}", json.dumps(config).encode())
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    sent = [node.stream(EVENTS).publish_soon("lw.local.node.n1.status.stopped", b"x" * 1000) for _ in range(10)]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(answers[-1], PublishRefusedError)
    assert answers[-1].reason == "full"
    await node.close()


async def test_a_question_nobody_answers_ends_in_an_error(
    nats_server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("adapters.nats.connection.ANSWER_S", 0.1)
    master = await connect(nats_server.url, nats_server.credentials("master"), name="master")
    nats_server.pause()
    try:
        with pytest.raises(NoAnswerError, match=LEDGER):
            await master.stream(LEDGER).bounds()
    finally:
        nats_server.resume()
    await master.close()


async def test_what_went_to_a_connection_that_died_comes_again_at_once(nats_server: ServerUnderTest):
    operator = await connect(nats_server.url, nats_server.credentials("operator"), name="operator")
    for number in range(3):
        await operator.stream(CONTROL).publish(f"lw.local.control.links.a{number}", b"x")
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    messages = node.follower(CONTROL, [], "n1", from_start=False).messages()
    assert [m.seq for m in await take(messages, 2)] == [1, 2]  # the second was handed out, but not acknowledged
    await messages.aclose()
    await node.close()
    node = await connect(nats_server.url, nats_server.credentials("n1"), name="n1")
    messages = node.follower(CONTROL, [], "n1", from_start=False).messages()
    assert [m.seq for m in await take(messages, 2)] == [2, 3]
    await messages.aclose()
    await node.close()
    await operator.close()

"""A node may store its own facts under any bytes that the server takes for a subject: nobody who reads stops at them."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from adapters.nats.connection import Bus, connect
from domain.ports import StoredMessage
from domain.subjects import EVENTS
from tests.support.facts import Teller, held
from tests.support.nats import ServerUnderTest

pytestmark = pytest.mark.real

ODD = (b"\xff\xfe", b"a\xe2\x82", b"\xed\xa0\x80", b"\x00\x7f\x1b", "ü".encode())
"""No text, text that breaks off, half a surrogate, control characters, and text that is not ASCII."""


async def tell(server: ServerUnderTest) -> Bus:
    """Have n1 store a fact under each odd subject and one under a proper one, and return its connection."""
    node, teller = await connect(server.url, server.credentials("n1"), name="n1"), Teller("n1")
    for odd in ODD:
        node.send(b"lw.local.node.n1.status." + odd, teller.body(held(1)))
    await node.stream(EVENTS).publish(teller.subject(held(2)).replace(".queue.", ".status."), teller.body(held(2)))
    return node


async def taken(messages: AsyncGenerator[StoredMessage, None], last: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    async with asyncio.timeout(10):
        async for message in messages:
            found.append(message)
            if message.seq == last:
                return found
    raise AssertionError("it ended")


async def test_who_reads_a_stream_gets_past_subjects_that_are_no_text_and_all_read_them_alike(
    nats_server: ServerUnderTest,
) -> None:
    node = await tell(nats_server)
    master = await connect(nats_server.url, nats_server.credentials("master"), name="master")
    stream = master.stream(EVENTS)
    async with asyncio.timeout(10):
        read = [message async for batch in stream.read(after=0, until=len(ODD) + 1) for message in batch]
    assert [message.seq for message in read] == list(range(1, len(ODD) + 2))
    assert [await stream.get(message.seq) for message in read] == read
    assert all(message.subject.encode() for message in read)
    await node.close()
    await master.close()


async def test_who_follows_a_stream_gets_past_subjects_that_are_no_text(nats_server: ServerUnderTest) -> None:
    gateway = await connect(nats_server.url, nats_server.credentials("gateway-main"), name="gateway-main")
    follower = gateway.follower(EVENTS, ["lw.local.node.*.status.>"], "gateway-main")
    messages = follower.messages()
    first = asyncio.ensure_future(anext(messages))
    await follower.started.wait()
    node = await tell(nats_server)
    await first
    last = len(ODD) + 1
    found = await taken(messages, last)
    assert found[-1].subject.endswith(".held")
    await messages.aclose()
    await node.close()
    await gateway.close()

"""The public feed against the ledger: what is changed in it, taken out of it or put into it is named by its sequence."""

from collections.abc import Callable

import msgspec
import pytest

from adapters.clock import SystemClock
from adapters.decisions import DecisionReader
from adapters.log.copied import CopiedStream
from adapters.log.fed import Fed, compare_feed
from adapters.log.feed import Feed
from adapters.memory.stream import MemoryStream
from domain.events import SafeModeEntered
from domain.events.commit import decode_commit
from domain.ports import StoredMessage
from tests.mutations.life import SIGNER, lived
from tests.support.history import CLUSTER

LIFE = lived(3)
READER = DecisionReader(CLUSTER, SIGNER.public)
Messages = list[StoredMessage]


@pytest.fixture
async def fed() -> Messages:
    """What a master's feed has published of a life."""
    stream = MemoryStream("LW_DECISIONS", SystemClock())
    feed = Feed(stream, cluster=CLUSTER, signer=SIGNER, clock=SystemClock())
    for message in LIFE.ledger:
        await feed.publish(decode_commit(message.body))
    await feed.alarm(SafeModeEntered(reason="a test"), decode_commit(LIFE.ledger[-1].body).generation)
    return [message async for batch in stream.read(after=0, until=(await stream.bounds()).last) for message in batch]


async def compared(messages: Messages, *, before_ns: int = 0) -> Fed:
    ledger = CopiedStream("LW_LEDGER", list(LIFE.ledger))
    return await compare_feed(
        CopiedStream("LW_DECISIONS", messages), ledger, READER, CLUSTER, dropped_before_ns=before_ns
    )


async def test_a_feed_that_a_master_published_is_what_was_decided_and_its_alarm_belongs_to_it(fed: Messages):
    found = await compared(fed)
    assert (found.messages, found.differences, found.behind) == (len(fed), [], 0)
    assert found.messages > 9


def changed(**fields: Callable[[StoredMessage], object]) -> Callable[[Messages], Messages]:
    def change(messages: Messages) -> Messages:
        new = {name: make(messages[6]) for name, make in fields.items()}
        return [*messages[:6], msgspec.structs.replace(messages[6], **new), *messages[7:]]

    return change


def renumbered(messages: Messages) -> Messages:
    return [msgspec.structs.replace(message, seq=seq) for seq, message in enumerate(messages, 1)]


CHANGES: dict[str, Callable[[Messages], Messages]] = {
    "a bit of its body": changed(body=lambda m: m.body[:40] + bytes([m.body[40] ^ 1]) + m.body[41:]),
    "the case of its signature": changed(body=lambda m: m.body[:-30] + m.body[-30:-2].upper() + m.body[-2:]),
    "its subject": changed(subject=lambda m: m.subject + "x"),
    "its place": changed(headers=lambda m: m.headers.replace(b"Lw-Order", b"Lw-Odder")),
    "its message id": changed(headers=lambda m: m.headers.replace(b"Nats-Msg-Id", b"Nats-Msg-Ix")),
    "another's content": lambda ms: [*ms[:6], msgspec.structs.replace(ms[5], seq=7), *ms[7:]],
    "a hole": lambda ms: [*ms[:6], *ms[7:]],
    "one taken out, the rest moved up": lambda ms: renumbered([*ms[:6], *ms[7:]]),
    "one repeated": lambda ms: renumbered([*ms[:7], ms[6], *ms[7:]]),
    "two in the other's place": lambda ms: renumbered([*ms[:6], ms[7], ms[6], *ms[8:]]),
    "an unsigned one at the end": lambda ms: [*ms, msgspec.structs.replace(ms[6], seq=len(ms) + 1, body=b"{}")],
}


@pytest.mark.parametrize("what", CHANGES)
async def test_what_was_changed_is_named_by_its_sequence(what: str, fed: Messages):
    found = await compared(CHANGES[what](fed))
    assert found.differences, what
    assert found.differences[0].detail.startswith("LW_DECISIONS"), what


async def test_a_feed_that_ends_early_is_behind_and_one_that_begins_late_is_so_only_for_its_age(fed: Messages):
    behind = await compared(fed[:-3])
    assert (behind.differences, behind.behind) == ([], 2)  # the third is the alarm, which is of no commit
    assert (await compared(fed[4:])).differences == []
    young = CopiedStream("LW_DECISIONS", fed[4:])
    young.bounds = lambda: _bounds(young, created_ns=10**18)  # type: ignore[method-assign]
    ledger = CopiedStream("LW_LEDGER", list(LIFE.ledger))
    found = await compare_feed(young, ledger, READER, CLUSTER, dropped_before_ns=1)
    assert "message 1 must be there" in found.differences[0].detail


async def _bounds(stream: CopiedStream, *, created_ns: int):
    return msgspec.structs.replace(await CopiedStream.bounds(stream), created_ns=created_ns)

"""What a node may say by its rights and is still not believed: the reader and the fold refuse it, by a name or a count.

n1 has been taken over: it has its own keys, and bytes of n2 that it got hold of. Everything here is stored by the real
server under the subjects that n1 may use, then read back, judged and folded as the master does it.
"""

from typing import Any

import pytest

from adapters.keys import mac
from adapters.log.reader import BAD_MAC, WRONG_EVENT, WRONG_SPEAKER, Reader
from domain.events import Draining, Envelope, Input, Registered, Stopped, codec
from domain.events.base import tag_of
from domain.ids import Incarnation, NodeId
from domain.master.fold import fold_fact
from domain.master.inputs import FactInput, Rejected
from domain.master.state import State
from domain.ports import StoredMessage
from domain.subjects import EVENTS, fact_subject
from tests.support.nats import CLUSTER, ServerUnderTest

pytestmark = pytest.mark.real

FIRST, SECOND = Incarnation("1" * 32), Incarnation("2" * 32)


class Rogue:
    """n1 with its own credentials, and the master that reads what it says."""

    def __init__(self, server: ServerUnderTest, client: Any, master: Any) -> None:
        self.server, self._client, self._master = server, client, master.jetstream()
        self.reader = Reader(CLUSTER, server.credentials("master").cluster_mac_secret)

    def envelope(self, fact: Input, pseq: int, *, key_of: str = "n1", **changed: Any) -> bytes:
        fields: dict[str, Any] = {"producer": "n1", "incarnation": FIRST, "cluster": CLUSTER} | changed
        fields |= {"id": f"{fields['incarnation']}/{pseq}", "source": "/x", "type": tag_of(fact), "pseq": str(pseq)}
        body = codec.encode(Envelope(data=codec.raw(fact), **fields))
        tagged = codec.with_tag(body, "mac", "")
        split = codec.split_tag(tagged, "mac")
        assert split is not None
        return codec.with_tag(body, "mac", mac(bytes.fromhex(self.server.credentials(key_of).mac_key), split[0]))

    async def say(self, fact: Input, body: bytes) -> FactInput | Rejected:
        """Publish `body` on n1's own subject for `fact`; return what the reader makes of what is stored."""
        subject = fact_subject(CLUSTER, NodeId("n1"), fact)
        await self._client.request(subject, body, timeout=5)
        seq = (await self._master.stream_info(EVENTS)).state.last_seq
        message = await self._master.get_msg(EVENTS, seq)
        return self.reader.fact(StoredMessage(seq, 1_000 * seq, message.subject, b"", message.data))


def _registered() -> Registered:
    return Registered(url="http://127.0.0.1:8101", models=(), version="0", depth=2)


@pytest.fixture
async def rogue(nats_server: ServerUnderTest) -> Rogue:
    return Rogue(nats_server, await nats_server.client("n1"), await nats_server.client("master"))


async def test_bytes_of_another_node_are_rejected_under_ones_own_name(rogue: Rogue) -> None:
    stolen = rogue.envelope(Draining(), 5, key_of="n2", producer="n2", incarnation=SECOND)
    judged = await rogue.say(Draining(), stolen)
    assert judged == Rejected(judged.seq, judged.stamp_us, BAD_MAC)


async def test_another_producers_name_under_ones_own_key_is_rejected(rogue: Rogue) -> None:
    judged = await rogue.say(Draining(), rogue.envelope(Draining(), 5, producer="n2", incarnation=SECOND))
    assert judged == Rejected(judged.seq, judged.stamp_us, WRONG_SPEAKER)


async def test_an_event_under_the_subject_of_another_is_rejected(rogue: Rogue) -> None:
    judged = await rogue.say(Stopped(), rogue.envelope(Draining(), 5))
    assert judged == Rejected(judged.seq, judged.stamp_us, WRONG_EVENT)


async def test_a_replayed_fact_of_ones_own_is_folded_once(rogue: Rogue) -> None:
    state = State()
    registered, said = _registered(), Draining()
    for fact, pseq in ((registered, 1), (said, 2), (registered, 1), (said, 2)):
        judged = await rogue.say(fact, rogue.envelope(fact, pseq))
        assert isinstance(judged, FactInput)
        fold_fact(state, judged)
    assert (state.nodes[NodeId("n1")].pseq, state.nodes[NodeId("n1")].incarnation) == (2, FIRST)


async def test_the_incarnation_of_another_node_moves_nothing_of_it(rogue: Rogue) -> None:
    state = State()
    fold_fact(state, FactInput(1, 1, NodeId("n2"), SECOND, 1, False, 0, _registered()))
    before = codec.encode(state.nodes[NodeId("n2")])
    judged = await rogue.say(Draining(), rogue.envelope(Draining(), 2, incarnation=SECOND))
    assert isinstance(judged, FactInput)
    assert judged.speaker == "n1"
    fold_fact(state, judged)
    assert codec.encode(state.nodes[NodeId("n2")]) == before
    assert state.nodes[NodeId("n1")].pseq == 0

"""A producer numbers its facts without gaps: what is numbered and not stored shows, however the audit is cut in parts."""

import pytest

from adapters.log.chains import ProducerChains
from domain.events import Fact, NodeSnapshot
from domain.ids import Incarnation, NodeId
from domain.master.inputs import FactInput, FactOrRejected, Rejected
from domain.ports import StoredMessage
from tests.support.history import held, registered

Judged = list[tuple[FactOrRejected, StoredMessage]]
MESSAGE = StoredMessage(1, 1, "s", b"", b"")


def said(*numbers: int, life: str = "a", fact: Fact | None = None) -> Judged:
    return [
        (FactInput(1, 1, NodeId("n1"), Incarnation(life), at, False, 0, fact or held("req_1")), MESSAGE)
        for at in numbers
    ]


def met(*parts: Judged) -> tuple[int, ...]:
    """Return facts, sent again, jumped and missing of n1, each part followed apart and joined."""
    chains = ProducerChains()
    for part in parts:
        later = ProducerChains()
        later.take(part)
        chains.join(later)
    chain = chains.finish()["n1"]
    return chain.facts, chain.again, chain.jumped, chain.missing


SNAPSHOT = NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="start")


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (said(1, 2, 3), (3, 0, 0, 0)),
        (said(1, 2, 2, 3), (3, 1, 0, 0)),
        (said(1, 2, 4, 5), (4, 0, 0, 1)),
        (said(1, 2, 4, 5, 3, 4, 5), (5, 2, 0, 0)),
        (said(1, 2) + said(6, fact=SNAPSHOT) + said(7), (4, 0, 3, 0)),
        (said(7, 8), (2, 0, 0, 0)),
        (said(1, 2) + said(1, 2, life="b"), (4, 0, 0, 0)),
    ],
    ids=["whole", "again", "missing", "gone back", "jumped", "from the middle", "two lives"],
)
def test_what_is_missing_is_counted_wherever_the_history_is_cut(judged: Judged, expected: tuple[int, ...]):
    assert met(judged) == expected
    for cut in range(1, len(judged)):
        facts, _, jumped, missing = met(judged[:cut], judged[cut:])
        assert (jumped, missing) == expected[2:], cut
        assert facts >= expected[0], cut


def test_a_fact_that_cannot_be_read_has_its_number_all_the_same():
    refused: Judged = [(Rejected(1, 1, "bad_event", NodeId("n1"), Incarnation("a"), 2), MESSAGE)]
    chains = ProducerChains()
    chains.take(said(1) + refused + said(3))
    chain = chains.finish()["n1"]
    assert (chain.facts, chain.unreadable, chain.missing) == (3, 1, 0)


def test_it_says_which_versions_of_leaseway_have_spoken():
    chains = ProducerChains()
    chains.take(said(1, fact=registered()))
    assert chains.versions == {"1": 1}

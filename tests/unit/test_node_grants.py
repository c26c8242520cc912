"""Which signed decision a node shows to a helper."""

from adapters.decisions import SignedDecision
from domain.actions import FORGET_US
from domain.events import Basis, LeaseChanged, LeaseCleared, LeaseGranted
from domain.events.decision import LeaseEvent
from domain.ids import Incarnation, LeaseId, LinkId, ModelId, NodeId
from services.node.grants import LeaseCopies

LINK, LEASE = LinkId("ab" * 8), LeaseId("00000001-7-1")


def signed(kind: type[LeaseEvent], version: int, slots: int, link: LinkId = LINK) -> SignedDecision:
    event = kind(
        link=link,
        owner=NodeId("a"),
        owner_model=ModelId("m"),
        helper=NodeId("b"),
        helper_model=ModelId("m"),
        helper_url="http://127.0.0.1:1",
        lease=LEASE,
        slots=slots,
        ttl_us=30_000_000,
        basis=Basis(NodeId("a"), Incarnation("0" * 32), 1),
    )
    return SignedDecision(order=("00000001", version, 1), decision=event, body=f"{kind.__name__} {version}".encode())


def test_a_lease_changed_between_decision_and_sending_is_shown_as_it_is_now():
    copies = LeaseCopies()
    copies.take(signed(LeaseGranted, 7, 1), 0)
    copies.take(signed(LeaseChanged, 8, 2), 0)
    assert copies.shown(LINK, LEASE) == b"LeaseChanged 8"


def test_a_lease_that_is_over_is_shown_to_nobody():
    copies = LeaseCopies()
    copies.take(signed(LeaseGranted, 7, 1), 0)
    copies.take(signed(LeaseCleared, 8, 0), 0)
    assert copies.shown(LINK, LEASE) is None
    assert copies.shown(LINK, LeaseId("00000001-6-1")) is None


def test_what_was_heard_of_links_that_are_gone_is_forgotten_once_no_lease_of_theirs_can_live():
    copies, there = LeaseCopies(), LinkId("cd" * 8)
    copies.take(signed(LeaseGranted, 7, 1), 0)
    copies.take(signed(LeaseGranted, 6, 1, there), 0)
    copies.forget_gone(there.__eq__, FORGET_US - 1)
    assert copies.shown(LINK, LEASE)
    copies.forget_gone(there.__eq__, FORGET_US)
    assert len(copies) == 1
    assert copies.shown(there, LEASE)


def test_an_old_lease_of_a_link_that_was_forgotten_is_old_news_and_a_newer_one_is_not():
    copies = LeaseCopies()
    copies.take(signed(LeaseCleared, 8, 0), 0)
    copies.forget_gone(lambda _: False, FORGET_US)
    assert len(copies) == 0
    assert not copies.take(signed(LeaseGranted, 7, 1), FORGET_US)
    assert copies.live(LINK, LEASE, FORGET_US) is None
    assert copies.take(signed(LeaseGranted, 9, 1), FORGET_US)

"""What outside tools are told: of decisions, those alone that the master has signed for this cluster."""

import logging

import msgspec
import pytest

from adapters.decisions import DecisionReader
from adapters.keys import Signer, new_nkey
from adapters.log.public import Came, Place
from domain.events import Decision, Envelope, LinkAdded
from domain.events.base import tag_of
from domain.events.codec import encode, raw, with_tag
from domain.ports import StoredMessage
from domain.subjects import CONTROL, DECISIONS, EVENTS, decision_subject
from projections.feed import public_event
from services.projector.told import Told
from tests.support.facts import (
    CLUSTER,
    GENERATION,
    HELPER,
    LINK,
    MODEL,
    OWNER,
    Teller,
    changed_body,
    control,
    granted,
    held,
)

LINKED = LinkAdded(link=LINK, owner=OWNER, owner_model=MODEL, helper=HELPER, helper_model=MODEL)
MASTER, THIEF = Signer(new_nkey()[0]), Signer(new_nkey()[0])


def decided(
    decision: Decision, seq: int = 1, *, signer: Signer = MASTER, cluster: str = CLUSTER, tag: str = ""
) -> Came:
    """Return a stored decision; `tag`: it calls itself otherwise."""
    body = raw(decision)
    if tag:
        body = msgspec.Raw(bytes(body).replace(tag_of(decision).encode(), tag.encode()))
    envelope = Envelope(
        id=f"{GENERATION}-{seq}-0",
        source=f"/{cluster}/master",
        type=tag or tag_of(decision),
        cluster=cluster,
        producer="master",
        data=body,
    )
    encoded = encode(envelope)
    signed = with_tag(encoded, "sig", signer.sign(encoded[:-1]))
    return Came(
        Place(decisions=seq), DECISIONS, StoredMessage(seq, seq, decision_subject(CLUSTER, decision), b"", signed)
    )


@pytest.fixture
def told() -> Told:
    return Told(DecisionReader(CLUSTER, MASTER.public))


def test_what_the_master_has_signed_is_told(told: Told) -> None:
    event = told.event(decided(granted()))
    assert event is not None
    assert (event.kind, told.refused) == ("lease.granted", 0)


def unsigned(came: Came) -> Came:
    body = came.message.body
    return msgspec.structs.replace(
        came, message=msgspec.structs.replace(came.message, body=body[: body.rfind(b',"sig"')] + b"}")
    )


@pytest.mark.parametrize(
    "forged",
    [
        decided(granted(), signer=THIEF),
        decided(granted(), cluster="another"),
        unsigned(decided(granted())),
        msgspec.structs.replace(
            decided(granted()), message=changed_body(decided(granted()).message, b'"slots":2', b'"slots":9')
        ),
        Came(Place(), DECISIONS, StoredMessage(1, 1, "lw.local.lease.n1.n2.x.granted", b"", b"\xff")),
    ],
    ids=["another's key", "another cluster", "no signature", "a changed number", "no event at all"],
)
def test_what_the_master_has_not_signed_is_told_to_nobody(told: Told, forged: Came) -> None:
    assert told.event(forged) is None
    assert told.refused == 1


def test_a_forgery_is_counted_once_however_many_read_it_and_logged_once_of_each_subject(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for seq in (1, 2, 3):
            for _ in range(4):
                told.event(decided(granted(), seq, signer=THIEF))
    assert told.refused == 3
    [record] = caplog.records
    assert (record.message, record.seq) == ("decision_refused", 1)  # type: ignore[attr-defined]


def test_inventing_subjects_fills_neither_the_log_nor_the_memory(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    for seq in range(6000):
        forged = StoredMessage(seq, 1, f"lw.local.lease.n{seq}", b"", b"%d" % seq)
        told.event(Came(Place(), DECISIONS, forged))
    assert told.refused == 6000
    assert len(caplog.records) == 100
    assert max(len(kept) for kept in vars(told).values() if hasattr(kept, "__len__")) <= 4096


def test_a_decision_of_a_kind_that_only_a_newer_version_knows_is_told_for_its_signature(told: Told) -> None:
    event = told.event(decided(granted(), tag="lease.inherited"))
    assert event is not None
    assert event.kind == "lease.inherited"
    assert told.event(decided(granted(), tag="lease.inherited", signer=THIEF)) is None


def test_without_a_key_to_check_with_no_decision_is_told() -> None:
    closed = Told()
    assert closed.event(decided(granted())) is None
    fact = held(1)
    assert closed.event(Came(Place(), EVENTS, Teller("n1").tells(fact, seq=1))) is not None


@pytest.mark.parametrize("stream", [CONTROL, EVENTS])
def test_no_key_but_a_master_s_makes_an_event_of_a_lease(told: Told, stream: str) -> None:
    subject, body = control(LINKED)
    subject = subject if stream == CONTROL else "lw.local.obs.1.due"
    lease = decided(granted(), signer=THIEF).message
    assert told.event(Came(Place(), stream, msgspec.structs.replace(lease, subject=subject))) is None
    stated = StoredMessage(1, 1, subject, b"", body)
    assert (public_event(stated) is not None) == (stream == CONTROL)

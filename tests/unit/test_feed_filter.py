"""Which events a filter lets through."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.feed import is_pattern, pattern_fits, public_event
from tests.support.facts import Teller, changed_body, held


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("lease.*", "lease.granted", True),
        ("lease.*", "lease", False),
        ("lease.*", "lend.lent", False),
        ("*.granted", "lease.granted", True),
        (">", "lease.granted", True),
        ("lw.local.>", "lw.local", False),
        ("lw.local.>", "lw.local.a.b.c", True),
        ("lw.*.lease.>", "lw.local.lease.a", True),
        ("lw.*.lease.>", "lw.local.health.a", False),
    ],
)
def test_patterns_are_those_of_nats(pattern: str, name: str, fits: bool) -> None:
    assert is_pattern(pattern)
    assert pattern_fits(pattern, name) is fits


@settings(deadline=None)  # the first example pays for what is made once
@given(st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=5), st.data())
def test_a_name_fits_itself_with_stars_and_cut_to_an_arrow(tokens: list[str], data: st.DataObject) -> None:
    starred = [data.draw(st.sampled_from([token, "*"])) for token in tokens]
    assert pattern_fits(".".join(starred), ".".join(tokens))
    kept = data.draw(st.integers(0, len(tokens) - 1))
    assert pattern_fits(".".join([*starred[:kept], ">"]), ".".join(tokens))
    assert not pattern_fits(".".join([*tokens, ">"]), ".".join(tokens))


@pytest.mark.parametrize("text", ["", ".", "a..b", "a.>.b", "a b", "lease.gr*", "x" * 300, "a\nb"])
def test_what_is_no_pattern_is_told(text: str) -> None:
    assert not is_pattern(text)


def test_an_event_is_one_line_whatever_its_producer_wrote() -> None:
    message = Teller("n1").tells(held(1), seq=1)
    spread = changed_body(message, b'"specversion"', b'\r\n "specversion"')
    event = public_event(spread)
    assert event is not None
    assert b"\n" not in event.body
    assert b"\r" not in event.body


def test_an_event_of_another_kind_than_its_subject_says_is_none() -> None:
    message = Teller("n1").tells(held(1), seq=1)
    assert public_event(changed_body(message, b'"type":"queue.held"', b'"type":"lease.granted"')) is None
    assert public_event(changed_body(message, b'"producer":"n1"', b'"producer":"n2"')) is None


FORGED = [
    "lw.local.node.n1.lease.0011223344556677.granted",
    "lw.local.node.n1.granted",
    "lw.local.node.n1.a.b.c.lease.granted",
    "lw.local.gateway.main.granted",
    "lw.local.gateway.main.lease.x.granted",
]


@pytest.mark.parametrize("subject", FORGED)
def test_a_lease_that_a_node_or_gateway_says_is_no_event(subject: str) -> None:
    said = Teller("n1").tells(held(1), seq=1)
    forged = changed_body(said, b"queue.held", b"lease.granted")
    assert public_event(msgspec.structs.replace(forged, subject=subject)) is None


def test_an_event_whose_data_says_another_is_none() -> None:
    said = Teller("n1").tells(held(1), seq=1)
    assert public_event(changed_body(said, b'"event":"queue.held"', b'"event":"queue.failed"')) is None


def test_nobody_speaks_for_another_owner() -> None:
    said = Teller("n1").tells(held(1), seq=1)
    event = public_event(changed_body(said, b'"request":', b'"owner":"n2","request":'))
    assert event is not None
    assert event.owner == "n1"


def test_an_event_is_text_whatever_its_producer_wrote() -> None:
    said = Teller("n1").tells(held(1), seq=1)
    event = public_event(changed_body(said, b'"mac":', b'"more":"\xff","mac":'))
    assert event is not None
    assert json.loads(event.body.decode())["more"] == "\ufffd"

import functools

import msgspec
import pytest

from adapters.keys import new_nkey
from domain.control.nodes import INITIAL, EnrolNode, RetireNode, decide, evolve
from domain.errors import BadIdError, BadNodeError
from domain.events import NodeEnrolled, NodeRetired
from domain.ids import NodeId

N = NodeId("n1")
KEY, OTHER_KEY = "U" + "A" * 55, "U" + "B" * 55
ENROL = EnrolNode(node=N, public_key=KEY, url="http://127.0.0.1:8100")
ENROLLED = NodeEnrolled(node=N, public_key=KEY, url="http://127.0.0.1:8100")
RETIRED = NodeRetired(node=N)


def given(*events):
    return functools.reduce(evolve, events, INITIAL)


def asked(**changes):
    return msgspec.structs.replace(ENROL, **changes)


def test_a_node_is_enrolled_with_key_and_url():
    assert decide(ENROL, given()) == [ENROLLED]


def test_the_same_enrolment_twice_is_nothing_the_second_time():
    assert decide(ENROL, given(ENROLLED)) == []


@pytest.mark.parametrize("change", [{"public_key": OTHER_KEY}, {"url": "https://n1.example:443"}, {"url": ""}])
def test_a_changed_key_or_url_is_said_anew(change):
    assert decide(asked(**change), given(ENROLLED)) == [msgspec.structs.replace(ENROLLED, **change)]


def test_a_made_key_is_accepted():
    assert decide(asked(public_key=new_nkey()[1]), given())


def test_a_retired_node_may_come_back():
    assert decide(ENROL, given(ENROLLED, RETIRED)) == [ENROLLED]


def test_a_node_is_retired_once():
    assert decide(RetireNode(node=N), given(ENROLLED)) == [RETIRED]
    assert decide(RetireNode(node=N), given(ENROLLED, RETIRED)) == []


def test_a_node_that_never_was_cannot_be_retired():
    with pytest.raises(BadNodeError, match="node n1: there is no such node"):
        decide(RetireNode(node=N), given())


@pytest.mark.parametrize("key", ["", "U", "A" * 56, "U" + "a" * 55, "U" + "A" * 56])
def test_a_key_without_the_form_of_one_is_refused(key):
    with pytest.raises(BadNodeError, match="node n1: public key"):
        decide(asked(public_key=key), given())


@pytest.mark.parametrize(
    "url", ["n1:8100", "ftp://n1", "http://n1/", "http://n1:8100/v1", "http://u@n1", "http://n1\n"]
)
def test_a_url_without_the_form_of_one_is_refused(url):
    with pytest.raises(BadNodeError, match="node n1: url"):
        decide(asked(url=url), given())


def test_an_id_without_the_form_of_one_is_refused():
    with pytest.raises(BadIdError):
        decide(asked(node=NodeId("n.1")), given())

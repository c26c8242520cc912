import functools

import msgspec
import pytest

from domain.control.links import INITIAL, AddLink, RemoveLink, decide, evolve
from domain.errors import BadLinkError
from domain.events import LinkAdded, LinkRemoved, ModelInfo
from domain.ids import ModelId, NodeId, link_id

A, B = NodeId("a"), NodeId("b")
M, K = ModelId("m"), ModelId("k/1")
LINK = link_id(A, M, B, K)
ADD = AddLink(owner=A, owner_model=M, helper=B, helper_model=K)
REMOVE = RemoveLink(owner=A, owner_model=M, helper=B, helper_model=K)
ADDED = LinkAdded(link=LINK, owner=A, owner_model=M, helper=B, helper_model=K)


def given(*events):
    return functools.reduce(evolve, events, INITIAL)


def catalogue(owner: ModelInfo, helper: ModelInfo):
    return {A: {owner.id: owner}, B: {helper.id: helper}}


def model(model_id, **fields):
    return ModelInfo(id=ModelId(model_id), local_id=model_id, **{"context": 4096, **fields})


def asked(**changes):
    return msgspec.structs.replace(ADD, **changes)


def test_a_link_is_added_with_everything_that_was_said_about_it():
    when = asked(load_if_unloaded=True, restore_after_borrow=True)
    assert decide(when, given()) == [msgspec.structs.replace(ADDED, load_if_unloaded=True, restore_after_borrow=True)]


def test_the_same_link_twice_is_nothing_the_second_time():
    assert decide(ADD, given(ADDED)) == []


def test_the_same_pair_with_other_flags_replaces_the_link():
    changed = msgspec.structs.replace(ADDED, load_if_unloaded=True)
    assert decide(asked(load_if_unloaded=True), given(ADDED)) == [changed]
    assert given(ADDED, changed) == changed


def test_the_reverse_direction_is_another_link():
    reverse = AddLink(owner=B, owner_model=K, helper=A, helper_model=M)
    assert reverse.link != ADD.link


def test_removing_a_link_names_its_owner():
    assert decide(REMOVE, given(ADDED)) == [LinkRemoved(link=LINK, owner=A, owner_model=M)]


@pytest.mark.parametrize("history", [(), (ADDED, LinkRemoved(link=LINK, owner=A, owner_model=M))])
def test_removing_a_link_that_is_not_there_is_refused(history):
    with pytest.raises(BadLinkError, match=r"link a/m -> b/k/1: there is no such link"):
        decide(REMOVE, given(*history))


def test_a_removed_link_can_be_added_again():
    assert decide(ADD, given(ADDED, LinkRemoved(link=LINK, owner=A, owner_model=M))) == [ADDED]


def test_a_node_does_not_lend_to_itself():
    with pytest.raises(BadLinkError, match="not to itself"):
        decide(asked(helper=A), given())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"owner": NodeId("A.b")}, "must match"),
        ({"helper": NodeId("")}, "must match"),
        ({"owner_model": ModelId("")}, "1 to 256 characters"),
        ({"helper_model": ModelId("x" * 257)}, "1 to 256 characters"),
        ({"helper_model": ModelId("e\u0301")}, "NFC"),
    ],
)
def test_an_id_without_the_form_of_one_is_refused(changes, rule):
    with pytest.raises(BadLinkError, match=rule):
        decide(asked(**changes), given())


def test_a_link_to_other_weights_needs_the_operators_word_and_keeps_it():
    models = catalogue(model("m", hash="a" * 64), model("k/1", hash="b" * 64))
    with pytest.raises(BadLinkError, match="--different-weights"):
        decide(asked(catalogue=models), given())
    said = msgspec.structs.replace(ADDED, different_weights=True)
    assert decide(asked(catalogue=models, different_weights=True), given()) == [said]
    assert decide(asked(catalogue=models), given(said)) == []


@pytest.mark.parametrize("hashes", [("a" * 64, "a" * 64), ("a" * 64, ""), ("", "b" * 64), ("", "")])
def test_equal_or_unknown_weights_need_no_word(hashes):
    models = catalogue(model("m", hash=hashes[0]), model("k/1", hash=hashes[1]))
    assert decide(asked(catalogue=models), given()) == [ADDED]


@pytest.mark.parametrize(
    ("models", "rule"),
    [
        (catalogue(model("m", lane="text"), model("k/1", lane="image")), "lanes_differ: .*lane text.*lane image"),
        (catalogue(model("m"), model("k/1", slots=4)), "serves_several: .*; got b/k/1 .*slots 4"),
        (catalogue(model("m", context=0), model("k/1")), "no_context: .*; got a/m .*context not stated"),
        (catalogue(model("m"), model("k/1", context=0)), "no_context: .*; got b/k/1"),
        (catalogue(model("m", capabilities=("vision",)), model("k/1")), "vision_differs: "),
        (catalogue(model("m"), model("other")), "node b has no model 'k/1'; it has other"),
        ({A: {M: model("m")}}, "node b is unknown; known are a"),
        ({}, "node a is unknown; known are none"),
    ],
)
def test_models_that_cannot_stand_in_for_each_other_are_not_linked(models, rule):
    with pytest.raises(BadLinkError, match=rule):
        decide(asked(catalogue=models), given())


def test_an_image_model_may_serve_several_requests_at_once_and_has_no_context_window():
    models = catalogue(*(model(name, lane="image", slots=2, context=0) for name in ("m", "k/1")))
    assert decide(asked(catalogue=models), given()) == [ADDED]


def test_without_a_catalogue_nothing_about_the_models_is_checked():
    assert decide(asked(catalogue=None), given()) == [ADDED]

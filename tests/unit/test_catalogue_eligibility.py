"""Which models may be linked, and what an operator is shown of those that may not."""

from pathlib import Path

import pytest

from domain.catalogue.eligibility import INELIGIBLE, LinkCandidate, candidates, ineligible, unfit, weights
from domain.events import ModelInfo
from domain.ids import ModelId, NodeId

STUDIO, ATTIC, CELLAR = NodeId("studio"), NodeId("attic"), NodeId("cellar")
SEES = ("tools", "vision")


def model(name="chat", **fields):
    return ModelInfo(id=ModelId(name), local_id=name, **{"context": 4096, **fields})


CHAT = model()


@pytest.mark.parametrize(
    ("owner", "helper", "reason"),
    [
        (CHAT, model(context=1, capabilities=("tools",)), ""),
        (CHAT, model(lane="image"), "lanes_differ"),
        (CHAT, model(slots=2), "serves_several"),
        (model(slots=2), CHAT, "serves_several"),
        (CHAT, model(context=0), "no_context"),
        (model(context=0), CHAT, "no_context"),
        (model(capabilities=SEES), CHAT, "vision_differs"),
        (CHAT, model(capabilities=SEES), "vision_differs"),
        (model(capabilities=SEES), model(capabilities=SEES), ""),
        (model(lane="image", slots=4, context=0), model(lane="image", context=0), ""),
        (model(lane="embedding"), model(lane="embedding"), "lane_not_lent"),
        (model(lane="rerank"), model(lane="rerank"), "lane_not_lent"),
        (model(lane="video"), model(lane="video"), "lane_not_lent"),
        (model(lane="embedding"), CHAT, "lanes_differ"),
    ],
)
def test_a_link_is_judged_by_lane_slots_context_and_vision(owner, helper, reason):
    assert ineligible(owner, helper) == reason
    assert not reason or INELIGIBLE[reason].endswith(".")


def test_of_several_reasons_the_first_in_order_is_told():
    worst = model(lane="image", slots=2, context=0, capabilities=SEES)
    assert ineligible(CHAT, worst) == "lanes_differ"
    assert ineligible(CHAT, model(slots=2, context=0, capabilities=SEES)) == "serves_several"
    assert ineligible(CHAT, model(context=0, capabilities=SEES)) == "no_context"


def test_a_model_that_fits_no_link_at_all_is_told_from_a_pair_that_does_not_match():
    assert [
        unfit(one)
        for one in (
            model(slots=2),
            model(context=0),
            CHAT,
            model(lane="image", slots=9, context=0),
            model(lane="speech"),
        )
    ] == [
        "serves_several",
        "no_context",
        "",
        "",
        "lane_not_lent",
    ]


def test_weights_are_the_same_different_or_unknown_by_their_hash():
    known, other, silent = model(hash="a"), model(hash="b"), model()
    assert [weights(known, one) for one in (model(hash="a"), other, silent)] == ["same", "different", "unknown"]
    assert weights(silent, silent) == "unknown"


def test_every_model_of_every_other_node_is_a_candidate_with_its_label_or_the_reason():
    served = [model("z", hash="a"), model("b", hash="b"), model("draw", lane="image"), model("wide", slots=8, hash="a")]
    catalogue = {
        STUDIO: {one.id: one for one in (model("chat", hash="a"), model("other", hash="a"))},
        CELLAR: {ModelId("chat"): model("chat")},
        ATTIC: {one.id: one for one in served},
    }
    found = candidates(STUDIO, ModelId("chat"), catalogue)
    assert [(one.node, one.model, one.lane, one.weights, one.reason) for one in found] == [
        ("attic", "b", "text", "different", ""),
        ("attic", "draw", "image", "unknown", "lanes_differ"),
        ("attic", "wide", "text", "same", "serves_several"),
        ("attic", "z", "text", "same", ""),
        ("cellar", "chat", "text", "unknown", ""),
    ]
    assert [one.eligible for one in found] == [True, False, False, True, True]
    assert found[1].about == "The lanes must match."


def test_an_owner_alone_has_no_candidates_and_one_that_nobody_serves_is_an_error():
    assert candidates(STUDIO, ModelId("chat"), {STUDIO: {ModelId("chat"): CHAT}}) == ()
    with pytest.raises(KeyError):
        candidates(STUDIO, ModelId("chat"), {})
    assert LinkCandidate(node=ATTIC, model=ModelId("m"), lane="text", weights="same", reason="").about == ""


def test_the_reference_explains_every_reason():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "control.md").read_text()
    for code, sentence in INELIGIBLE.items():
        assert f"| `{code}` | {sentence} |" in page

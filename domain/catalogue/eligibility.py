"""Which model may stand in for which: the rules of a link, judged by what nodes say of their models.

Whether two models would answer alike cannot be verified, only whether their weights have the same hash.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from domain.events.status import ModelInfo
from domain.ids import ModelId, NodeId

Catalogue = Mapping[NodeId, Mapping[ModelId, ModelInfo]]
"""What every registered node serves."""
Weights = Literal["same", "different", "unknown"]

VISION: Final = "vision"
"""The capability of a multimodal model: it sees images."""
LENT_LANES: Final = frozenset({"text", "image"})
"""The lanes that may be linked. Others are balanced by gateways, which need no price of their work, and never lent."""
LANES_DIFFER: Final = "lanes_differ"
LANE_NOT_LENT: Final = "lane_not_lent"
SERVES_SEVERAL: Final = "serves_several"
NO_CONTEXT: Final = "no_context"
VISION_DIFFERS: Final = "vision_differs"
INELIGIBLE: Final[dict[str, str]] = {
    LANES_DIFFER: "The lanes must match.",
    LANE_NOT_LENT: "Only models of the lanes text and image can be linked.",
    SERVES_SEVERAL: "A linked text model must serve one request at a time (slots 1).",
    NO_CONTEXT: "A linked text model must state its context window.",
    VISION_DIFFERS: "A text model that sees images links only with another one that does.",
}
"""Each code with its sentence, in the order in which they are looked for."""


class LinkCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model of another node, as a helper of one owner."""

    node: NodeId
    model: ModelId
    lane: str
    weights: Weights
    reason: str
    """Why it cannot be linked, a code of INELIGIBLE; empty if it can."""

    @property
    def eligible(self) -> bool:
        """Whether a link to it may be made."""
        return not self.reason

    @property
    def about(self) -> str:
        """The reason as a sentence."""
        return INELIGIBLE.get(self.reason, "")


def ineligible(owner: ModelInfo, helper: ModelInfo) -> str:
    """Return why `helper` may not stand in for `owner`, a code of INELIGIBLE; empty if it may."""
    if owner.lane != helper.lane:
        return LANES_DIFFER
    if owner.lane == "image":
        return ""
    for model in (owner, helper):
        if reason := unfit(model):
            return reason
    return VISION_DIFFERS if (VISION in owner.capabilities) != (VISION in helper.capabilities) else ""


def unfit(model: ModelInfo) -> str:
    """Return why `model` may stand in no link at all, a code of INELIGIBLE; empty if it may."""
    if model.lane not in LENT_LANES:
        return LANE_NOT_LENT
    if model.lane == "image":
        return ""
    if (
        model.slots != 1
    ):  # the queue gives a runtime one request at a time and prices it so; parallel ones share its speed
        return SERVES_SEVERAL
    return "" if model.context > 0 else NO_CONTEXT


def weights(owner: ModelInfo, helper: ModelInfo) -> Weights:
    """Tell by their hashes whether the two have the same weights; unknown if one of them states none."""
    if not owner.hash or not helper.hash:
        return "unknown"
    return "same" if owner.hash == helper.hash else "different"


def candidates(owner_node: NodeId, owner_model: ModelId, catalogue: Catalogue) -> tuple[LinkCandidate, ...]:
    """Return every model of every other node as a helper of this owner, the ineligible ones with the reason, in order of id.

    Raises:
        KeyError: the owner's model is not in the catalogue.
    """
    owner = catalogue[owner_node][owner_model]
    return tuple(
        LinkCandidate(
            node=node,
            model=model,
            lane=helper.lane,
            weights=weights(owner, helper),
            reason=ineligible(owner, helper),
        )
        for node in sorted(catalogue)
        if node != owner_node
        for model, helper in sorted(catalogue[node].items())
    )

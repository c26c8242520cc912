"""A link: one owner's model may lend to one helper's model. One aggregate a link, `links.<link>`.

Events used: LinkAdded (carries the whole link, so a later one replaces it) and LinkRemoved.
"""

from collections.abc import Mapping
from typing import Final, assert_never

import msgspec

from domain.catalogue.eligibility import INELIGIBLE, VISION, Catalogue, ineligible, unfit, weights
from domain.errors import BadIdError, BadLinkError
from domain.events.control import LinkAdded, LinkRemoved
from domain.events.status import ModelInfo
from domain.ids import LinkId, ModelId, NodeId, link_id, model_id, node_id

LinkEvent = LinkAdded | LinkRemoved
LinkState = LinkAdded | None
"""The link as it stands; None if it was never made, or is removed."""

INITIAL: Final[LinkState] = None


def evolve(_state: LinkState, event: LinkEvent) -> LinkState:
    """Return the link after `event`. It never refuses."""
    match event:
        case LinkAdded():
            return event
        case LinkRemoved():
            return None
        case _:
            assert_never(event)


class AddLink(msgspec.Struct, frozen=True, kw_only=True):
    """Let an owner's model lend to a helper's model, or change how an existing link may be used."""

    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId
    load_if_unloaded: bool = False
    restore_after_borrow: bool = False
    different_weights: bool = False
    """The operator knows that the two models have different weights. Once said it stays said."""
    catalogue: Catalogue | None = None
    """What is served now; None if nobody can tell (no master): then nothing about the models is checked."""

    @property
    def link(self) -> LinkId:
        """The id of the link that this is about."""
        return link_id(self.owner, self.owner_model, self.helper, self.helper_model)


class RemoveLink(msgspec.Struct, frozen=True, kw_only=True):
    """Let an owner's model lend to a helper's model no more."""

    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId

    @property
    def link(self) -> LinkId:
        """The id of the link that this is about."""
        return link_id(self.owner, self.owner_model, self.helper, self.helper_model)


LinkCommand = AddLink | RemoveLink


def decide(command: LinkCommand, state: LinkState) -> list[LinkEvent]:
    """Return what `command` makes happen. An empty list means that it asks for what already is.

    Raises:
        BadLinkError: such a link may not be, or there is none to remove.
    """
    match command:
        case AddLink():
            return _add(command, state)
        case RemoveLink():
            if state is None:
                raise BadLinkError(
                    f"{_name(command)}: there is no such link; `leaseway links list` shows those there are"
                )
            return [LinkRemoved(link=state.link, owner=state.owner, owner_model=state.owner_model)]
        case _:
            assert_never(command)


def _add(command: AddLink, state: LinkState) -> list[LinkEvent]:
    acknowledged = command.different_weights or (state is not None and state.different_weights)
    _check_ends(command)
    if command.catalogue is not None:
        owner = _served(command, command.catalogue, command.owner, command.owner_model)
        helper = _served(command, command.catalogue, command.helper, command.helper_model)
        _check_models(command, owner, helper)
        _check_weights(command, owner, helper, acknowledged=acknowledged)
    added = LinkAdded(
        link=command.link,
        owner=command.owner,
        owner_model=command.owner_model,
        helper=command.helper,
        helper_model=command.helper_model,
        load_if_unloaded=command.load_if_unloaded,
        restore_after_borrow=command.restore_after_borrow,
        different_weights=acknowledged,
    )
    return [] if added == state else [added]


def _check_ends(command: AddLink) -> None:
    try:
        node_id(command.owner)
        node_id(command.helper)
        composed = (model_id(command.owner_model), model_id(command.helper_model))
    except BadIdError as error:
        raise BadLinkError(f"{_name(command)}: {error}") from None
    if composed != (command.owner_model, command.helper_model):
        # Two spellings that look the same would be two links.
        raise BadLinkError(f"{_name(command)}: model ids must be in Unicode's NFC form")
    if command.owner == command.helper:
        raise BadLinkError(f"{_name(command)}: a node lends to other nodes only, not to itself")


def _served(command: AddLink, catalogue: Catalogue, node: NodeId, model: ModelId) -> ModelInfo:
    models = catalogue.get(node)
    if models is None:
        raise BadLinkError(f"{_name(command)}: node {node} is unknown; known are {_listed(catalogue)}")
    if model not in models:
        raise BadLinkError(f"{_name(command)}: node {node} has no model {model!r}; it has {_listed(models)}")
    return models[model]


def _check_models(command: AddLink, owner: ModelInfo, helper: ModelInfo) -> None:
    reason = ineligible(owner, helper)
    if not reason:
        return
    sides = ((command.owner, owner), (command.helper, helper))
    at_fault = [(node, model) for node, model in sides if unfit(model) == reason] or list(sides)
    said = ", ".join(f"{node}/{model.id} {_said(model)}" for node, model in at_fault)
    raise BadLinkError(f"{_name(command)}: {reason}: {INELIGIBLE[reason][:-1]}; got {said}")


def _check_weights(command: AddLink, owner: ModelInfo, helper: ModelInfo, *, acknowledged: bool) -> None:
    if weights(owner, helper) == "different" and not acknowledged:
        raise BadLinkError(
            f"{_name(command)}: the models have different weights ({owner.hash[:12]} and {helper.hash[:12]}), so clients "
            f"would get other answers under the same id; say --different-weights if that is meant"
        )


def _said(model: ModelInfo) -> str:
    sees = ", sees images" if VISION in model.capabilities else ""
    return f"(lane {model.lane}, slots {model.slots}, context {model.context or 'not stated'}{sees})"


def _name(command: LinkCommand) -> str:
    return f"link {command.owner}/{command.owner_model[:80]} -> {command.helper}/{command.helper_model[:80]}"


def _listed(names: Mapping[NodeId, object] | Mapping[ModelId, object]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return (", ".join(shown[:8]) or "none") + more

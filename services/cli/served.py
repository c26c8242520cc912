"""What every node serves, as the master tells it to a command."""

from typing import Any, Final

import msgspec

from domain.catalogue.eligibility import Catalogue, Weights
from domain.errors import UnreachableError
from domain.events.status import ModelInfo
from domain.ids import ModelId, NodeId
from services.cli.reach import Here, sure_state
from services.cli.show import note

UNKNOWN_WEIGHTS: Final = (
    "unknown weights: a model that states no `hash` can be compared with none. Such a link needs no --different-weights; whether "
    "clients get the same answers over it is for you to know"
)


def label(weights: Weights) -> str:
    """Return how a link between two models is labelled by their weights."""
    return f"{weights} weights"


async def catalogue_of(place: Here) -> Catalogue:
    """Return what every node serves.

    Raises:
        UnreachableError: the master does not answer, or is not sure.
    """
    state = await sure_state(place)
    return {NodeId(node["node"]): dict(map(_model, node["models"])) for node in state["nodes"]}


async def catalogue_if_known(place: Here) -> Catalogue | None:
    """Return what every node serves; None, with a note, if the master does not answer."""
    try:
        return await catalogue_of(place)
    except UnreachableError as error:
        note(f"{error}\nlinks are made without a check of their models")
        return None


def _model(said: dict[str, Any]) -> tuple[ModelId, ModelInfo]:
    fields = {field.name for field in msgspec.structs.fields(ModelInfo)}
    known = {"local_id": "", **{name: value for name, value in said.items() if name in fields}}
    model = msgspec.convert(known, ModelInfo)
    return model.id, model

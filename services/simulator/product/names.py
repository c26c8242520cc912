"""Names and units of the product's machines for the numbers and seconds of a scenario."""

from typing import Final

from domain.events import LinkAdded
from domain.ids import Incarnation, ModelId, NodeId, RequestId, link_id

UNIT_OF_WORK: Final = 64_000_000
"""Micro-tokens of a request of size 1."""
BEGIN_US: Final = 1_000_000_000_000
"""When a run begins; what was before it happened before."""
NEVER_US: Final = 10**15
RUNTIME: Final = "gpu"
"""The one runtime of a node; where it serves several models they share it."""
_FIRST_REQUEST: Final = 1 << 112
"""Beyond the numbers of requests that were served before the run."""
_TRY: Final = 1 << 64


def us(duration_s: float) -> int:
    """Return seconds as whole microseconds."""
    return round(duration_s * 1_000_000)


def seconds(moment_us: int) -> float:
    """Return a moment of the timeline in seconds since the run began."""
    return (moment_us - BEGIN_US) / 1_000_000


def name_of(number: int) -> NodeId:
    """Return a node's id; ids sort as numbers do."""
    return NodeId(f"n{number:02d}")


def number_of(node: NodeId) -> int:
    """Return a node's number."""
    return int(node[1:])


def model_name(number: int) -> ModelId:
    """Return a model's id, the same on every node; ids sort as numbers do."""
    return ModelId(f"m{number:02d}")


def model_number(model: ModelId) -> int:
    """Return a model's number."""
    return int(model[1:])


def incarnation_of(life: int) -> Incarnation:
    """Return the incarnation of a node's process by how often it was started."""
    return Incarnation(f"{life + 1:032x}")


def request_of(number: int, attempt: int = 0) -> RequestId:
    """Return the id of a request by its number in the run, and by how often its client had to ask again."""
    return RequestId(f"req_{_FIRST_REQUEST + attempt * _TRY + number:032x}")


def past_request(node: int, number: int) -> RequestId:
    """Return the id of a request that a node served before the run."""
    return RequestId(f"req_{node:08x}{number:024x}")


def request_number(request: RequestId) -> int | None:
    """Return a request's number in the run; None if it was before it."""
    number = int(request[4:], 16)
    return number % _TRY if number >= _FIRST_REQUEST else None


def link_of(owner: int, helper: int, model: int) -> LinkAdded:
    """Return the link by which a helper may serve the owner's model, in place of its own if it must."""
    ids = (name_of(owner), model_name(model), name_of(helper), model_name(model))
    return LinkAdded(
        link=link_id(*ids),
        owner=ids[0],
        owner_model=ids[1],
        helper=ids[2],
        helper_model=ids[3],
        load_if_unloaded=True,
        restore_after_borrow=True,
    )

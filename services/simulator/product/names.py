"""Names and units of the product's machines for the numbers and seconds of a scenario."""

from typing import Final

from domain.events import LinkAdded, ModelInfo
from domain.ids import Incarnation, ModelId, NodeId, RequestId, link_id

MODEL: Final = ModelId("m0")
UNIT_OF_WORK: Final = 64_000_000
"""Micro-tokens of a request of size 1."""
BEGIN_US: Final = 1_000_000_000_000
"""When a run begins; what was before it happened before."""
NEVER_US: Final = 10**15
_FIRST_REQUEST: Final = 1 << 112
"""Beyond the numbers of requests that were served before the run."""


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


def incarnation_of(life: int) -> Incarnation:
    """Return the incarnation of a node's process by how often it was started."""
    return Incarnation(f"{life + 1:032x}")


def request_of(number: int) -> RequestId:
    """Return the id of a request by its number in the run."""
    return RequestId(f"req_{_FIRST_REQUEST + number:032x}")


def past_request(node: int, number: int) -> RequestId:
    """Return the id of a request that a node served before the run."""
    return RequestId(f"req_{node:08x}{number:024x}")


def request_number(request: RequestId) -> int | None:
    """Return a request's number in the run; None if it was before it."""
    number = int(request[4:], 16) - _FIRST_REQUEST
    return number if number >= 0 else None


def model_info(*, ready: bool = True) -> ModelInfo:
    """Return the one model that every node serves."""
    return ModelInfo(id=MODEL, local_id=MODEL, ready=ready)


def link_of(owner: int, helper: int) -> LinkAdded:
    """Return the link from an owner to a helper."""
    ids = (name_of(owner), MODEL, name_of(helper), MODEL)
    return LinkAdded(link=link_id(*ids), owner=ids[0], owner_model=MODEL, helper=ids[2], helper_model=MODEL)

"""What a stretch of stored history holds: the master's state before it, its commits with their inputs, and what clients asked."""

import msgspec

from domain.actions import OrderKey
from domain.events import LinkPriced
from domain.events.commit import Commit
from domain.ids import Generation, LinkId, ModelId, NodeId, RequestId
from domain.master.inputs import ControlInput, FactOrRejected


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that came, and what became of it. Moments are those of the stream's clock, in microseconds."""

    request: RequestId
    owner: NodeId
    model: ModelId
    at_us: int
    ended_us: int
    work: int
    service_us: int
    """Where it was served; 0 if it never was."""
    helper: str = ""
    """Who served it; empty where the owner did."""
    helper_model: ModelId = ModelId("")
    est_tokens: int = 0
    streaming: bool = False
    not_lendable: str = ""
    """Why the request itself could not be lent; empty if it could."""
    vision: bool = False
    gone: bool = False
    """Its client left at `ended_us`, before it had an answer."""

    @property
    def key(self) -> str:
        """Return the owner's queue that it waited in."""
        return f"{self.owner}/{self.model}"

    @property
    def ran_at(self) -> tuple[NodeId, ModelId]:
        """Return the node and its model that served it."""
        return (NodeId(self.helper), self.helper_model) if self.helper else (self.owner, self.model)


class LoadSeen(msgspec.Struct, frozen=True):
    """A load that ended well."""

    node: NodeId
    model: ModelId
    at_us: int
    """When it was over."""
    load_us: int
    owner: str
    """The queue whose lent work it was for (what that drove out and back counts as its own), else the node's own."""


class Paths(msgspec.Struct, frozen=True):
    """How long the control path took, each measured on one clock."""

    control_us: int
    """From a fact of an owner to the lease that follows from it."""
    hop_us: int
    """One way between owner and helper."""
    measured: int
    """Leases and lends that were measured; 0: both are taken from the simulator's scenarios."""


class Step(msgspec.Struct, frozen=True):
    """A stored commit with the inputs that it folded; control events with the moment at which they were stored."""

    commit: Commit
    control: list[tuple[int, ControlInput]]
    facts: list[FactOrRejected]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of history."""

    cluster: str
    generation: Generation
    version: int
    """Of the last commit before it."""
    state: bytes
    """The master's state after that commit, encoded."""
    begin_us: int
    """When its first request came: none was open then."""
    end_us: int
    steps: list[Step]
    priced: dict[LinkId, tuple[LinkPriced, OrderKey]]
    """What owners had been told of their links."""
    asked: list[Asked]
    """What came in it, in order of arrival."""
    loads: list[LoadSeen]
    paths: Paths
    left_out: dict[str, int]
    """Requests that were never served (refused, expired, failed), by how they ended."""
    notes: tuple[str, ...] = ()

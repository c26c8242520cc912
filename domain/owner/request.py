"""One request at its owner, from its arrival to its terminal fact."""

from typing import Literal

import msgspec

from domain.ids import LeaseId, LinkId, NodeId
from domain.inputs import NewRequest

Place = Literal["new", "held", "engine", "lent"]


class OwnRequest(msgspec.Struct, kw_only=True, eq=False):
    """A request that this node received. It has exactly one place at any time, so it cannot run twice at once."""

    new: NewRequest
    seq: int
    """Its place in the order of arrival, which it keeps whatever happens to it."""
    arrived_us: int
    deadline_us: int
    """When it stops waiting, if it is held then."""
    place: Place = "new"
    since_us: int = 0
    """When it came to that place."""
    lendable: bool
    not_lendable: str
    may_have_run: bool = False
    """A helper may have begun it before it was fenced."""
    gone: bool = False
    """Its client left while it was in the engine; the engine's end makes it terminal."""
    behind: int = 0
    """Borrowed requests inside the engine when it arrived."""
    behind_load: bool = False
    """A model was being loaded for borrowed work when it arrived."""
    began_us: int | None = None
    """When its service in the own engine began."""
    link: LinkId | None = None
    lease: LeaseId | None = None
    helper: NodeId = NodeId("")
    taken: bool = False
    """The helper accepted it: a stream is unrepeatable from here on."""

    def keep_from_lending(self, why: str) -> None:
        """Never lend it (again)."""
        self.lendable, self.not_lendable = False, why

"""One request at its owner, from its arrival to its terminal fact."""

from typing import Literal

import msgspec

from domain.actions import OrderKey
from domain.ids import LeaseId, LinkId, NodeId
from domain.inputs import NewRequest

Place = Literal["new", "held", "engine", "lent"]


class KeptFor(msgspec.Struct, kw_only=True, eq=False):
    """A request waits for one helper."""

    at_us: int
    until_us: int
    """When it was predicted to be done there, and one job more: then it waits no longer for a helper that did not answer."""
    told: bool = False


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
    order: OrderKey | None = None
    """Of the lease event under which it was lent."""
    at_helper_us: int = 0
    """When its helper could begin it at the earliest."""
    cut_us: int | None = None
    """When it is cut off, if its helper has not begun to answer by then."""
    answering: bool = False
    """The helper's answer has begun."""
    heard_us: int = 0
    """When something of its answer last came from the helper."""
    lease_events: int = 0
    """How many lease events its queue had taken when it arrived."""
    kept: dict[LinkId, KeptFor] | None = None
    taken: bool = False
    """The helper accepted it: a stream is unrepeatable from here on."""

    def keep_from_lending(self, why: str) -> None:
        """Never lend it (again)."""
        self.lendable, self.not_lendable = False, why

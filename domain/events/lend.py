"""Facts of an owner about lending: what it sent to a helper, what came back, which leases it holds."""

from domain.events.base import EventBody
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId


class _Lending(EventBody, frozen=True, kw_only=True):
    request: RequestId
    model: ModelId
    """The owner's model."""
    helper: NodeId
    link: LinkId
    lease: LeaseId


class Lent(_Lending, frozen=True, kw_only=True, tag="lend.lent"):
    """A held request is sent to the helper under a lease; opens a slot."""

    work: int
    out: int
    """Requests lent over this link after this event."""
    waited_us: int
    slots: int = 0
    """Of the lease."""


class LendAnswered(_Lending, frozen=True, kw_only=True, tag="lend.answered"):
    """The helper's whole answer is back. Closes the slot."""

    status: int
    service_us: int
    load_us: int = 0


class LendReturned(_Lending, frozen=True, kw_only=True, tag="lend.returned"):
    """Handed back unstarted; the owner runs it, and it is never lent again. Closes the slot."""

    reason: str
    slots: int = 0
    """Of the link's lease as it is now; 0 if it has none any more."""
    out: int = 0
    """Requests lent over this link after this event."""


class LendBusy(_Lending, frozen=True, kw_only=True, tag="lend.busy"):
    """The helper's desk was full; the request stays lendable. Closes the slot."""

    reason: str = "desk_full"


class CutOff(_Lending, frozen=True, kw_only=True, tag="lend.cut_off"):
    """The owner fenced the helper (connection closed, lease token dead) and takes the request back. Closes the slot."""

    reason: str
    """helper_failed (connection lost), answer_late, stalled, unwatched, helper_error (5xx)."""
    may_have_run: bool


class RelayRefused(_Lending, frozen=True, kw_only=True, tag="lend.relay_refused"):
    """The request could not be passed on. Closes the slot."""

    reason: str
    """no_live_lease, helper_unreachable or forward_failed."""


class LeaseUpdated(EventBody, frozen=True, kw_only=True, tag="lend.lease_updated"):
    """The owner took a grant as it stands now."""

    link: LinkId
    lease: LeaseId
    model: ModelId
    helper: NodeId
    slots: int
    out: int


class LeaseRefused(EventBody, frozen=True, kw_only=True, tag="lend.lease_refused"):
    """The owner did not take a grant: not_an_owner, expired, unknown_basis, bad_signature."""

    link: LinkId
    lease: LeaseId
    reason: str
    model: ModelId = ModelId("")
    helper: NodeId = NodeId("")
    slots: int = 0
    """That the grant would have given."""
    out: int = 0
    """Requests that are lent over this link now."""


LendFact = Lent | LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused | LeaseUpdated | LeaseRefused
"""Every fact of an owner about lending."""

"""Which lends were accepted here, so that a copy of one is told from a lend.

A lease keeps its id for as long as it is renewed, and as long as it lives a copy looks like the lend itself, whenever it comes.
What a helper accepted is never lent to it again, however that ended: it may have run, or was handed back, or its client left.
So what a link's lease brought is remembered until the link has another one: the id of an ended lease never lives again.
"""

from typing import Final

import msgspec

from domain.ids import LeaseId, LinkId, RequestId
from domain.inputs import BorrowOffer

ACCEPTED_MAX: Final = 100_000
"""Requests remembered of one lease (a day at one a second); beyond it the oldest are forgotten."""


class _UnderLease(msgspec.Struct, eq=False):
    lease: LeaseId
    requests: dict[RequestId, None] = msgspec.field(default_factory=dict)


class AcceptedBook:
    """What was accepted, by link."""

    def __init__(self) -> None:
        self._by_link: dict[LinkId, _UnderLease] = {}

    def add(self, offer: BorrowOffer) -> None:
        """Note that the request of `offer` is accepted."""
        known = self._by_link.get(offer.link)
        if known is None or known.lease != offer.lease:
            known = self._by_link[offer.link] = _UnderLease(offer.lease)
        known.requests[offer.request] = None
        if len(known.requests) > ACCEPTED_MAX:
            del known.requests[next(iter(known.requests))]

    def has(self, offer: BorrowOffer) -> bool:
        """Tell whether the lend of `offer` was accepted here before."""
        known = self._by_link.get(offer.link)
        return known is not None and known.lease == offer.lease and offer.request in known.requests

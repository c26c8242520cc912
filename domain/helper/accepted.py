"""Which lends were accepted here, so that a copy of one is told from a lend.

A lease keeps its id for as long as it is renewed, and as long as it lives a copy looks like the lend itself, whenever it comes.
What a helper accepted is never lent to it again, however that ended: it may have run, or was handed back, or its client left.
So what a link's lease brought is remembered until the link has another one: the id of an ended lease never lives again.
A link that is removed gets none; what it brought is forgotten once no lease of it can live, also if it was added again meanwhile.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from domain.actions import FORGET_US
from domain.ids import LeaseId, LinkId, RequestId
from domain.inputs import BorrowOffer

ACCEPTED_MAX: Final = 100_000
"""Requests remembered of one lease (a day at one a second); beyond it the oldest are forgotten."""


class _UnderLease(msgspec.Struct, eq=False):
    lease: LeaseId
    gone_us: int | None = None
    """Since when its link is gone."""
    requests: dict[RequestId, None] = msgspec.field(default_factory=dict)


class AcceptedBook:
    """What was accepted, by link."""

    def __init__(self) -> None:
        self._by_link: dict[LinkId, _UnderLease] = {}

    def __len__(self) -> int:
        return sum(len(known.requests) for known in self._by_link.values())

    def add(self, offer: BorrowOffer) -> None:
        """Note that the request of `offer` is accepted."""
        known = self._by_link.get(offer.link)
        if known is None or known.lease != offer.lease:
            known = self._by_link[offer.link] = _UnderLease(offer.lease)
        known.requests[offer.request] = None
        if len(known.requests) > ACCEPTED_MAX:
            del known.requests[next(iter(known.requests))]

    def set_links(self, links: Collection[LinkId], now_us: int) -> None:
        """Say which links lead here; what came over others is forgotten after a while."""
        for link, known in list(self._by_link.items()):
            if link in links:
                known.gone_us = None
            elif known.gone_us is None:
                known.gone_us = now_us
            elif now_us - known.gone_us >= FORGET_US:
                del self._by_link[link]

    def has(self, offer: BorrowOffer) -> bool:
        """Tell whether the lend of `offer` was accepted here before."""
        known = self._by_link.get(offer.link)
        return known is not None and known.lease == offer.lease and offer.request in known.requests

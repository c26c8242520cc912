"""The leases that a node has heard of: what it shows to helpers, and what it checks owners against."""

from collections.abc import Callable

import msgspec

from adapters.decisions import SignedDecision
from domain.actions import FORGET_US, OrderKey
from domain.events import LeaseCleared
from domain.events.decision import LeaseEvent
from domain.ids import LeaseId, LinkId


class _Copy(msgspec.Struct, frozen=True, kw_only=True):
    signed: SignedDecision
    event: LeaseEvent
    taken_us: int


class LeaseCopies:
    """The newest lease event of each link, as this node has seen it: what it shows to helpers, and checks owners against.

    That of a link that is gone is forgotten once no lease of it can live. The link is the same one if it is added again, so what
    was decided before stays old news (as in domain.owner.leases).
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._newest: dict[LinkId, _Copy] = {}
        self._forgotten: OrderKey | None = None

    def __len__(self) -> int:
        return len(self._newest)

    def forget_gone(self, is_known: Callable[[LinkId], bool], now_us: int) -> None:
        """Forget the events of links that are not known and of which nothing was heard for longer than a lease can live."""
        for link, kept in list(self._newest.items()):
            if now_us - kept.taken_us >= FORGET_US and not is_known(link):
                self._forgotten = max(self._forgotten or kept.signed.order, kept.signed.order)
                del self._newest[link]

    def take(self, signed: SignedDecision, now_us: int) -> bool:
        """Keep a lease event if it is newer than what is kept of its link; tell whether it was."""
        event = signed.lease
        if event is None:
            return False
        kept = self._newest.get(event.link)
        known = kept.signed.order if kept is not None else self._forgotten
        if known is not None and signed.order <= known:
            return False
        self._newest[event.link] = _Copy(signed=signed, event=event, taken_us=now_us)
        return True

    def shown(self, link: LinkId, lease: LeaseId) -> bytes | None:
        """Return the signed bytes of the newest decision about `lease`; None if it is over.

        That may be a newer one than the lend was decided under: the same lease, changed meanwhile.
        """
        kept = self._newest.get(link)
        if kept is None or kept.event.lease != lease or isinstance(kept.event, LeaseCleared):
            return None
        return kept.signed.body

    def is_over(self, link: LinkId, lease: LeaseId, order: OrderKey) -> bool:
        """Tell whether a decision newer than `order` has ended `lease`; without one nothing speaks against it."""
        kept = self._newest.get(link)
        if kept is None or kept.signed.order <= order:
            return False
        return kept.event.lease != lease or kept.event.slots <= 0 or isinstance(kept.event, LeaseCleared)

    def live(self, link: LinkId, lease: LeaseId, now_us: int) -> LeaseEvent | None:
        """Return the newest event of `link` if it lets requests come under `lease` now."""
        kept = self._newest.get(link)
        if kept is None or kept.event.lease != lease or kept.event.slots <= 0 or isinstance(kept.event, LeaseCleared):
            return None
        # the owner's clock counts from the basis, which is older: for a lease that was not renewed this is the later end
        return kept.event if now_us < kept.taken_us + kept.event.ttl_us else None

"""The leases that one owner's queue holds, and what is out over each link."""

from collections.abc import Collection

import msgspec

from domain.actions import OrderKey
from domain.events import LeaseChanged, LeaseCleared, LeaseGranted, LeaseRefused, LeaseUpdated
from domain.events.decision import LeaseEvent
from domain.ids import LeaseId, LinkId, ModelId, RequestId

_PAUSE_US = 1_000_000
_PAUSE_DOUBLINGS_MAX = 5


class LiveLease(msgspec.Struct, kw_only=True, eq=False):
    """A lease in force."""

    grant: LeaseGranted | LeaseChanged
    order: OrderKey
    ends_us: int
    """Send time of the basis + ttl, on the owner's own clock."""
    desk_full: bool = False
    """The helper answered busy: lend nothing until a request ends or the lease is renewed."""
    refused_until_us: int | None = None
    """The helper returned, refused or failed one: lend nothing until then, or until it answers one, or under a new lease.

    A helper that hands everything back at once would otherwise spend the whole backlog's one chance to be lent.
    """


class LeaseBook:
    """Live leases by link. Every event carries the whole state of its link, so the newest by order key is all there is."""

    def __init__(self) -> None:
        self.links: frozenset[LinkId] = frozenset()
        self._newest: dict[LinkId, OrderKey] = {}
        self._live: dict[LinkId, LiveLease] = {}
        self._out: dict[LinkId, set[RequestId]] = {}
        self._refusals: dict[LinkId, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    def set_links(self, links: Collection[LinkId]) -> list[LeaseUpdated]:
        """Set the links of which the model is the owner; end the leases of the others."""
        self.links = frozenset(links)
        return [self._end(link) for link in sorted(self._live) if link not in self.links]

    def take(
        self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int
    ) -> LeaseUpdated | LeaseRefused | None:
        """Take `event` and return the fact of it; None if a newer or the same one was taken before.

        A refused event ends the link's lease as well: it is the newest word on the link, and it cannot be used.
        """
        link = event.link
        if link not in self.links:
            return LeaseRefused(link=link, lease=event.lease, reason="not_an_owner")
        newest = self._newest.get(link)
        if newest is not None and order <= newest:
            return None
        self._newest[link] = order
        ended = self._live.pop(link, None)
        if isinstance(event, LeaseCleared):
            return self._updated(event, 0) if ended is not None else None
        if basis_sent_us is None:
            return LeaseRefused(link=link, lease=event.lease, reason="unknown_basis")
        ends_us = basis_sent_us + event.ttl_us
        if ends_us <= now_us:
            return LeaseRefused(link=link, lease=event.lease, reason="expired")
        lease = self._live[link] = LiveLease(grant=event, order=order, ends_us=ends_us)
        if ended is not None and ended.grant.lease == event.lease:
            lease.refused_until_us = ended.refused_until_us
        return self._updated(event, event.slots)

    def expire(self, now_us: int) -> list[LeaseUpdated]:
        """End the leases and the pauses whose time is over; return the facts of it."""
        for lease in self._live.values():
            if lease.refused_until_us is not None and lease.refused_until_us <= now_us:
                lease.refused_until_us = None
        return [self._end(link) for link in sorted(self._live) if self._live[link].ends_us <= now_us]

    def next_timer_us(self) -> int | None:
        """Return when the next lease or pause ends; None if there is none."""
        ends = [lease.ends_us for lease in self._live.values()]
        pauses = [lease.refused_until_us for lease in self._live.values() if lease.refused_until_us is not None]
        return min(ends + pauses, default=None)

    def ttl_us_min(self) -> int | None:
        """Return the shortest lifetime of a live lease; None if there is none."""
        return min((lease.grant.ttl_us for lease in self._live.values()), default=None)

    def first_lease(self) -> LeaseId | None:
        """Return the id of the live lease of the first link by id."""
        return self._live[min(self._live)].grant.lease if self._live else None

    def out(self, link: LinkId) -> int:
        """Return how many requests are out over `link`, under whatever lease."""
        return len(self._out.get(link, ()))

    def pick(self) -> LiveLease | None:
        """Return the lease with a free slot whose helper should answer one more request first; None if there is none.

        An unpriced one (job_us 0) comes after all priced ones; ties by the helper's job, then by link id.
        """
        best: LiveLease | None = None
        best_key: tuple[bool, int, int, LinkId] | None = None
        for link, lease in self._live.items():
            out, job_us = self.out(link), lease.grant.job_us
            if lease.desk_full or lease.refused_until_us is not None or out >= lease.grant.slots:
                continue
            key = (job_us == 0, (out + 1) * job_us, job_us, link)
            if best_key is None or key < best_key:
                best, best_key = lease, key
        return best

    def opened(self, link: LinkId, request: RequestId) -> int:
        """Note that `request` is out over `link`; return how many are."""
        out = self._out.setdefault(link, set())
        out.add(request)
        return len(out)

    def closed(self, link: LinkId, request: RequestId) -> None:
        """Note that `request` is no longer out over `link`."""
        out = self._out[link]
        out.remove(request)
        if not out:
            del self._out[link]

    def answered(self, link: LinkId) -> None:
        """Note that the helper of `link` answered a request: it does not refuse them all."""
        self._refusals.pop(link, None)
        lease = self._live.get(link)
        if lease is not None:
            lease.refused_until_us = None

    def something_ended(self) -> None:
        """Note that a request of this queue ended, here or at a helper: full desks may be asked again."""
        for lease in self._live.values():
            lease.desk_full = False

    def desk_full(self, link: LinkId) -> None:
        """Note that the helper of `link` answered busy."""
        lease = self._live.get(link)
        if lease is not None:
            lease.desk_full = True

    def refused(self, link: LinkId, now_us: int) -> None:
        """Note that the helper of `link` returned, refused or failed a request: each time in a row pauses twice as long."""
        refusals = self._refusals[link] = self._refusals.get(link, 0) + 1
        lease = self._live.get(link)
        if lease is not None:
            pause_us = _PAUSE_US << min(refusals - 1, _PAUSE_DOUBLINGS_MAX)
            lease.refused_until_us = now_us + pause_us

    def _end(self, link: LinkId) -> LeaseUpdated:
        return self._updated(self._live.pop(link).grant, 0)

    def _updated(self, event: LeaseEvent, slots: int) -> LeaseUpdated:
        return LeaseUpdated(
            link=event.link,
            lease=event.lease,
            model=ModelId(event.owner_model),
            helper=event.helper,
            slots=slots,
            out=self.out(event.link),
        )

"""The leases that one owner's queue holds, and what is out over each link."""

from collections.abc import Collection

import msgspec

from domain.actions import FORGET_US, OrderKey
from domain.events import LeaseChanged, LeaseChecked, LeaseCleared, LeaseGranted, LeaseRefused, LeaseUpdated, LinkPriced
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import LeaseId, LinkId, ModelId, RequestId
from domain.owner.request import OwnRequest

_PAUSE_US = 1_000_000
_DOUBLINGS_MAX = 5
_EARLY_MAX = 64
"""Links that are not known, of which the newest lease event is kept."""


class LiveLease(msgspec.Struct, kw_only=True, eq=False):
    """A lease in force."""

    grant: LeaseGranted | LeaseChanged
    order: OrderKey
    ends_us: int
    """Send time of the basis + ttl, on the owner's own clock."""
    ready_at_us: int
    """When the helper could begin a next job, as the decision predicted."""
    desk_full: bool = False
    """The helper answered busy: lend nothing until a request ends or the lease is renewed."""
    returned_until_us: int | None = None
    """The helper returned one: lend nothing until then, or until it answers one, or under a new lease.

    A helper that hands everything back at once would otherwise spend the whole backlog's one chance to be lent.
    """
    failed_until_us: int | None = None
    """A lend failed: lend nothing until then, or until a decision that knows of it."""

    @property
    def takes(self) -> bool:
        """Whether nothing but its slots stands against lending under it."""
        return not self.desk_full and self.returned_until_us is None and self.failed_until_us is None

    def suits(self, own: OwnRequest) -> bool:
        """Tell whether the helper can serve `own`: its window holds it, which needs a known size, and it sees if it has to."""
        new, grant = own.new, self.grant
        return (not grant.context or 0 < new.est_tokens <= grant.context) and (grant.vision or not new.vision)


class Track(msgspec.Struct, kw_only=True, eq=False):
    """What the queue knows of one link, under whatever lease."""

    out: dict[RequestId, OwnRequest] = msgspec.field(default_factory=dict)
    """Lent and not back, in order of lending."""
    newest: OrderKey | None = None
    """The newest lease event."""
    word: OrderKey | None = None
    """The newest other word, but for questions."""
    asked: OrderKey | None = None
    """The newest question to its helper: an older word that comes after it holds all the same."""
    heard_us: int = 0
    """When the master last leased over it or asked its helper what it still runs, or the helper last answered a lend at all."""
    faster: bool = False
    """Both sides are measured, and the helper is the faster one."""
    left_us: int = 0
    """When a request last came back, however it ended."""
    returns: int = 0
    """In a row, with no answer between."""
    failures: int = 0
    """In a row, with no answer between."""
    failed_us: int | None = None
    """When the last lend failed, if the helper has answered none since and no decision knows of it."""
    gone_us: int | None = None
    """Since when its link is gone and nothing is out over it."""


class LeaseBook:
    """Live leases by link. Every event carries the whole state of its link, so the newest by order key is all there is.

    A link that is gone is forgotten once no lease of it can live and nothing is out over it. It is the same one if it is added
    again, so what was decided before it was forgotten stays old news.
    """

    def __init__(self) -> None:
        self.links: frozenset[LinkId] = frozenset()
        self.live: dict[LinkId, LiveLease] = {}
        self._tracks: dict[LinkId, Track] = {}
        self._forgotten: OrderKey | None = None
        """The newest word on any link that is forgotten: of a link that is not known none counts that is no newer."""
        self._early: dict[LinkId, tuple[LeaseEvent, OrderKey, int | None]] = {}
        """Of links that are not known (yet) the newest event: the word that makes such a link may come a moment later."""

    def __len__(self) -> int:
        return len(self.live)

    def set_links(self, links: Collection[LinkId], now_us: int) -> tuple[int, list[LeaseUpdated | LeaseRefused]]:
        """Set the links of which the model is the owner; end the leases of the others, take the events that came too early.

        Return how many of these were news, and the facts of it all.
        """
        self.links = frozenset(links)
        self._forget_gone(now_us)
        facts: list[LeaseUpdated | LeaseRefused] = [
            self._end(link) for link in sorted(self.live) if link not in self.links
        ]
        taken = [self.take(*early, now_us) for early in self._no_longer_early(now_us)]
        return sum(news for news, _ in taken), facts + [fact for _, fact in taken if fact is not None]

    def _forget_gone(self, now_us: int) -> None:
        for link, track in list(self._tracks.items()):
            track.faster = track.faster and link in self.links
            if link in self.links or track.out:
                track.gone_us = None
            elif track.gone_us is None:
                track.gone_us = now_us
            elif now_us - track.gone_us >= FORGET_US:
                words = (self._forgotten, track.newest, track.word, track.asked)
                self._forgotten = max((order for order in words if order is not None), default=None)
                del self._tracks[link]

    def take(
        self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int
    ) -> tuple[bool, LeaseUpdated | LeaseRefused | None]:
        """Take `event`; return whether it was news, and the fact of it.

        A refused event ends the link's lease as well: it is the newest word on the link, and it cannot be used. One of a link
        that is not known is refused, and taken all the same if the link becomes known while it holds.
        """
        link = event.link
        if link not in self.links:
            self._keep(event, order, basis_sent_us)
            return False, self._refused(event, "not_an_owner")
        track = self.track(link)
        if track.newest is not None and order <= track.newest:
            return False, None
        track.newest, track.heard_us = order, now_us
        ended = self.live.pop(link, None)
        if isinstance(event, LeaseCleared):
            return True, self._updated(event, 0) if ended is not None else None
        if basis_sent_us is None:
            return True, self._refused(event, "unknown_basis")
        ends_us = basis_sent_us + event.ttl_us
        if ends_us <= now_us:
            return True, self._refused(event, "expired")
        lease = self.live[link] = LiveLease(
            grant=event, order=order, ends_us=ends_us, ready_at_us=now_us + event.ready_us
        )
        if track.failed_us is not None and track.failed_us <= basis_sent_us:
            track.failed_us = None
        if ended is not None:
            lease.failed_until_us = ended.failed_until_us if track.failed_us is not None else None
            lease.returned_until_us = ended.returned_until_us if ended.grant.lease == event.lease else None
        return True, self._updated(event, event.slots)

    def _keep(self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None) -> None:
        known = self._early.get(event.link)
        if known is None or known[1] < order:
            self._early[event.link] = event, order, basis_sent_us
            if len(self._early) > _EARLY_MAX:
                del self._early[next(iter(self._early))]

    def _no_longer_early(self, now_us: int) -> list[tuple[LeaseEvent, OrderKey, int | None]]:
        """Return, and keep no longer, the events of links that are known by now; those that are over were refused for good."""
        early = [self._early.pop(link) for link in sorted(self._early) if link in self.links]
        return [one for one in early if one[2] is not None and one[2] + one[0].ttl_us > now_us]

    def take_word(self, word: LinkWord, order: OrderKey) -> bool:
        """Take another word on a link; tell whether it is one of ours, or was while something is out over it, and news."""
        if word.link not in self.links and not self.out(word.link):
            return False
        track, asks = self.track(word.link), isinstance(word, LeaseChecked)
        newest = track.asked if asks else track.word
        if newest is not None and order <= newest:
            return False
        if asks:
            track.asked = order
            return True
        track.word = order
        if isinstance(word, LinkPriced):
            track.faster = word.faster and word.link in self.links
        return True

    def expire(self, now_us: int) -> list[LeaseUpdated]:
        """End the leases and the pauses whose time is over; return the facts of it."""
        over = []
        for link, lease in self.live.items():
            if lease.ends_us <= now_us:
                over.append(link)
            if lease.returned_until_us is not None and lease.returned_until_us <= now_us:
                lease.returned_until_us = None
            if lease.failed_until_us is not None and lease.failed_until_us <= now_us:
                lease.failed_until_us = None
        return [self._end(link) for link in sorted(over)]

    def next_timer_us(self) -> int | None:
        """Return when the next lease or pause ends; None if there is none."""
        due_us = None
        for lease in self.live.values():
            for moment in (lease.ends_us, lease.returned_until_us, lease.failed_until_us):
                if moment is not None and (due_us is None or moment < due_us):
                    due_us = moment
        return due_us

    def ttl_us_min(self) -> int | None:
        """Return the shortest lifetime of a live lease; None if there is none."""
        return min((lease.grant.ttl_us for lease in self.live.values()), default=None)

    def first_lease(self) -> LeaseId | None:
        """Return the id of the live lease of the first link by id."""
        return self.live[min(self.live)].grant.lease if self.live else None

    def track(self, link: LinkId) -> Track:
        """Return what is known of `link`."""
        track = self._tracks.get(link)
        if track is None:
            known = self._forgotten
            track = self._tracks[link] = Track(newest=known, word=known, asked=known)
        return track

    def has_faster(self) -> bool:
        """Tell whether a linked helper is known to be faster, and nothing stands against lending to it."""
        for link, track in self._tracks.items():
            lease = self.live.get(link)
            if track.faster and (lease is None or lease.takes):
                return True
        return False

    def slots(self, link: LinkId) -> int:
        """Return the slots of the link's lease; 0 if it has none."""
        lease = self.live.get(link)
        return lease.grant.slots if lease is not None else 0

    def out(self, link: LinkId) -> int:
        """Return how many requests are out over `link`, under whatever lease."""
        track = self._tracks.get(link)
        return len(track.out) if track is not None else 0

    def free(self) -> list[LiveLease]:
        """Return the leases with a free slot, first the one whose helper should answer one more request first.

        An unpriced one (job_us 0) comes after all priced ones; ties by the helper's job, then by link id. After a failure
        one slot is free at most, until the helper answers or a decision knows of it.
        """
        found = []
        for link, lease in self.live.items():
            if lease.takes:
                track, job_us = self.track(link), lease.grant.job_us
                out = len(track.out)
                if out < (lease.grant.slots if track.failed_us is None else min(1, lease.grant.slots)):
                    found.append(((job_us == 0, (out + 1) * job_us, job_us, link), lease))
        if len(found) > 1:
            found.sort(key=lambda pair: pair[0])
        return [lease for _, lease in found]

    def opened(self, own: OwnRequest, lease: LiveLease, now_us: int) -> int:
        """Note that `own` is out under `lease`; return how many are out over its link."""
        out = self.track(lease.grant.link).out
        own.at_helper_us = now_us if out else max(now_us, lease.ready_at_us)
        out[own.new.request] = own
        return len(out)

    def closed(self, link: LinkId, request: RequestId, now_us: int) -> None:
        """Note that `request` is no longer out over `link`."""
        track = self.track(link)
        del track.out[request]
        track.left_us = now_us

    def answered(self, link: LinkId, now_us: int) -> None:
        """Note that the helper of `link` answered a request: it does not refuse them all."""
        track = self.track(link)
        track.returns = track.failures = 0
        track.failed_us, track.heard_us = None, now_us
        lease = self.live.get(link)
        if lease is not None:
            lease.returned_until_us = lease.failed_until_us = None

    def something_ended(self) -> None:
        """Note that a request of this queue ended, here or at a helper: full desks may be asked again."""
        for lease in self.live.values():
            lease.desk_full = False

    def desk_full(self, link: LinkId, now_us: int) -> None:
        """Note that the helper of `link` answered busy."""
        self.track(link).heard_us = now_us
        lease = self.live.get(link)
        if lease is not None:
            lease.desk_full = True

    def returned(self, link: LinkId, now_us: int) -> None:
        """Note that the helper of `link` returned a request: each time in a row pauses twice as long, from 1 s to 32 s."""
        track = self.track(link)
        track.returns, track.heard_us = track.returns + 1, now_us
        lease = self.live.get(link)
        if lease is not None:
            lease.returned_until_us = now_us + (_PAUSE_US << min(track.returns - 1, _DOUBLINGS_MAX))

    def failed(self, link: LinkId, now_us: int) -> None:
        """Note that a lend over `link` failed: the master learns of it and decides.

        Until then pause, as after a return, so that a helper that fails at once does not get the whole backlog between two
        decisions. Several at one moment, as after a stall, are one failure.
        """
        track = self.track(link)
        track.failures += track.failed_us != now_us
        track.failed_us = now_us
        lease = self.live.get(link)
        if lease is not None:
            lease.failed_until_us = now_us + (_PAUSE_US << min(track.failures - 1, _DOUBLINGS_MAX))

    def _end(self, link: LinkId) -> LeaseUpdated:
        return self._updated(self.live.pop(link).grant, 0)

    def _updated(self, event: LeaseEvent, slots: int) -> LeaseUpdated:
        return LeaseUpdated(
            link=event.link,
            lease=event.lease,
            model=ModelId(event.owner_model),
            helper=event.helper,
            slots=slots,
            out=self.out(event.link),
        )

    def _refused(self, event: LeaseEvent, reason: str) -> LeaseRefused:
        return LeaseRefused(
            link=event.link,
            lease=event.lease,
            reason=reason,
            model=event.owner_model,
            helper=event.helper,
            slots=event.slots,
            out=self.out(event.link),
        )

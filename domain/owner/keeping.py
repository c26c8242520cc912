"""Whether a helper would end a held request sooner than its owner's own engine. Integers only; durations from `now_us` on."""

import msgspec

from domain.estimates import rest_us, scaled_us
from domain.events import LeaseChanged, LeaseGranted
from domain.ids import LinkId, NodeId
from domain.owner.leases import LiveLease, Track
from domain.owner.request import OwnRequest
from domain.pipe import Pipe


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What owner and helper would need for one request, with what each has to end before it."""

    link: LinkId
    helper: NodeId
    owner_finish_us: int
    helper_finish_us: int
    owner_job_us: int
    """The request alone, at its owner."""
    helper_job_us: int
    """The request alone, at the helper."""


def estimate(own: OwnRequest, lease: LiveLease, track: Track, pipe: Pipe, now_us: int) -> Estimate | None:
    """Return both finish times; None if the lease is a probe or lacks a price for one of the two."""
    grant = lease.grant
    if grant.probe or not grant.job_us or not grant.owner_job_us:
        return None
    owner_job_us = scaled_us(grant.owner_job_us, grant.work, own.new.work)
    helper_job_us = helper_price_us(grant, own.new.work)
    free_in_us = pipe.free_in_us(now_us, lambda work: scaled_us(grant.owner_job_us, grant.work, work))
    return Estimate(
        link=grant.link,
        helper=grant.helper,
        owner_finish_us=free_in_us + owner_job_us,
        helper_finish_us=_helper_free_in_us(lease, track, now_us) + helper_job_us,
        owner_job_us=owner_job_us,
        helper_job_us=helper_job_us,
    )


def helper_price_us(grant: LeaseGranted | LeaseChanged, work: int) -> int:
    """Return what the helper needs for `work`; 0 if unpriced."""
    return scaled_us(grant.job_us, grant.work, work)


def _helper_free_in_us(lease: LiveLease, track: Track, now_us: int) -> int:
    """Return in what time the helper should have ended what is out over the link, or be ready if nothing is."""
    if not track.out:
        return max(0, lease.ready_at_us - now_us)
    first, *others = track.out.values()
    elapsed_us = now_us - max(first.at_helper_us, track.left_us)
    left_us = rest_us(helper_price_us(lease.grant, first.new.work), elapsed_us)
    return left_us + sum(helper_price_us(lease.grant, other.new.work) for other in others)

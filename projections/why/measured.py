"""What was measured of a lent request at its helper, by whoever could say it."""

from collections.abc import Iterable, Mapping

from domain.events import BorrowFinished, LendAnswered
from projections.why.said import Said

AtHelpers = Mapping[tuple[str, str], BorrowFinished]
"""By helper and request: what the helper says itself of how it ended in its engine."""


def at_helpers(facts: Iterable[Said]) -> AtHelpers:
    """Return what helpers say of each request that ended in their engine."""
    return {(each.who, each.fact.request): each.fact for each in facts if isinstance(each.fact, BorrowFinished)}


def measured(answered: LendAnswered, there: AtHelpers) -> tuple[int, int]:
    """Return (service, load) in microseconds; -1 where nobody stated it.

    The head of a stream is out before its service is over, so that its owner never hears of it: the helper's own fact says it.
    """
    said = there.get((answered.helper, answered.request))
    if said is None:
        return answered.service_us or -1, answered.load_us or -1
    return answered.service_us or said.service_us, max(answered.load_us, said.load_us)


def measured_figures(answered: LendAnswered, facts: Iterable[Said]) -> dict[str, int]:
    """Return what a request's story says of it."""
    service_us, load_us = measured(answered, at_helpers(facts))
    return {"measured_job_us": service_us, "measured_load_us": load_us}

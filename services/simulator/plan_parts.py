"""A long time of traffic in parts: each begins after a quiet time, so that none knows of another and they run side by side."""

from collections.abc import Iterator, Sequence

import msgspec

from services.simulator.model.scenario import Arrival, Scenario
from services.simulator.plan_traffic import Request

REQUESTS_PER_PART = 400
SWITCHES_PER_PART = 10
"""So many times as large is a part where the candidate has to load: each begins with its own model in, whatever was before."""
_QUIET_S = 60.0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that is thought of."""

    speed: float
    """In the owner's own speed."""
    load_s: float = 0.0
    """To load the model there; 0: it has it in and holds no other."""
    like: str = ""
    """The node whose measured speed this is."""


class Stretch(msgspec.Struct, frozen=True):
    """Requests between two times at which the owner alone would have had nothing to do for a while."""

    first: int
    end: int
    """Numbers of requests: from `first` to before `end`."""


def stretches(requests: Sequence[Request], candidate: Candidate) -> list[Stretch]:
    """Return the stretches of `requests`, in order; together they are all of them."""
    found, first, free_s = [], 0, 0.0
    slowest_s = max(request.service_s for request in requests) / min(1.0, candidate.speed)
    quiet_s = _QUIET_S + 2 * candidate.load_s + slowest_s
    for number, request in enumerate(requests):
        if number > first and request.at_s >= free_s + quiet_s:
            found.append(Stretch(first, number))
            first = number
        free_s = max(free_s, request.at_s) + request.service_s
    found.append(Stretch(first, len(requests)))
    return found


def parts(found: Sequence[Stretch], candidate: Candidate) -> Iterator[Stretch]:
    """Yield stretches put together until they are worth a task of their own."""
    first = found[0].first
    least = REQUESTS_PER_PART * (SWITCHES_PER_PART if candidate.load_s else 1)
    for stretch in found:
        if stretch.end - first >= least or stretch is found[-1]:
            yield Stretch(first, stretch.end)
            first = stretch.end


def scenario_of(requests: Sequence[Request], candidate: Candidate, *, unit_s: float, name: str) -> Scenario:
    """Return the simulator's scenario of one part: node 0 is the owner, node 1 the candidate.

    `unit_s`: what a request of size 1 takes on the owner; sizes are what is promised, in this unit.
    """
    begin_s = requests[0].at_s
    arrivals = (
        Arrival(
            at_s=request.at_s - begin_s,
            node=0,
            size=request.expected_s / unit_s,
            noise=request.service_s / request.expected_s,
            native=False,
        )
        for request in requests
    )
    switches = candidate.load_s > 0
    return Scenario(
        name=name,
        speeds=(1.0, candidate.speed),
        loaded=(0, 1 if switches else 0),
        load_s=(candidate.load_s, candidate.load_s),
        links={0: (1,)},
        unit_s=(unit_s, unit_s),
        arrivals=tuple(arrivals),
        one_model=not switches,
    )

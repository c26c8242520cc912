"""What a second machine would have brought on traffic that came: in figures, in a sentence, and how far to trust it."""

from collections.abc import Sequence

import msgspec

from services.simulator.model.measures import percentile
from services.simulator.plan_parts import Candidate
from services.simulator.plan_run import STAND_IN, Figures, Runs
from services.simulator.plan_traffic import Request, Traffic

_LITTLE = 0.05
_TOGETHER_NOTED = 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated run without lending against what happened, over the stretches in which nothing was lent."""

    requests: int
    happened_mean_s: float
    simulated_mean_s: float
    happened_p99_s: float
    simulated_p99_s: float

    @property
    def mean_error(self) -> float:
        """Return the relative error of the mean latency; above 0 the simulation is slower than what happened."""
        return self.simulated_mean_s / self.happened_mean_s - 1

    @property
    def p99_error(self) -> float:
        """Return the same of the 99th percentile."""
        return self.simulated_p99_s / self.happened_p99_s - 1


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    version: str
    traffic: str
    requests: int
    span_s: float
    """From the first arrival to the last."""
    utilisation: float
    """Share of the span in which the owner alone would be at work; above 1 it cannot keep up."""
    candidate: Candidate
    alone: Figures
    helped: Figures
    sentence: str
    notes: tuple[str, ...]
    calibration: Calibration | None
    """None where nothing is known of what happened, or everything was lent into."""


def answer(version: str, traffic: Traffic, candidate: Candidate, runs: Runs) -> Answer:
    """Return the answer that the runs give."""
    requests = traffic.requests
    span_s = requests[-1].at_s - requests[0].at_s
    alone, helped = runs.alone.figures(), runs.helped.figures()
    checked = calibration(requests, runs)
    return Answer(
        version=version,
        traffic=traffic.about,
        requests=len(requests),
        span_s=span_s,
        utilisation=sum(request.service_s for request in requests) / max(span_s, requests[-1].service_s),
        candidate=candidate,
        alone=alone,
        helped=helped,
        sentence=sentence(candidate, alone, helped),
        notes=tuple(_notes(traffic, runs, checked)),
        calibration=checked,
    )


def calibration(requests: Sequence[Request], runs: Runs) -> Calibration | None:
    """Return how the run without lending compares with what happened; None if there is nothing to compare."""
    happened: list[float] = []
    simulated: list[float] = []
    for stretch in runs.stretches:
        part = requests[stretch.first : stretch.end]
        if any(request.lent or request.lived_s < 0 for request in part):
            continue
        happened += (request.lived_s for request in part)
        simulated += (one.ended_s - one.at_s for one in runs.alone.requests[stretch.first : stretch.end])
    if not happened:
        return None
    return Calibration(
        requests=len(happened),
        happened_mean_s=sum(happened) / len(happened),
        simulated_mean_s=sum(simulated) / len(simulated),
        happened_p99_s=percentile(happened, 0.99),
        simulated_p99_s=percentile(simulated, 0.99),
    )


def sentence(candidate: Candidate, alone: Figures, helped: Figures) -> str:
    """Return what the candidate would bring, in one sentence."""
    speed = "the same speed" if f"{candidate.speed:.3g}" == "1" else f"{candidate.speed:.3g} times the speed"
    who = f"A machine like {candidate.like}" if candidate.like else f"A second machine of {speed}"
    saved = 1 - helped.mean_s / alone.mean_s
    figures = (
        f"mean latency {_time(helped.mean_s)} instead of {_time(alone.mean_s)}, "
        f"p99 {_time(helped.p99_s)} instead of {_time(alone.p99_s)}, "
        f"longest backlog {_time(helped.longest_backlog_s)} instead of {_time(alone.longest_backlog_s)}"
    )
    if saved < -_LITTLE:
        return f"{who} would have made it worse: {figures}."
    if saved < _LITTLE:
        return f"{who} would have brought little: {figures}."
    loads = f", with {helped.loads} loads" if helped.loads else ""
    taken = f"would have taken {helped.lent_share:.0%} of the requests{loads}"
    return f"{who} {taken} and answered {saved:.0%} sooner in the mean: {figures}."


def _notes(traffic: Traffic, runs: Runs, checked: Calibration | None) -> list[str]:
    notes = []
    if runs.refused:
        notes.append(f"the product's own rule does not run this yet ({runs.refused}): {STAND_IN} stands in for it")
    if traffic.left_out:
        notes.append(f"{traffic.left_out} requests were never served (refused, expired, given up) and are left out")
    lent = sum(request.lent for request in traffic.requests)
    if lent:
        share = lent / len(traffic.requests)
        notes.append(f"{share:.0%} of the requests were lent to helpers already; here the owner serves them itself")
    if traffic.together_max > _TOGETHER_NOTED:
        notes.append(
            f"the engine served up to {traffic.together_max} requests at once, the simulation serves one at a time: "
            "it makes both rows slower than they are"
        )
    if checked is None:
        known = any(request.lived_s >= 0 for request in traffic.requests)
        why = "something was lent in every busy time" if known else "a trace does not say how long requests took in all"
        notes.append(f"not calibrated: {why}")
    return notes


def _time(seconds: float) -> str:
    """Return seconds as people read them."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"

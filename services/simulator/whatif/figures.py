"""What happened, and what would: drain, latency and loads of each owner."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from services.simulator.model.measures import percentile
from services.simulator.whatif.cluster import Lived, RanOn
from services.simulator.whatif.recorded import LoadSeen, Recorded

ALL = "all"
_S = 1_000_000


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one owner, or of all. Seconds; latencies are from arrival to answer."""

    requests: int
    drain_s: float
    """From the first arrival to the last answer."""
    backlog_s: float
    """The longest time during which there always was a request without its answer."""
    mean_s: float
    p99_s: float
    load_s: float
    """Of loads for these requests, and back, that were over by the last answer."""
    lent: float
    """Share of the requests."""


def happened(recorded: Recorded) -> dict[str, Figures]:
    """Return what happened."""
    lived = [Lived(one.key, one.at_us, one.ended_us, bool(one.helper)) for one in recorded.asked if not one.gone]
    return figures(lived, recorded.loads)


def of_run(run: RanOn) -> dict[str, Figures]:
    """Return what came of a run on."""
    return figures(run.lived, run.loads)


def figures(lived: Sequence[Lived], loads: Sequence[LoadSeen]) -> dict[str, Figures]:
    """Return the figures by owner in order of name, then of all."""
    if not lived:
        return {}
    last_us = max(one.ended_us for one in lived)
    over = [load for load in loads if load.at_us <= last_us]
    found = {
        key: _of([one for one in lived if one.key == key], [load for load in over if load.owner == key])
        for key in sorted({one.key for one in lived})
    }
    return found | {ALL: _of(lived, over)}


def _of(lived: Sequence[Lived], loads: Sequence[LoadSeen]) -> Figures:
    latencies = [(one.ended_us - one.at_us) / _S for one in lived]
    return Figures(
        requests=len(lived),
        drain_s=(max(one.ended_us for one in lived) - min(one.at_us for one in lived)) / _S,
        backlog_s=_backlog_us(lived) / _S,
        mean_s=statistics.fmean(latencies),
        p99_s=percentile(latencies, 0.99),
        load_s=sum(load.load_us for load in loads) / _S,
        lent=sum(one.lent for one in lived) / len(lived),
    )


def _backlog_us(lived: Iterable[Lived]) -> int:
    longest = since = until = 0
    for one in sorted(lived, key=lambda one: one.at_us):
        if one.at_us > until:
            since = one.at_us
        until = max(until, one.ended_us)
        longest = max(longest, until - since)
    return longest


def mean_of(runs: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    """Return the means over several runs on of the same requests."""
    return {
        key: Figures(
            requests=round(statistics.fmean(run[key].requests for run in runs)),
            **{
                name: statistics.fmean(getattr(run[key], name) for run in runs)
                for name in ("drain_s", "backlog_s", "mean_s", "p99_s", "load_s", "lent")
            },
        )
        for key in runs[0]
    }

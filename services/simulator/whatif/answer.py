"""The whole answer: decided again, and run on twice (unchanged, as calibration, and changed) on two grounds."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from services.simulator.whatif.changes import Changes, check
from services.simulator.whatif.cluster import HistoricCluster, RanOn
from services.simulator.whatif.figures import ALL, Figures, happened, mean_of, of_run
from services.simulator.whatif.model_run import run_by_model
from services.simulator.whatif.recorded import Recorded
from services.simulator.whatif.redecide import Redecided, redecide
from services.simulator.whatif.start import end_of, links_of, served, start_of
from services.simulator.whatif.times import FitTimes, RecordedTimes, Times, varies

FITS, RECORDED = "fits", "recorded"
DRAWS: Final = 9
_SIMULATED_MAX: Final = 3_000
"""Requests of all draws together, about: a long range needs fewer, luck evens out in it."""
Step = Callable[[], None]


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction."""

    ground: str
    """fits: knowing arrivals and the fits as of the beginning; recorded: the recorded service and load times."""
    draws: int
    figures: dict[str, Figures]
    """By owner; means over the draws."""
    drain_s: tuple[float, float]
    """Of all owners: the least and the most over the draws."""
    sources: dict[str, int]
    """On what each service time rests."""
    refused: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a what-if says; what `--json` writes."""

    changes: tuple[str, ...]
    begin_us: int
    end_us: int
    requests: int
    redecided: Redecided
    happened: dict[str, Figures]
    unchanged: tuple[Column, ...]
    changed: tuple[Column, ...]
    notes: tuple[str, ...]
    policy: str = ""
    """Of the simulator's model, which the changed run on goes by; empty for the product's own rules."""

    def error(self, column: Column) -> float:
        """Return the relative error of a drain that is predicted for what happened; above 0 it is predicted too long."""
        return column.figures[ALL].drain_s / self.happened[ALL].drain_s - 1


def what_if(recorded: Recorded, changes: Changes, *, draws: int = DRAWS, step: Step = lambda: None) -> Answer:
    """Return what would be different; the same inputs give the same answer.

    `step` is called after each run on.

    Raises:
        BadLinkError: the changes speak of links or models that there are not.
    """
    models = served(recorded)
    check(changes, links_of(recorded, Changes()), models)
    known = [one for one in recorded.asked if one.model in models.get(one.owner, ())]
    strange = len(recorded.asked) - len(known)
    recorded = msgspec.structs.replace(recorded, asked=known)
    unchanged = tuple(_columns(recorded, Changes(), draws, step))
    return Answer(
        changes=tuple(changes.words()),
        begin_us=recorded.begin_us,
        end_us=recorded.end_us,
        requests=len(known),
        redecided=redecide(recorded, changes),
        happened=happened(recorded),
        unchanged=unchanged,
        changed=() if changes.nothing else tuple(_columns(recorded, changes, draws, step)),
        notes=tuple(_notes(recorded, changes, strange)),
        policy=changes.policy,
    )


def _columns(recorded: Recorded, changes: Changes, draws: int, step: Step) -> Sequence[Column]:
    if not any(not one.gone for one in recorded.asked):
        return []
    least = start_of(recorded, Changes())
    count = _draws(recorded, draws) if varies(least, recorded.asked) else 1
    numbers = range(1, count + 1) if count > 1 else (0,)
    by_fits = [FitTimes(least, recorded.asked, number) for number in numbers]
    return [
        _column(FITS, recorded, changes, by_fits, step),
        _column(RECORDED, recorded, changes, [RecordedTimes(end_of(recorded), recorded.asked, recorded.loads)], step),
    ]


def _draws(recorded: Recorded, most: int) -> int:
    return max(1, min(most, _SIMULATED_MAX // max(1, len(recorded.asked))))


def _column(ground: str, recorded: Recorded, changes: Changes, times: Sequence[Times], step: Step) -> Column:
    runs, refused = [], 0
    sources: Counter[str] = Counter()
    for each in times:
        ran = _run_on(recorded, changes, each)
        runs.append(of_run(ran))
        refused += ran.refused
        sources += each.sources
        step()
    drains = [run[ALL].drain_s for run in runs]
    return Column(
        ground=ground,
        draws=len(runs),
        figures=mean_of(runs),
        drain_s=(min(drains), max(drains)),
        sources=dict(sorted(sources.items())),
        refused=refused,
    )


def _run_on(recorded: Recorded, changes: Changes, times: Times) -> RanOn:
    if changes.policy:
        return run_by_model(recorded, changes, times, changes.policy)
    return HistoricCluster(recorded, changes, times).run()


def _notes(recorded: Recorded, changes: Changes, strange: int) -> Sequence[str]:
    notes = list(recorded.notes)
    if changes.policy:
        notes.append(
            f"policy {changes.policy} is run on by the simulator's model, with one speed for each node, and decides nothing again"
        )
    if recorded.left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in recorded.left_out.items())
        notes.append(f"left out: requests that were never served ({kinds})")
    if strange:
        notes.append(f"left out: {strange} requests for models that their nodes served only later")
    if not recorded.paths.measured:
        notes.append("no lease and no lend was measured: decisions take 50 ms and each way to a helper 20 ms")
    return notes

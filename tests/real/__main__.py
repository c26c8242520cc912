"""Run scenarios on real processes and compare with the simulator: `python -m tests.real [--scenarios a,n] [--seeds 1000-1002]`.

Prints a table and, with `--json FILE`, every figure. Takes about half a minute more for each run than its work at a tenth.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from services.simulator.suites import SUITES
from tests.real.compared import OURS, drawn, simulated_s, with_measured_path
from tests.real.layout import SCALE
from tests.real.run import Effort, Outcome, run

SCENARIOS = "a,b,e,g,k,n,u"
ALLOWED = 0.03
"""How much worse than simulated the median may be."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A real run beside the simulated one. All are drain ratios over the same reference."""

    policy: str
    """That was simulated."""
    simulated: float
    measured_path: float
    """Simulated with the control path that this run had."""
    real: float
    outcome: Outcome


class Medians(NamedTuple):
    """Over the seeds of a scenario."""

    simulated: float
    measured_path: float
    real: float


def main() -> int:
    """Run by the command line; return 1 if a scenario is worse than it may be, or a request was not answered."""
    parser = argparse.ArgumentParser(prog="python -m tests.real", description=__doc__)
    parser.add_argument("--scenarios", default=SCENARIOS, help="letters of the drain suite, or whole names")
    parser.add_argument("--seeds", default="1000-1002")
    parser.add_argument("--gateway", action="store_true", help="send every request through the gateway")
    parser.add_argument("--policy", default=OURS, help="what the simulator runs (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep each run's data, journals and facts below this folder")
    options = parser.parse_args()
    names = [_name(short) for short in options.scenarios.split(",")]
    compared: dict[str, list[Compared]] = {}
    for name in names:
        compared[name] = [_one(name, seed, options) for seed in _seeds(options.seeds)]
    print(table(compared))
    if options.json is not None:
        figures = {name: {**_medians(runs)._asdict(), "runs": runs} for name, runs in compared.items()}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    return 1 if any(_is_worse(runs) for runs in compared.values()) else 0


def _name(short: str) -> str:
    return next(name for name in SUITES["drain"].names if name == short or name.startswith(f"{short}_"))


def _seeds(text: str) -> Sequence[int]:
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else [int(seed) for seed in text.split(",")]


def _one(name: str, seed: int, options: argparse.Namespace) -> Compared:
    with tempfile.TemporaryDirectory(prefix="leaseway-real-") as folder:
        directory = Path(folder) if options.keep is None else options.keep / f"{name}-{seed}"
        if options.keep is not None:
            shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        outcome = asyncio.run(run(name, seed, directory, Effort(gateway=options.gateway)))
    scenario = drawn(name, seed)
    policy, plain_s = simulated_s(scenario, seed, options.policy)
    _, measured_s = simulated_s(with_measured_path(scenario, outcome.control), seed, options.policy)
    scale = outcome.reference_s * SCALE
    compared = Compared(
        policy=policy, simulated=plain_s / scale, measured_path=measured_s / scale, real=outcome.ratio, outcome=outcome
    )
    print(_line(compared), file=sys.stderr, flush=True)
    return compared


def _line(one: Compared) -> str:
    outcome, path = one.outcome, one.outcome.control
    return (
        f"{outcome.scenario} {outcome.seed}: real {one.real:.3f}, simulated {one.simulated:.3f}, with its control path "
        f"{one.measured_path:.3f} ({one.policy}); first lease {path.first_lease_ms:.0f} ms, lend {path.lend_ms:.1f}, "
        f"start {path.start_ms:.1f}, answer {path.answer_ms:.1f} ms; {len(outcome.bad)} not answered"
    )


def table(compared: dict[str, list[Compared]]) -> str:
    """Return the comparison for people."""
    head = ("scenario", "policy", "reference s", "simulated", "with path", "real by seed", "median", "more")
    rows = [head, *(_row(name, runs) for name, runs in compared.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _row(name: str, runs: list[Compared]) -> tuple[str, ...]:
    simulated, measured, real = _medians(runs)
    mark = " worse" if _is_worse(runs) else ""
    return (
        name,
        runs[0].policy,
        f"{statistics.median(one.outcome.reference_s for one in runs):.2f}",
        f"{simulated:.3f}",
        f"{measured:.3f}",
        " ".join(f"{one.real:.3f}" for one in runs),
        f"{real:.3f}",
        f"{real - simulated:+.3f}{mark}",
    )


def _medians(runs: list[Compared]) -> Medians:
    rows = [(one.simulated, one.measured_path, one.real) for one in runs]
    return Medians(*(statistics.median(column) for column in zip(*rows, strict=True)))


def _is_worse(runs: list[Compared]) -> bool:
    simulated, measured, real = _medians(runs)
    return real > max(simulated, measured) + ALLOWED or any(one.outcome.bad for one in runs)


if __name__ == "__main__":
    sys.exit(main())

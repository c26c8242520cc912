"""Decide a kept history again in every way that must not matter: `python -m tests.replay.everywhere DIR`.

Over Python 3.11, 3.12 and 3.13 (those that are here), three hash seeds, with and without -O, time zones and locales, batch sizes,
and from every stored snapshot. Each reading makes every commit again; the digests of all commits and of the last state must be
the same everywhere, and every commit the stored bytes. DIR is what `python -m tests.replay.million` keeps.
"""

import argparse
import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.replay.million.keep import HISTORY, KEY
from tests.replay.one_reading import Asked, Told

ROOT: Final = Path(__file__).parents[2]
VERSIONS: Final = ("3.11", "3.12", "3.13")
NEEDED: Final = ("msgspec", "nkeys", "pynacl")
"""What the code that verifies needs besides the standard library, of the pinned versions."""
BATCHES: Final = (0, 1, 7, 1000)
PLACES: Final = (("UTC", "C"), ("Asia/Kolkata", "C.UTF-8"), ("America/St_Johns", "tr_TR.UTF-8"))
SNAPSHOTS_MAX: Final = 400


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is run under."""

    interpreter: str
    hash_seed: str
    optimised: bool = False
    time_zone: str = "UTC"
    language: str = "C"

    def words(self, language: str = "") -> str:
        """Return it in a few words; `language`: the locale that held."""
        held = language or self.language
        said = held if self.language.startswith(held) else f"{held} for {self.language}"
        return f"seed {self.hash_seed}, {self.time_zone}, {said}{', -O' if self.optimised else ''}"

    def command(self) -> list[str]:
        """Return the command line of a reading."""
        return [self.interpreter, *(["-O"] if self.optimised else []), "-m", "tests.replay.one_reading"]

    def environment(self) -> dict[str, str]:
        """Return the variables of a reading: nothing of this process but where programs are."""
        return {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": self.hash_seed,
            "TZ": self.time_zone,
            "LC_ALL": self.language,
        }


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One process and what it reads."""

    under: Surroundings
    asked: Asked


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One reading, where it was."""

    under: Surroundings
    told: Told


def interpreters() -> dict[str, str]:
    """Return version -> program of every Python that is here: on PATH, or pyenv's."""
    found: dict[str, str] = {}
    for version in VERSIONS:
        names = [shutil.which(f"python{version}") or ""]
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        names += [str(path) for path in sorted(pyenv.glob(f"{version}*/bin/python{version}"), reverse=True)]
        working = next((name for name in names if name and _runs(name)), "")
        if working:
            found[version] = working
    return found


def _runs(program: str) -> bool:
    asked = [program, "-c", "import venv, ensurepip"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def environments(folder: Path, found: dict[str, str]) -> dict[str, str]:
    """Return version -> interpreter of an environment with nothing but what verifying needs; made where it is missing."""
    pins = [line for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines() if line.strip()]
    wanted = [pin for pin in pins if pin.partition("==")[0].lower() in NEEDED]
    made: dict[str, str] = {}
    for version, program in found.items():
        place = folder / f"python{version}"
        inside = place / "bin" / "python"
        if not (place / "made").exists():
            for command in ([program, "-m", "venv", "--clear", place], [inside, "-m", "pip", "install", "-q", *wanted]):
                done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"environment of Python {version}: {done.stderr[-2000:]}")
            (place / "made").touch()
        made[version] = str(inside)
    return made


def runs(folder: Path, made: dict[str, str], *, quick: bool, snapshots_max: int = SNAPSHOTS_MAX) -> Iterator[Run]:
    """Yield what to run: under each Python every hash seed, and every way of reading at least once."""
    history, key = str(folder / HISTORY), str(folder / KEY)
    seeds = ("random",) if quick else ("0", "1", "random")
    for (turn, seed), (_, program) in itertools.product(enumerate(seeds), sorted(made.items())):
        time_zone, language = PLACES[turn % len(PLACES)]
        under = Surroundings(
            interpreter=program, hash_seed=seed, optimised=turn == 1, time_zone=time_zone, language=language
        )
        every = {0: (0, 1), 1: (7, 1000), 2: (0,)}[turn] if not quick else (0, 7)
        begins = snapshots_max if seed == "random" else 0
        yield Run(under=under, asked=Asked(history=history, key=key, batches=every, snapshots=begins))


def read(run: Run) -> list[Row]:
    """Run one process; return its readings."""
    child = subprocess.run(
        run.under.command(),
        input=msgspec.json.encode(run.asked),
        env=run.under.environment(),
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"{' '.join(run.under.command())}: {child.stderr.decode(errors='replace')[-2000:]}")
    return [Row(under=run.under, told=msgspec.json.decode(line, type=Told)) for line in child.stdout.splitlines()]


def judged(rows: Sequence[Row]) -> list[str]:
    """Return what differs: a reading that found a difference, or two that did not make the same."""
    wrong = [
        f"Python {row.told.python}, {row.under.words()}, {row.told.way}: {row.told.wrong}"
        for row in rows
        if row.told.wrong
    ]
    whole = [row.told for row in rows if not row.told.wrong]
    most = max((told.commits for told in whole), default=0)
    for name, values in (
        ("commits made", {told.digest for told in whole}),
        ("commits made from the first on", {told.whole for told in whole if told.commits == most}),
        ("last state", {told.state for told in whole}),
    ):
        if len(values) > 1:
            wrong.append(f"{name}: must be the same in every reading, there are {len(values)}: {sorted(values)}")
    return wrong


def line_of(row: Row) -> str:
    """Return one row of the table."""
    told = row.told
    per_s = told.events / told.cpu_s if told.cpu_s else 0
    outcome = "DIFFERS" if told.wrong else f"{told.digest[:12]} {told.state[:12]}"
    return (
        f"{told.python:<8} {row.under.words(told.language):<52} {told.way:<22} {told.commits:>9,} {told.events:>11,} "
        f"{per_s:>9,.0f}/s  {outcome}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Check; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.everywhere", description=__doc__)
    parser.add_argument("folder", type=Path, help="what tests.replay.million has kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: one a core)")
    parser.add_argument("--environments", type=Path, help="where the Pythons' environments are kept (default: in DIR)")
    parser.add_argument("--quick", action="store_true", help="three readings under each Python instead of six")
    parser.add_argument(
        "--snapshots", type=int, default=SNAPSHOTS_MAX, help="most snapshots to begin at, evenly chosen"
    )
    asked = parser.parse_args(arguments)
    found = interpreters()
    missing = [version for version in VERSIONS if version not in found]
    print("Python " + ", ".join(found) + (f"; not here: {', '.join(missing)}" if missing else ""))
    made = environments(asked.environments or asked.folder / "environments", found)
    print(f"{'python':<8} {'under':<52} {'read':<22} {'commits':>9} {'events':>11} {'events':>11}  commits      state")
    began_s, rows = time.monotonic(), []
    todo = list(runs(asked.folder, made, quick=asked.quick, snapshots_max=asked.snapshots))
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        for each in pool.map(read, todo):
            rows += each
            for row in each:
                print(line_of(row), flush=True)
    return tell(rows, time.monotonic() - began_s, found)


def tell(rows: Sequence[Row], took_s: float, found: dict[str, str]) -> int:
    """Print the closing line; return the exit code."""
    wrong = judged(rows)
    for each in wrong:
        print(f"difference: {each}")
    events = sum(row.told.events for row in rows)
    most = max((row.told.events for row in rows), default=0)
    print(
        f"replay everywhere: {len(rows)} readings of {most:,} events over Python {', '.join(found)}, "
        f"{len(wrong)} differences ({events:,} events in {took_s:,.0f} s)"
    )
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())

"""Scenario files and the suites that are shipped: which files, and which seeds unless others are asked for."""

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import BadConfigError
from services.simulator.cells import Cell, cells_of
from services.simulator.scenario_format import Burst, ScenarioFile, Size, Stream, Table, Trace
from services.simulator.traffic import find_trace

SHIPPED: Final = Path(__file__).parent / "scenarios"
_SWEEPS: Final = ("errors", "fallback", "grid")
_FAULTS: Final = "faults_"
"""What the names of scenarios begin with that are in no suite but `faults`."""
HELD_OUT: Final = range(1000, 1020)


class Suite(msgspec.Struct, frozen=True):
    """A shipped set of scenarios."""

    about: str
    names: tuple[str, ...]
    seeds: range


def _drain_names() -> tuple[str, ...]:
    names = (path.stem for path in SHIPPED.glob("*.toml") if path.stem not in _SWEEPS)
    return tuple(sorted(name for name in names if not name.startswith(_FAULTS)))


def _fault_names() -> tuple[str, ...]:
    """Return those of `drain` that are about faults, and all that are about nothing else."""
    return (
        "k_b50_crash",
        "l_b50_hang",
        "m_b50_flap",
        "u_b50_blackhole",
        *sorted(p.stem for p in SHIPPED.glob(f"{_FAULTS}*.toml")),
    )


SUITES: Final = {
    "drain": Suite("21 scenarios: bursts, own traffic, errors, faults, traces", _drain_names(), HELD_OUT),
    "grid": Suite("180 bursts: 10 to 200 jobs, 1 to 3 helpers, speed 0.25 to 4, load 0 to 60 s", ("grid",), range(3)),
    "fallback": Suite("helpers of unknown speed, priced with the owner's fit", ("fallback",), range(30)),
    "errors": Suite("wrong estimates of service and load times, with and without learning", ("errors",), range(30)),
    "faults": Suite(
        "crashes and hangs of owners, helpers, while loading, of all in turn; a flapping node, black holes",
        _fault_names(),
        HELD_OUT,
    ),
}


def suite_cells(name: str) -> list[Cell]:
    """Return the cells of a shipped suite."""
    return [cell for scenario in SUITES[name].names for cell in scenario_cells(scenario)]


def scenario_cells(file: str) -> list[Cell]:
    """Return the cells of a scenario file, or of a shipped scenario by its name.

    Raises:
        BadConfigError: there is no such file, or it breaks a rule.
    """
    path = Path(file)
    if path.suffix != ".toml":
        path = _shipped(file)
    return cells_of(path.stem, read_scenario(path), path.parent)


def _shipped(name: str) -> Path:
    path = SHIPPED / f"{name}.toml"
    if not path.is_file():
        known = sorted(found.stem for found in SHIPPED.glob("*.toml"))
        raise BadConfigError(
            f"scenario {name}: is no file that ends in .toml and no shipped scenario; {_meant(name, known)}"
        )
    return path


def _meant(name: str, known: Sequence[str]) -> str:
    near = [one for one in known if one.startswith(name)] or difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def read_scenario(path: Path) -> ScenarioFile:
    """Return what the file says; raise BadConfigError for anything that breaks a rule."""
    try:
        with path.open("rb") as opened:
            tree = tomllib.load(opened)
        spec = msgspec.convert(tree, ScenarioFile)
    except OSError as error:
        raise BadConfigError(f"scenario {path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfigError(f"scenario {path}: is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise BadConfigError(f"scenario {path}: {_in_our_words(str(error))}") from None
    for place, item in enumerate(spec.traffic):
        _check_traffic(f"scenario {path}: traffic[{place}]", item, path.parent)
    return spec


def _in_our_words(message: str) -> str:
    """Put the place first and name keys as TOML does."""
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".").replace("[...]", "[]")
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", text):
        text = f"unknown key {found[1]!r}"
        if near := difflib.get_close_matches(found[1], _keys(), n=1):
            text += f", did you mean {near[0]!r}?"
    elif found := re.fullmatch(r"Object missing required field `(.*)`", text):
        text = f"missing key {found[1]!r}"
    return f"{place}: {text}" if place else text


def _keys() -> list[str]:
    """Return every key of the format, of whichever table."""
    return sorted({key for table in Table.__subclasses__() for key in table.__struct_fields__})


def _check_traffic(where: str, item: Burst | Stream | Trace, folder: Path) -> None:
    if isinstance(item, Trace):
        find_trace(item.file, folder)
        return
    if isinstance(item, Stream):
        if (item.per_s is None) == (item.offered is None):
            raise BadConfigError(f"{where}: must have either per_s or offered")
        if item.until_s <= item.from_s:
            raise BadConfigError(f"{where}: until_s must be after from_s, got {item.until_s:g} and {item.from_s:g}")
    if item.size is not None:
        _check_size(f"{where}.size", item.size)


def _check_size(where: str, size: Size) -> None:
    if (size.cv is None) == (not size.shares):
        raise BadConfigError(f"{where}: must have either cv or shares and values")
    if len(size.shares) != len(size.values):
        raise BadConfigError(
            f"{where}: must have as many values as shares, got {len(size.values)} and {len(size.shares)}"
        )
    if list(size.shares) != sorted(set(size.shares)):
        raise BadConfigError(f"{where}: shares must rise")

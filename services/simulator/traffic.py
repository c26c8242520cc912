"""Arrivals, drawn from bursts, streams and traces. The order of the throws is part of what a seed means: never change it."""

import functools
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from domain.errors import BadConfigError
from services.simulator.model.dice import Dice, lognormal
from services.simulator.model.scenario import Arrival
from services.simulator.scenario_format import Burst, Route, ScenarioFile, Size, Stream, Trace

SHIPPED_TRACES: Final = Path(__file__).parent / "traces"
Row = dict[str, Any]


def arrivals_of(spec: ScenarioFile, speeds: tuple[float, ...], dice: Dice, folder: Path) -> Iterator[Arrival]:
    """Yield every arrival, table by table."""
    for item in spec.traffic:
        match item:
            case Burst():
                yield from _burst(item, dice)
            case Stream():
                yield from _stream(item, _per_s(spec, item, speeds), dice)
            case Trace():
                yield from _trace(item, dice, folder)
            case never:
                assert_never(never)


def _burst(item: Burst, dice: Dice) -> Iterator[Arrival]:
    for turn in range(item.times):
        for _ in range(item.jobs):
            size = _size(item.size, dice)
            yield Arrival(item.at_s + item.every_s * turn, item.node, size, lognormal(dice, item.noise), item.native)


def _per_s(spec: ScenarioFile, item: Stream, speeds: tuple[float, ...]) -> float:
    if item.per_s is not None:
        return item.per_s
    assert item.offered is not None  # checked when the file was read
    job_s, mean = spec.cluster.job_s, spec.estimates.mean_size
    unit_s = job_s[item.node] if isinstance(job_s, tuple) else job_s
    size = mean[item.node] if isinstance(mean, tuple) else mean
    return item.offered * speeds[item.node] / (unit_s * size)


def _stream(item: Stream, per_s: float, dice: Dice) -> Iterator[Arrival]:
    at_s, shape = item.from_s, 1 / item.cv**2
    while True:
        at_s += dice.gammavariate(shape, 1 / (per_s * shape))
        if at_s >= item.until_s:
            return
        size = _size(item.size, dice)
        yield Arrival(at_s, item.node, size, lognormal(dice, item.noise), item.native)


def _size(size: Size | None, dice: Dice) -> float:
    if size is None:
        return 1.0
    return lognormal(dice, size.cv) if size.cv is not None else _by_quantiles(size, dice.random())


def _by_quantiles(size: Size, share: float) -> float:
    share = min(max(share, size.shares[0]), size.shares[-1])
    points = list(zip(size.shares, size.values, strict=True))
    for (low, small), (high, large) in itertools.pairwise(points):
        if share <= high:
            return small + (large - small) * (share - low) / (high - low)
    return size.values[-1]


def _trace(item: Trace, dice: Dice, folder: Path) -> Iterator[Arrival]:
    start_s = dice.uniform(0, item.latest_start_s) if item.latest_start_s else 0.0
    for row in read_trace(find_trace(item.file, folder)):
        at_s = read_number(row, "t_s", item.file)
        if not start_s <= at_s < start_s + item.window_s:
            continue
        route = next((route for route in item.routes if all(row.get(k) == v for k, v in route.where.items())), None)
        if route is None or (item.keep < 1 and dice.random() >= item.keep):
            continue
        yield Arrival(at_s - start_s, route.node, _cost(route, row, item.file), 1.0, item.native)


def _cost(route: Route, row: Row, file: str) -> float:
    if route.size_column:
        return read_number(row, route.size_column, file) * route.factor
    work_in = read_number(row, "in_tok", file) / route.in_block * route.in_cost
    return (work_in + read_number(row, "out_tok", file) * route.out_cost + route.base) * route.factor


def read_number(row: Row, column: str, file: str) -> float:
    """Return the number in a column of a trace's row; raise BadConfigError if there is none."""
    try:
        return float(row[column])
    except KeyError:
        raise BadConfigError(f"trace {file}: must have a column {column}, has {', '.join(row)}") from None
    except (TypeError, ValueError):
        raise BadConfigError(f"trace {file}: {column}: must be a number, got {row[column]!r}") from None


def find_trace(file: str, folder: Path) -> Path:
    """Return the path of a trace: beside the scenario file, else among those that are shipped."""
    for path in (folder / file, SHIPPED_TRACES / file):
        if path.is_file():
            return path
    raise BadConfigError(f"trace {file}: is neither in {folder} nor among the shipped ones")


@functools.lru_cache(maxsize=8)
def read_trace(path: Path) -> tuple[Row, ...]:
    """Return the rows of a trace: CSV with a heading, or JSONL; either may be compressed."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadConfigError(f"trace {path}: cannot be read: {error}") from None
    lines = text.splitlines()
    if ".jsonl" in path.suffixes:
        return tuple(_json_row(path, line) for line in lines if line.strip())
    if not lines:
        return ()
    names = lines[0].split(",")
    return tuple(dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line)


def _json_row(path: Path, line: str) -> Row:
    try:
        return msgspec.json.decode(line, type=Row)
    except msgspec.MsgspecError as error:
        raise BadConfigError(f"trace {path}: a line is not a JSON object: {error}") from None

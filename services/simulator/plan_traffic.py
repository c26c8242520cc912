"""Traffic that a plan is made for: when each request came, what its size said, and how long its own node serves it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from domain.errors import BadConfigError
from services.simulator.traffic import Row, read_number

SAMPLES_MIN: Final = 5
"""Fewer measured requests than these say nothing about a node's speed."""
_LEAST_S: Final = 0.001
_SERVED: Final = frozenset({"finished", "failed", "cancelled"})


class Request(NamedTuple):
    """One request of the owner; requests sort by their arrival."""

    at_s: float
    service_s: float
    """On its own node, without waiting."""
    expected_s: float
    """What its size says that this takes: all that is known when it is lent."""
    lived_s: float = -1.0
    """From arrival to answer as it happened; -1 if nobody knows."""
    lent: bool = False
    """A helper served it when it happened."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What came, in order of time."""

    about: str
    """Where it is from."""
    requests: tuple[Request, ...]
    left_out: int = 0
    """Requests that came and never were served: refused, expired or given up while they waited."""
    together_max: int = 1
    """Most that its engine served at once, of those that it served itself."""


class Fit(NamedTuple):
    """What one unit of a size, and a request as such, take on a node."""

    base_s: float
    per_unit_s: float

    def seconds(self, size: float) -> float:
        """Return the seconds of a request."""
        return max(_LEAST_S, self.base_s + self.per_unit_s * size)


def fit(samples: Sequence[tuple[float, float]]) -> Fit:
    """Return the line through (size, seconds) with the least squares; neither part is ever negative."""
    count = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / count, sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread > 0 else 0.0
    if slope <= 0:
        return Fit(mean_y, 0.0)
    base_s = mean_y - slope * mean_x
    if base_s >= 0:
        return Fit(base_s, slope)
    return Fit(0.0, sum(x * y for x, y in samples) / sum(x * x for x, _ in samples))


def of_history(rows: Sequence[Mapping[str, Any]], about: str) -> Traffic:
    """Return the traffic of rows of `requests`, all of one owner and model.

    What a helper served is put at what the owner's own fit says for its size.

    Raises:
        BadConfigError: the owner served too few of them itself to know how fast it is.
    """
    served = [row for row in rows if row["outcome"] in _SERVED and row["service_us"] > 0]
    own = own_fit(served, about)
    requests = []
    for row in served:
        expected_s, service_s = own.seconds(row["work"]), row["service_us"] / 1e6
        lived_s, lent = row["wait_us"] / 1e6 + service_s, bool(row["helper"])
        at_s = row["at_ns"] / 1e9 - lived_s
        requests.append(Request(at_s, expected_s if lent else service_s, expected_s, lived_s, lent))
    requests.sort()
    return Traffic(
        about=about,
        requests=_from_zero(requests),
        left_out=len(rows) - len(served),
        together_max=_together(served),
    )


def own_fit(rows: Iterable[Mapping[str, Any]], about: str) -> Fit:
    """Return how long the owner itself needs for work in micro-units.

    Raises:
        BadConfigError: too few of the rows were served by it.
    """
    own = [(float(row["work"]), row["service_us"] / 1e6) for row in rows if not row["helper"] and row["service_us"] > 0]
    if len(own) < SAMPLES_MIN:
        raise BadConfigError(
            f"history of {about}: must have at least {SAMPLES_MIN} requests that it served itself, has {len(own)}"
        )
    return fit(own)


def speed_of(rows: Sequence[Mapping[str, Any]], own: Fit, node: str) -> float:
    """Return how fast `node` is, measured in the owner's own speed, by what it served (`rows`) of the same model.

    Raises:
        BadConfigError: it served too few requests.
    """
    if len(rows) < SAMPLES_MIN:
        raise BadConfigError(
            f"--like {node}: must have served at least {SAMPLES_MIN} requests of the model in that time, has {len(rows)}; "
            "say --helper-speed"
        )
    took_s: float = sum(row["service_us"] / 1e6 for row in rows)
    return sum(own.seconds(row["work"]) for row in rows) / took_s


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of a trace costs on its own node."""

    seconds_column: str = ""
    """Measured seconds of service stand in this column; sizes are then not known beforehand."""
    read_per_s: float = 0.0
    """Tokens of a prompt read in a second."""
    write_per_s: float = 0.0
    """Tokens of an answer written in a second."""


def of_trace(rows: Sequence[Row], costs: Costs, file: str, where: Mapping[str, str]) -> Traffic:
    """Return the traffic of a trace's rows whose columns are as `where` says.

    Raises:
        BadConfigError: a column is missing or no number, or no row fits.
    """
    chosen = [row for row in rows if all(str(row.get(name)) == value for name, value in where.items())]
    if not chosen:
        raise BadConfigError(
            f"trace {file}: must have a row{' that fits --where' if where else ''}, has {len(rows)} rows"
        )
    seconds = [_seconds(row, costs, file) for row in chosen]
    mean_s = sum(seconds) / len(seconds)
    requests = [
        Request(read_number(row, "t_s", file), service_s, mean_s if costs.seconds_column else service_s)
        for row, service_s in zip(chosen, seconds, strict=True)
    ]
    return Traffic(about=f"trace {file}", requests=_from_zero(sorted(requests)))


def _seconds(row: Row, costs: Costs, file: str) -> float:
    if costs.seconds_column:
        return max(_LEAST_S, read_number(row, costs.seconds_column, file))
    read_s = read_number(row, "in_tok", file) / costs.read_per_s
    return max(_LEAST_S, read_s + read_number(row, "out_tok", file) / costs.write_per_s)


def _from_zero(requests: Sequence[Request]) -> tuple[Request, ...]:
    return tuple(request._replace(at_s=request.at_s - requests[0].at_s) for request in requests)


def _together(served: Iterable[Mapping[str, Any]]) -> int:
    """Return the most requests that were in the owner's own service at once."""
    edges: list[tuple[float, int]] = []
    for row in served:
        if not row["helper"]:
            end_s, took_s = row["at_ns"] / 1e9, row["service_us"] / 1e6
            # a little less at both ends: the stamps of one request's end and of the next one's begin are not taken together
            edges += [(end_s - 0.9 * took_s, 1), (end_s - 0.1 * took_s, -1)]
    now = most = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return max(1, most)

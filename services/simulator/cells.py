"""The cells of a scenario file: one, or one for each combination of what it varies; and the draw of each from a seed."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, assert_never

import msgspec
from msgspec.structs import asdict, replace

from domain.errors import BadConfigError
from services.simulator.model.dice import Dice, cell_number, dice_of, name_number
from services.simulator.model.scenario import Fault, Scenario
from services.simulator.scenario_format import Burst, Cluster, ScenarioFile, Trace
from services.simulator.traffic import arrivals_of

Value = int | float | bool
_SLOWEST, _FASTEST = 0.2, 5
_SIGMAS: Final = ("helper_speed_sigma", "estimate_sigma")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario of a file, before a seed is thrown."""

    name: str
    """Of the file, and what is varied: `grid/jobs=10,helpers=1`."""
    spec: ScenarioFile
    varied: dict[str, Value]
    folder: str
    """Where the file's own traces are."""

    def draw(self, seed: int) -> Scenario:
        """Return the scenario that `seed` makes of it."""
        spec, dice = self.spec, dice_of(self._number(seed))
        speeds = _speeds(spec.cluster, dice)
        nodes = len(speeds)
        arrivals = sorted(arrivals_of(spec, speeds, dice, Path(self.folder)))
        if all(arrival.native for arrival in arrivals):
            raise BadConfigError(f"scenario {self.name}, seed {seed}: traffic: no request of an owner comes")
        faults = tuple(_faults(spec, dice))
        bias, load_bias = _first_guesses(spec, speeds, dice)
        warm = range(nodes) if spec.cluster.one_model else _warm(spec.cluster, nodes)
        return Scenario(
            name=self.name,
            speeds=speeds,
            loaded=tuple(0 if node in warm else node for node in range(nodes)),
            load_s=_each(spec.cluster.load_s, nodes),
            links=links_of(spec.cluster, nodes),
            unit_s=_by_model(spec.cluster, spec.cluster.job_s, nodes),
            arrivals=tuple(arrivals),
            faults=faults,
            black_holes=frozenset(fault.node for fault in spec.faults if fault.kind == "black_hole"),
            one_model=spec.cluster.one_model,
            depth=spec.cluster.depth,
            load_cv=spec.cluster.load_cv,
            bias=bias,
            load_bias=load_bias,
            learn=spec.estimates.learn,
            min_samples=spec.estimates.min_samples,
            size_known=spec.estimates.sizes_known,
            mean_size=_by_model(spec.cluster, spec.estimates.mean_size, nodes),
            **asdict(spec.timing),
        )

    def _number(self, seed: int) -> int:
        match self.spec.dice.rule:
            case "name":
                return name_number(self.name) * 1000 + seed
            case "cell":
                values = (value * 100 if key == "helper_speed" else value for key, value in self.varied.items())
                return cell_number(*(int(value) for value in values), seed)
            case "sigma":
                sigma = sum(value for key, value in self.varied.items() if key in _SIGMAS)
                return seed * self.spec.dice.factor + int(sigma * 100)
            case never:
                assert_never(never)


def cells_of(name: str, spec: ScenarioFile, folder: Path) -> list[Cell]:
    """Return the cells of a file, each of them checked."""
    varied = {key: values for key, values in asdict(spec.vary).items() if values}
    cells = []
    for values in itertools.product(*varied.values()):
        chosen = dict(zip(varied, values, strict=True))
        changed = spec
        for key, value in chosen.items():
            changed = _with(changed, key, value)
        title = f"{name}/{','.join(f'{key}={_text(value)}' for key, value in chosen.items())}" if chosen else name
        _check(title, changed)
        cells.append(Cell(name=title, spec=changed, varied=chosen, folder=str(folder)))
    return cells


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _with(spec: ScenarioFile, key: str, value: Value) -> ScenarioFile:
    match key:
        case "jobs":
            bursts = (replace(item, jobs=value) if isinstance(item, Burst) else item for item in spec.traffic)
            return replace(spec, traffic=tuple(bursts))
        case "estimate_sigma":
            return replace(spec, estimates=replace(spec.estimates, service_sigma=value, load_sigma=value))
        case "learn":
            return replace(spec, estimates=replace(spec.estimates, learn=value))
        case _:
            return replace(spec, cluster=replace(spec.cluster, **{key: value}))


def _check(name: str, spec: ScenarioFile) -> None:
    """Raise BadConfigError if a table names a node that there is not, or a list has the wrong length."""
    cluster = spec.cluster
    nodes = len(cluster.speeds) or cluster.helpers + 1
    if cluster.speeds and (cluster.helpers or cluster.helper_speed != 1 or cluster.helper_speed_sigma is not None):
        raise BadConfigError(f"scenario {name}: cluster: speeds and helpers exclude each other")
    if spec.vary.jobs and not any(isinstance(item, Burst) for item in spec.traffic):
        raise BadConfigError(f"scenario {name}: vary.jobs: there is no burst whose jobs it could be")
    for key, value in (
        ("cluster.load_s", cluster.load_s),
        ("cluster.job_s", cluster.job_s),
        ("estimates.mean_size", spec.estimates.mean_size),
    ):
        if isinstance(value, tuple) and len(value) != nodes:
            raise BadConfigError(
                f"scenario {name}: {key}: must have one value for each of {nodes} nodes, got {len(value)}"
            )
    for key, node in _named_nodes(spec):
        if node >= nodes:
            raise BadConfigError(
                f"scenario {name}: {key}: node {node} does not exist, there are {nodes} (0 to {nodes - 1})"
            )
    if isinstance(cluster.links, tuple) and any(owner == helper for owner, helper in cluster.links):
        raise BadConfigError(f"scenario {name}: cluster.links: a node cannot help itself")


def _named_nodes(spec: ScenarioFile) -> Iterator[tuple[str, int]]:
    cluster = spec.cluster
    if isinstance(cluster.links, tuple):
        yield from (("cluster.links", node) for link in cluster.links for node in link)
    if isinstance(cluster.warm, tuple):
        yield from (("cluster.warm", node) for node in cluster.warm)
    for place, item in enumerate(spec.traffic):
        if isinstance(item, Trace):
            yield from ((f"traffic[{place}].routes", route.node) for route in item.routes)
        else:
            yield f"traffic[{place}].node", item.node
    yield from ((f"faults[{place}].node", fault.node) for place, fault in enumerate(spec.faults))


def _each(value: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,) * count


def _by_model(cluster: Cluster, value: float | tuple[float, ...], nodes: int) -> tuple[float, ...]:
    each = _each(value, nodes)
    return each[:1] * nodes if cluster.one_model else each


def _speeds(cluster: Cluster, dice: Dice) -> tuple[float, ...]:
    if cluster.speeds:
        return cluster.speeds
    if cluster.helper_speed_sigma is None:
        return (1.0, *(cluster.helper_speed for _ in range(cluster.helpers)))
    drawn = (cluster.helper_speed * math.exp(dice.gauss(0, cluster.helper_speed_sigma)) for _ in range(cluster.helpers))
    return (1.0, *(min(_FASTEST, max(_SLOWEST, speed)) for speed in drawn))


def links_of(cluster: Cluster, nodes: int) -> dict[int, tuple[int, ...]]:
    """Return owner -> helpers in order of statement."""
    if cluster.links == "first_to_all":
        return {0: tuple(range(1, nodes))}
    if cluster.links == "all_to_all":
        return {owner: tuple(helper for helper in range(nodes) if helper != owner) for owner in range(nodes)}
    links: dict[int, tuple[int, ...]] = {}
    for owner, helper in cluster.links:
        links[owner] = (*links.get(owner, ()), helper)
    return links


def _warm(cluster: Cluster, nodes: int) -> tuple[int, ...]:
    if cluster.warm != "if_loads_are_free":
        return cluster.warm
    return () if cluster.load_s else tuple(range(1, nodes))


def _faults(spec: ScenarioFile, dice: Dice) -> Iterator[Fault]:
    for table in spec.faults:
        if table.kind == "black_hole":
            continue
        for turn in range(table.times):
            spread_s = table.spread_s * dice.random() if table.spread_s else 0.0
            yield Fault(table.at_s + table.every_s * turn + spread_s, table.node, table.kind, table.lasts_s)


def _first_guesses(
    spec: ScenarioFile, speeds: tuple[float, ...], dice: Dice
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """Return the factors of the first guesses of service and of load times, by (node, model)."""
    bias: dict[tuple[int, int], float] = {}
    load_bias: dict[tuple[int, int], float] = {}
    nodes = range(len(speeds))
    if spec.estimates.first_guess == "owner":
        for owner, helpers in links_of(spec.cluster, len(speeds)).items():
            model = 0 if spec.cluster.one_model else owner
            bias.update({(helper, model): speeds[helper] / speeds[owner] for helper in helpers})
    if (sigma := spec.estimates.service_sigma) is not None:
        for node in nodes:
            bias[node, 0] = bias.get((node, 0), 1.0) * math.exp(dice.gauss(0, sigma))
    if (sigma := spec.estimates.load_sigma) is not None:
        for node in nodes:
            for model in (0, node):  # node 0 throws twice and the second counts, so that each node takes two throws
                load_bias[node, model] = math.exp(dice.gauss(0, sigma))
    return bias, load_bias

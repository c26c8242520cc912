"""A stretch of history under a policy that the product does not have: run on by the simulator's model, as far as that reaches.

The model has one runtime on each node, one model of each owner and a speed of each node. What has more is refused, by name.
"""

import statistics
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from domain.errors import BadConfigError
from domain.events import LinkAdded
from domain.ids import ModelId, NodeId
from domain.master.control import setting
from domain.master.state import State
from services.simulator.drivers import driver
from services.simulator.model.parts import Job
from services.simulator.model.scenario import Arrival, Scenario
from services.simulator.whatif.changes import Changes
from services.simulator.whatif.cluster import Lived, RanOn
from services.simulator.whatif.recorded import Asked, LoadSeen, Recorded
from services.simulator.whatif.start import start_of
from services.simulator.whatif.times import Times

_S = 1_000_000


class _Cast(NamedTuple):
    """Who is who in the scenario."""

    numbers: dict[NodeId, int]
    own: dict[NodeId, ModelId]
    """The model that a node's own requests are for."""
    links: dict[NodeId, list[LinkAdded]]
    """By owner, in order of link."""


def run_by_model(recorded: Recorded, changes: Changes, times: Times, policy: str) -> RanOn:
    """Return what comes of the stretch under a policy of the simulator.

    Raises:
        BadConfigError: there is no such policy, or the model cannot hold what was recorded.
    """
    state = start_of(recorded, changes)
    cast = _cast(recorded, state, policy)
    took_us = {
        one.request: times.service_us(number, one, one.owner, one.model)
        for number, one in enumerate(recorded.asked)
        if not one.gone
    }
    stayed = [one for one in recorded.asked if one.request in took_us]
    recorded = msgspec.structs.replace(recorded, asked=stayed)
    run = driver(policy).run(_scenario(recorded, state, cast, times, [*took_us.values()]), 0)
    lived = [_lived(recorded, one, job) for one, job in zip(stayed, run.jobs, strict=True)]
    load_us = round(run.measures.load_s * _S)
    loads = [LoadSeen(NodeId(""), ModelId(""), recorded.begin_us, load_us, "")] if load_us else []
    return RanOn(lived, loads, 0)


def _lived(recorded: Recorded, one: Asked, job: Job) -> Lived:
    assert job.ended_s is not None, f"request {one.request}: was never answered"
    ended_us = recorded.begin_us + round(job.ended_s * _S)
    return Lived(one.key, one.at_us, ended_us, job.ran_at != job.owner)


def _cast(recorded: Recorded, state: State, policy: str) -> _Cast:
    numbers = {name: number for number, name in enumerate(sorted(state.nodes))}
    own: dict[NodeId, ModelId] = {}
    links: dict[NodeId, list[LinkAdded]] = {}
    for _, link in sorted(state.control.links.items()):
        if _is_served(state, link.owner, link.owner_model) and _is_served(state, link.helper, link.helper_model):
            links.setdefault(link.owner, []).append(link)
    asked = {(one.owner, one.model) for one in recorded.asked}
    for node, model in sorted(asked | {(link.owner, link.owner_model) for each in links.values() for link in each}):
        if own.setdefault(node, model) != model:
            raise BadConfigError(
                f"--policy {policy}: the simulator's model has one model of each node's own; {node} has {own[node]} and {model}"
            )
    for name in numbers:
        if any(info.slots > 1 for info in state.nodes[name].models.values()):
            raise BadConfigError(
                f"--policy {policy}: the simulator's model serves one request at a time; {name} has more slots"
            )
    return _Cast(numbers, own, links)


def _is_served(state: State, name: NodeId, model: ModelId) -> bool:
    """Tell whether a node serves a model: not before it registers it, nor once it is retired."""
    node = state.nodes.get(name)
    return node is not None and model in node.models


def _scenario(recorded: Recorded, state: State, cast: _Cast, times: Times, took_us: list[int]) -> Scenario:
    control = state.control
    speeds = _speeds(recorded, cast, times)
    unit_s = _units(recorded, cast, took_us, speeds)
    lenders = set(cast.links)
    arrivals = []
    for one, service_us in zip(recorded.asked, took_us, strict=True):
        number = cast.numbers[one.owner]
        size = service_us / _S * speeds[number] / unit_s[number]
        at_s = (one.at_us - recorded.begin_us) / _S
        arrivals.append(Arrival(at_s, number, 1.0, size, native=bool(lenders) and one.owner not in lenders))
    return Scenario(
        name="what-if",
        speeds=speeds,
        loaded=tuple(_loaded(name, state, cast) for name in cast.numbers),
        load_s=tuple(_load_s(name, state, cast, times) for name in cast.numbers),
        links={cast.numbers[o]: tuple(cast.numbers[each.helper] for each in links) for o, links in cast.links.items()},
        unit_s=unit_s,
        arrivals=tuple(arrivals),
        depth=setting(control, "scheduling_backend_depth"),
        handover_s=0.0,
        control_s=recorded.paths.control_us / _S,
        hop_s=recorded.paths.hop_us / _S,
        tick_s=setting(control, "scheduling_refresh_interval") / _S,
        restore_after_s=setting(control, "offload_restore_delay") / _S,
        min_samples=setting(control, "scheduling_min_samples"),
    )


def _speeds(recorded: Recorded, cast: _Cast, times: Times) -> tuple[float, ...]:
    """Return each node's speed: owners have 1, helpers what the fits say beside the first owner that they help."""
    speeds: dict[NodeId, float] = dict.fromkeys(cast.numbers, 1.0)
    for owner, links in sorted(cast.links.items(), reverse=True):
        mine = next((one for one in recorded.asked if one.owner == owner), None)
        for link in links:
            if mine is not None and link.helper not in cast.links:
                speeds[link.helper] = times.ratio(mine, link.helper, link.helper_model)
    return tuple(speeds[name] for name in cast.numbers)


def _units(recorded: Recorded, cast: _Cast, took_us: list[int], speeds: tuple[float, ...]) -> tuple[float, ...]:
    """Return what the mean request of each node's own model takes at speed 1."""
    by_owner: Mapping[NodeId, list[int]] = {name: [] for name in cast.numbers}
    for one, service_us in zip(recorded.asked, took_us, strict=True):
        by_owner[one.owner].append(service_us)
    means = {name: statistics.fmean(took) / _S if took else 1.0 for name, took in by_owner.items()}
    return tuple(means[name] * speed for name, speed in zip(cast.numbers, speeds, strict=True))


def _loaded(name: NodeId, state: State, cast: _Cast) -> int:
    """Return whose model is in at the beginning: another's only where that is there without a load, and no own requests are."""
    for owner, links in sorted(cast.links.items()):
        for link in links:
            if link.helper == name and name not in cast.own and _is_in(state, link):
                return cast.numbers[owner]
    return cast.numbers[name]


def _is_in(state: State, link: LinkAdded) -> bool:
    info = state.nodes[link.helper].models[link.helper_model]
    room = state.nodes[link.helper].rooms.get(f"={info.runtime}")
    return not info.runtime or (room is not None and room.resident == info.id)


def _load_s(name: NodeId, state: State, cast: _Cast, times: Times) -> float:
    """Return what a load takes there; none where it has the only model that it is asked for in a runtime of its own."""
    helped = [link for links in cast.links.values() for link in links if link.helper == name]
    own = cast.own.get(name)
    for link in helped:
        if state.nodes[name].models[link.helper_model].runtime:
            return times.load_by_fit_us(name, link.helper_model) / _S
        if own is not None and own != link.helper_model:
            raise BadConfigError(
                f"--policy: the simulator's model has one runtime of a node; {name} serves {own} and {link.helper_model} in two"
            )
    return 0.0

"""The cluster that lives the long history: families of nodes with one model each, links within them and across, and traffic.

A seed draws nodes, links, every arrival with its size and true cost, every load time and every trouble. Jobs take some tens of
milliseconds, so that a history of a million events is lived in minutes, while leases, quarantines and silences keep their real
lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from services.simulator.model.dice import Dice, dice_of, lognormal
from services.simulator.model.scenario import Arrival, Scenario

_FAMILY: Final = 5
"""Nodes that serve the same model."""
_BURSTS: Final = (1, 1, 2, 5, 20, 60)
_BURST_MEAN: Final = sum(_BURSTS) / len(_BURSTS)
_SPREAD_S: Final = 0.3
_SIZE_CV: Final = 0.6
_NOISE_CV: Final = 0.15
TROUBLES: Final = ("crash", "hang", "black_hole", "unlink", "setting", "asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Families(Scenario):
    """A cluster in which several nodes have one model. Links across families lead to helpers that have to load."""

    def model_of(self, node: int) -> int:
        """Return the model of the node's family."""
        return node // _FAMILY


def families(seed: int, nodes: int, job_s: float) -> Families:
    """Draw the cluster; a job of mean size takes about `job_s` on a node of speed 1."""
    dice = dice_of(seed)
    count = -(-nodes // _FAMILY)
    return Families(
        name="million",
        speeds=tuple(dice.choice((0.5, 0.75, 1.0, 1.5, 2.0)) for _ in range(nodes)),
        loaded=tuple(node // _FAMILY for node in range(nodes)),
        load_s=tuple(dice.uniform(0.2, 1.5) for _ in range(nodes)),
        links=_links(dice, nodes),
        unit_s=tuple(dice.uniform(0.5, 1.5) * job_s for _ in range(count)),
        arrivals=(),
        handover_s=0.002,
        control_s=0.002,
        hop_s=0.001,
        idle_before_s=0.0,
        load_cv=0.2,
    )


def _links(dice: Dice, nodes: int) -> dict[int, tuple[int, ...]]:
    """Link most nodes within their family, and every third one to a helper of another."""
    drawn: dict[int, tuple[int, ...]] = {}
    for owner in range(nodes):
        family = [node for node in range(nodes) if node != owner and node // _FAMILY == owner // _FAMILY]
        helpers = set(dice.sample(family, min(len(family), dice.choice((0, 1, 2, 3)))))
        others = [node for node in range(nodes) if node // _FAMILY != owner // _FAMILY]
        if others and owner % 3 == 0:
            helpers.add(dice.choice(others))
        if helpers:
            drawn[owner] = tuple(sorted(helpers))
    return drawn


class Traffic:
    """Bursts at every node, for as long as somebody asks: the arrivals of one virtual second after the other."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._dice = scenario, dice_of(seed + 1)
        self._per_s = [self._rate(node) for node in range(len(scenario.speeds))]

    def _rate(self, node: int) -> float:
        """Return bursts a second: some nodes are nearly idle, some get more than they can do."""
        offered = self._dice.choice((0.1, 0.3, 0.5, 0.7, 0.9, 1.15))
        capacity_per_s = self._scenario.speeds[node] / self._scenario.unit_s[self._scenario.model_of(node)]
        return offered * capacity_per_s / _BURST_MEAN

    def second(self, begin_s: float) -> Iterator[Arrival]:
        """Yield what arrives in the second from `begin_s` on."""
        for node, per_s in enumerate(self._per_s):
            at_s = begin_s + self._dice.expovariate(per_s)
            while at_s < begin_s + 1:
                for _ in range(self._dice.choice(_BURSTS)):
                    moment_s = at_s + self._dice.uniform(0, _SPREAD_S)
                    size = lognormal(self._dice, _SIZE_CV)
                    yield Arrival(moment_s, node, size, lognormal(self._dice, _NOISE_CV), native=False)
                at_s += self._dice.expovariate(per_s)

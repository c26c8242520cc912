"""What the nodes stated before the run: what they measured of services and loads, in an earlier life of theirs.

A pair of node and model whose price the scenario says is known has a full window of samples. One whose first guess is wrong
(`bias`) has samples that are wrong by that factor, as few as the guess counts for; one that is priced as its owner has none.
"""

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Final

from domain.events import BorrowFinished, Fact, Finished, LinkAdded, Loaded, SettingStated
from domain.ids import LeaseId, ModelId, RequestId
from services.simulator.model.scenario import Scenario
from services.simulator.product.names import UNIT_OF_WORK, model_number, number_of, past_request, us
from services.simulator.product.node import VirtualNode

KNOWN: Final = 50
"""Samples of a pair whose price is known: a full window."""
GUESSED: Final = 1
"""Samples that a first guess counts as."""
_LOADS: Final = 5
_SIZES: Final = (1.0, 0.4, 2.0, 0.7, 3.0)


def settings_of(scenario: Scenario) -> Iterator[SettingStated]:
    """Yield what the cluster's configuration file states where the scenario states it."""
    stated = {
        "offload_restore_delay": us(scenario.restore_after_s),
        "scheduling_backend_depth": scenario.depth,
        "scheduling_min_samples": scenario.min_samples,
        "scheduling_refresh_interval": us(scenario.tick_s),
    }
    for name, value in stated.items():
        yield SettingStated(name=f"cluster.{name}", value=value)


def history_of(scenario: Scenario, node: VirtualNode, links: list[LinkAdded]) -> Iterator[Fact]:
    """Yield the facts of what `node` has measured."""
    number = 0
    for model in node.models:
        over = next((link for link in links if (link.helper, link.helper_model) == (node.name, model)), None)
        for work, service_us in _samples(scenario, node, model_number(model), over):
            request = past_request(node.number, number)
            number += 1
            yield (
                _served(request, model, work, service_us)
                if over is None
                else _borrowed(request, over, work, service_us)
            )
        if node.shares:
            bias = scenario.load_bias.get((node.number, model_number(model)), 1.0)
            load_us = max(1, us(scenario.load_s[node.number] * bias))
            count = _LOADS if bias == 1.0 else GUESSED
            yield from [Loaded(model=model, load_us=load_us, cause="own")] * count


def _served(request: RequestId, model: ModelId, work: int, service_us: int) -> Finished:
    return Finished(request=request, model=model, work=work, service_us=service_us, status=200)


def _borrowed(request: RequestId, over: LinkAdded, work: int, service_us: int) -> BorrowFinished:
    return BorrowFinished(
        request=request,
        model=ModelId(over.helper_model),
        owner=over.owner,
        link=over.link,
        lease=LeaseId("past"),
        work=work,
        service_us=service_us,
        status=200,
        ok=True,
    )


def _samples(scenario: Scenario, node: VirtualNode, model: int, over: LinkAdded | None) -> list[tuple[int, int]]:
    """Return (work, service time) of what the node has served of a model; sizes vary where they are known."""
    factor = scenario.bias.get((node.number, model), 1.0)
    sizes = _SIZES if scenario.size_known else (scenario.mean_size_of(model),)
    unit_us = 1e6 * scenario.unit_s[model] / scenario.speeds[node.number] * factor
    count = KNOWN if factor == 1.0 else GUESSED
    if over is not None and factor != 1.0:
        owner = number_of(over.owner)
        of_owner = scenario.bias.get((owner, model), 1.0) / scenario.speeds[owner]
        if math.isclose(factor / scenario.speeds[node.number], of_owner):
            return []  # nobody measured it: the product prices it as its owner, too
    return [(round(size * UNIT_OF_WORK), round(size * unit_us)) for _, size in zip(range(count), cycle(sizes))]

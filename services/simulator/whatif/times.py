"""How long work and loads take in a run on: by the fits alone, or as recorded where something was.

A request that was served elsewhere than it is served now takes its recorded time by the ratio of the two prices.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from domain.ids import ModelId, NodeId
from domain.master import fits, reasons
from domain.master.fits import Fit, Price, cost_us, unit_q64
from domain.master.pricing import fit_rules
from domain.master.state import State, owner_key
from services.simulator.model.dice import dice_of
from services.simulator.whatif.recorded import Asked, LoadSeen

RECORDED: Final = "recorded there"
SCALED: Final = "recorded elsewhere, by the ratio of the fits"
UNSCALED: Final = "recorded elsewhere, as it was: no fit says how much faster or slower"
OWN_FIT: Final = "its own fit"
OWNER_FIT: Final = "the owner's fit, scaled by what was seen of the helper"
UNPRICED: Final = "recorded, since no fit prices it"
GUESSED: Final = "the mean of what was recorded, since nothing says"

_LUCK_LEAST: Final = 1e-3


class Times(ABC):
    """Says how long things take, and counts on what ground."""

    def __init__(self, state: State, asked: Sequence[Asked]) -> None:
        """`state`: whose fits are known."""
        self._state = state
        self.sources: Counter[str] = Counter()
        served = [one.service_us for one in asked if one.service_us]
        self._mean_us = sum(served) // len(served) if served else 1_000_000

    @abstractmethod
    def service_us(self, number: int, one: Asked, node: NodeId, model: ModelId) -> int:
        """Return what request `number` takes on a node's model."""

    @abstractmethod
    def load_us(self, node: NodeId, model: ModelId) -> int:
        """Return what loading takes."""

    def _said(self, source: str, took_us: int) -> int:
        self.sources[source] += 1
        return max(1, took_us)

    def _price(self, one: Asked, node: NodeId, model: ModelId) -> Price | None:
        """Return what the fits say of a request's work there: the very price that the master would name."""
        state, key = self._state, owner_key(node, model)
        prior = state.fits.get(one.key) if key != one.key else None
        return fits.price(state.fits.get(key), prior, fit_rules(state, key), state.now_us, one.work)

    def _by_price(self, price: Price, work: int) -> int:
        return cost_us(unit_q64(price.log), work)

    def ratio(self, one: Asked, node: NodeId, model: ModelId) -> float:
        """Return how much faster than its owner a node serves a request, by the fits; 1 where they do not say."""
        here, there = self._price(one, one.owner, one.model), self._price(one, node, model)
        if here is None or there is None:
            return 1.0
        return self._by_price(here, one.work) / self._by_price(there, one.work)

    def load_by_fit_us(self, node: NodeId, model: ModelId) -> int:
        """Return the median of the loads that were measured; 0 if none was."""
        fit = self._state.fits.get(owner_key(node, model)) or Fit()
        took = sorted(fit.loads_us)
        return took[len(took) // 2] if took else 0


class FitTimes(Times):
    """By the fits alone, with the spread of their samples: `draw` 0 is the mean, others throw each request's luck."""

    def __init__(self, state: State, asked: Sequence[Asked], draw: int = 0) -> None:
        super().__init__(state, asked)
        dice = dice_of(draw)
        luck = {key: spread(state.fits[key]) for key in {one.key for one in asked} if key in state.fits}
        self._luck = [dice.choice(luck[one.key]) if draw and luck.get(one.key) else 1.0 for one in asked]

    def service_us(self, number: int, one: Asked, node: NodeId, model: ModelId) -> int:
        """Return the price, by the request's luck: it is the same on every node."""
        price = self._price(one, node, model)
        if price is None:
            return self._said(UNPRICED, one.service_us) if one.service_us else self._said(GUESSED, self._mean_us)
        source = OWN_FIT if price.source == reasons.HELPER_FIT else OWNER_FIT
        return self._said(source, round(self._by_price(price, one.work) * self._luck[number]))

    def load_us(self, node: NodeId, model: ModelId) -> int:
        """Return the median of what was measured; 0 if nothing was."""
        return self.load_by_fit_us(node, model)


class RecordedTimes(Times):
    """As recorded: each request where it ran, each load there in its turn; else by the fits."""

    def __init__(self, state: State, asked: Sequence[Asked], loads: Sequence[LoadSeen]) -> None:
        super().__init__(state, asked)
        self._loads: dict[tuple[NodeId, ModelId], deque[int]] = {}
        for load in loads:
            self._loads.setdefault((load.node, load.model), deque()).append(load.load_us)

    def service_us(self, number: int, one: Asked, node: NodeId, model: ModelId) -> int:
        """Return the recorded time, by the ratio of the prices if it ran elsewhere."""
        del number
        if not one.service_us:
            price = self._price(one, node, model)
            return self._said(GUESSED, self._mean_us if price is None else self._by_price(price, one.work))
        if one.ran_at == (node, model):
            return self._said(RECORDED, one.service_us)
        here, there = self._price(one, node, model), self._price(one, *one.ran_at)
        if here is None or there is None:
            return self._said(UNSCALED, one.service_us)
        ratio = self._by_price(here, one.work) / self._by_price(there, one.work)
        return self._said(SCALED, round(one.service_us * ratio))

    def load_us(self, node: NodeId, model: ModelId) -> int:
        """Return the next recorded load; the median of what was measured once they are used up."""
        recorded = self._loads.get((node, model))
        return recorded.popleft() if recorded else self.load_by_fit_us(node, model)


def spread(fit: Fit) -> list[float]:
    """Return what each sample took by what the fit says that it should: their mean, by work, is 1. Empty if there is none."""
    if not fit.works:
        return []
    unit = sum(fit.services_us) / sum(fit.works)
    return [service_us / (work * unit) for service_us, work in zip(fit.services_us, fit.works, strict=True)]


def varies(state: State, asked: Sequence[Asked]) -> bool:
    """Tell whether luck has a part in what the fits say of these requests."""
    spreads = (spread(state.fits[key]) for key in {one.key for one in asked} if key in state.fits)
    return any(max(each) - min(each) > _LUCK_LEAST for each in spreads if each)

"""What work costs on one node and model: learned from its newest successful runs, priced in the log of time per unit of work.

time = work * unit. Two figures are kept of a window of samples, both after each log of `service / work` was clipped at three
deviations from the median, so that a straggler counts as a long run and not as ten:

- the *level*, ln(sum of services / sum of works): the mean. Where all runs did the same work it is that work's mean duration,
  where sizes vary it scales with them. It is what a backlog costs, since a drain is a sum.
- the *middle*, the mean of the logs: a geometric mean. It lies below the level, the further the heavier the tail (by a factor
  of 2.2 where durations of equal work vary twice as much as their mean), and it settles much sooner.

A helper is the owner's level times the ratio of the two middles, shrunk towards 1 with the weight of one sample. The tail
belongs to the traffic, and both serve the same: taken from the owner for both, it cancels where they are compared, and a helper
seen once or twice is not taken for faster because its runs missed the tail. Two middles, or two levels, would not do: the first
underestimate both drains, the second make an unlucky run of the helper its price. Source: docs/discussions/pricing.md.

*The same work*: while all samples did the same, nothing is known of how the time grows with the work, so only that work has a
price. Text is measured in estimated tokens: there works within a factor of 2 of each other are the same.

A backlog is priced at its mean work, and one request of an odd size moves that out of what was measured. It would leave all the
others, which are, without a price and at their owner: so while anything that is held is of a measured size, the mean is taken for
the nearest size that has a price. The drain of the odd one is then a guess, as wrong as that one request is odd; it is the
others' that decides, and the first answer of another size ends the guessing. Where nothing held was ever measured, there is no
price.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec

from domain import fixed
from domain.master import reasons

WINDOW = 50
"""Samples kept; the oldest goes first."""
LOADS = 20
"""Loads kept."""
PRIOR_WEIGHT = 1
"""How many samples the prior counts as."""
MIN_SAMPLES = 20
"""Default of the setting from which on a helper's price is called its own fit; below, the owner's with what was seen so far."""
CLIP_FROM = 5
"""Samples from which on the deviation says something."""

COST_US_MAX = 10**12
"""A price beyond this means nothing: with it, every sum of prices stays inside 64 bits."""
_SAME_ESTIMATED = 2
_CLIP_NUM, _CLIP_DEN = 3 * 14826, 10_000
"""Three times the median deviation, scaled to the standard deviation of a normal distribution ..."""
_CLIP_LEAST = fixed.ONE // 20
"""... and 5 % more: equal runs have no deviation at all."""


class FitRules(msgspec.Struct, frozen=True):
    """The settings that a price follows."""

    window_us: int
    """Samples older than this do not count."""
    min_samples: int = MIN_SAMPLES
    hard_switch: bool = False
    """Price by a model's own samples alone, and only from `min_samples` on, as a plain mean without clip or prior."""
    estimated: bool = False
    """Work is an estimate (text): within a factor of 2 it is the same."""


def rules_of(setting: Callable[[str], int], lane: str) -> FitRules:
    """Return the rules of a lane; `setting` gives the effective value of a setting by its bare name."""
    return FitRules(
        window_us=setting("scheduling_sample_window"),
        min_samples=min(setting("scheduling_min_samples"), WINDOW),
        hard_switch=bool(setting("scheduling_hard_switch")),
        estimated=lane == "text",
    )


class Measured(msgspec.Struct, frozen=True, gc=False):
    """What a set of samples says. Logs are ln(us per unit of work) in Q32."""

    samples: int
    level: int
    middle: int
    plain: int
    """The level without the clip."""
    least: int
    """The least work among them ..."""
    most: int
    """... and the most."""

    def prices(self, work: int, rules: FitRules) -> bool:
        """Tell whether runs of this `work` have a price: sizes vary, or it is the same as what was done."""
        factor = _SAME_ESTIMATED if rules.estimated else 1
        varies = self.most > factor * self.least
        return varies or (self.least <= factor * work and work <= factor * self.most)

    def priced(self, backlog: "Backlog", rules: FitRules) -> int | None:
        """Return the work that stands for a request of a backlog: its mean, or the nearest to it that has a price; or None.

        None: nothing that is held has one.
        """
        mean = backlog.mean
        if self.prices(mean, rules):
            return mean
        factor = _SAME_ESTIMATED if rules.estimated else 1
        least, most = -(-self.least // factor), self.most * factor
        return min(max(mean, least), most) if backlog.has_between(least, most) else None


class Backlog:
    """The works of what one owner holds, as a plan asks for them; made for one plan."""

    def __init__(self, mean: int, works: Callable[[], Iterable[int]]) -> None:
        """`works` gives all of them, and is asked only if their mean has no price."""
        self.mean = mean
        self._works = works
        self._ordered: list[int] | None = None

    def has_between(self, least: int, most: int) -> bool:
        """Tell whether any work is one of these, both ends included."""
        if self._ordered is None:
            self._ordered = sorted(self._works())
        at = bisect_left(self._ordered, least)
        return at < len(self._ordered) and self._ordered[at] <= most


class Price(msgspec.Struct, frozen=True, gc=False):
    """What a unit of work costs, and how far to trust it."""

    log: int
    """ln(us per unit of work) in Q32; see unit_q64."""
    source: str
    """`helper` or `owner_fallback`; always `helper` where the model is priced by its own samples alone."""
    samples: int
    """How many runs of this very model are behind it."""


class _Sums(msgspec.Struct):
    """What a summary needs of all samples, carried on from one sample to the next beside the state."""

    work: int
    served_us: int
    logs: int
    ordered: list[int]
    """The logs, sorted."""

    @staticmethod
    def of(works: Sequence[int], services_us: Sequence[int], logs: Sequence[int]) -> "_Sums":
        """Sum up from the beginning."""
        return _Sums(sum(works), sum(services_us), sum(logs), sorted(logs))

    def add(self, work: int, service_us: int, log: int) -> None:
        """Take one more."""
        self.work += work
        self.served_us += service_us
        self.logs += log
        insort(self.ordered, log)

    def remove(self, work: int, service_us: int, log: int) -> None:
        """Take one out that is in."""
        self.work -= work
        self.served_us -= service_us
        self.logs -= log
        del self.ordered[bisect_left(self.ordered, log)]


class Fit(msgspec.Struct, dict=True):
    """The newest samples of one (node, model), oldest first but for the turn of the ring at `next`; plain integers."""

    works: list[int] = []
    services_us: list[int] = []
    logs: list[int] = []
    """ln(service / work) of each in Q32."""
    at_us: list[int] = []
    """Domain time of each."""
    next: int = 0
    """Place of the oldest sample once the ring is full."""
    loads_us: list[int] = []
    """Measured loads of this model there, newest last."""
    loads_at_us: list[int] = []

    def learn(self, work: int, service_us: int, now_us: int) -> None:
        """Take one successful run that ended at domain time `now_us`. Runs without work or time say nothing and are left out."""
        if work <= 0 or service_us <= 0:
            return
        service_us = min(service_us, COST_US_MAX)
        log = fixed.ln_q32(service_us, work)
        sums: _Sums | None = self.__dict__.get("sums")
        if sums is not None:
            self.__dict__.pop("summed", None)
            sums.add(work, service_us, log)
        if len(self.works) == WINDOW:
            at = self.next
            if sums is not None:
                sums.remove(self.works[at], self.services_us[at], self.logs[at])
            self.works[at], self.services_us[at], self.logs[at], self.at_us[at] = work, service_us, log, now_us
            self.next = (at + 1) % WINDOW
        else:
            self.works.append(work)
            self.services_us.append(service_us)
            self.logs.append(log)
            self.at_us.append(now_us)

    def summary(self) -> Measured:
        """Return what all samples say; there is one at least.

        Summed up when somebody asks, and kept beside the state until the next sample comes: most models stand in no link, and
        nobody ever asks for their price.
        """
        known: Measured | None = self.__dict__.get("summed")
        if known is None:
            sums: _Sums | None = self.__dict__.get("sums")
            if sums is None:
                sums = self.__dict__["sums"] = _Sums.of(self.works, self.services_us, self.logs)
            known = self.__dict__["summed"] = _measure(self.works, self.services_us, self.logs, sums)
        return known

    def learn_load(self, load_us: int, now_us: int) -> None:
        """Take one successful load that ended at `now_us`, followed by a generation or not."""
        if load_us > 0:
            self.loads_us = [*self.loads_us[1 - LOADS :], min(load_us, COST_US_MAX)]
            self.loads_at_us = [*self.loads_at_us[1 - LOADS :], now_us]

    def measured(self, now_us: int, window_us: int) -> Measured | None:
        """Return what the samples of the window say; None without one.

        While none has expired this costs nothing. Reading changes nothing of the state: what expired goes when a newer sample
        takes its place.
        """
        if not self.works:
            return None
        since_us = now_us - window_us
        if self.at_us[self.next] >= since_us:  # the oldest
            known: Measured | None = self.__dict__.get("summed")
            return self.summary() if known is None else known
        kept = [place for place, at_us in enumerate(self.at_us) if at_us >= since_us]
        if not kept:
            return None
        rings = (self.works, self.services_us, self.logs)
        return _measure_rest(*(tuple(ring[place] for place in kept) for ring in rings))

    def load_us(self, now_us: int, window_us: int) -> int | None:
        """Return the median of the loads in the window, or None without one."""
        since_us = now_us - window_us
        kept = sorted(load for load, at_us in zip(self.loads_us, self.loads_at_us, strict=True) if at_us >= since_us)
        return kept[len(kept) // 2] if kept else None


def price(fit: Fit | None, prior: Fit | None, rules: FitRules, now_us: int, work: int) -> Price | None:
    """Return what `work` costs the model of `fit`; None if nothing is known of it, which is not the same as free.

    Args:
        fit: the model's own samples, if there are any.
        prior: what stands in while they are few: for a helper the owner's samples, for an owner None.
        rules: see FitRules.
        now_us: domain time.
        work: the work of the job that is priced, in its lane's units.
    """
    return compared(usable(fit, rules, now_us, work), usable(prior, rules, now_us, work), rules)


def usable(fit: Fit | None, rules: FitRules, now_us: int, work: int) -> Measured | None:
    """Return what the samples of the window say; None without one, and where they do not price this work."""
    measured = fit.measured(now_us, rules.window_us) if fit is not None else None
    return measured if measured is not None and measured.prices(work, rules) else None


def compared(own: Measured | None, theirs: Measured | None, rules: FitRules) -> Price | None:
    """Return what `price` does, of what is usable of the model's own samples and of those that stand in for them."""
    if rules.hard_switch:
        return _switched(own, theirs, rules)
    if own is None:
        return None if theirs is None else Price(theirs.level, reasons.OWNER_FALLBACK, 0)
    if theirs is None:
        return Price(own.level, reasons.HELPER_FIT, own.samples)
    shift = (own.middle - theirs.middle) * own.samples // (own.samples + PRIOR_WEIGHT)
    source = reasons.HELPER_FIT if own.samples >= rules.min_samples else reasons.OWNER_FALLBACK
    return Price(theirs.level + shift, source, own.samples)


def _switched(own: Measured | None, theirs: Measured | None, rules: FitRules) -> Price | None:
    if own is not None and own.samples >= rules.min_samples:
        return Price(own.plain, reasons.HELPER_FIT, own.samples)
    if theirs is not None and theirs.samples >= rules.min_samples:
        return Price(theirs.plain, reasons.OWNER_FALLBACK, own.samples if own is not None else 0)
    return None


@lru_cache(maxsize=1024)  # the same rest of a window is asked for until the next sample expires
def _measure_rest(works: tuple[int, ...], services_us: tuple[int, ...], logs: tuple[int, ...]) -> Measured:
    return _measure(works, services_us, logs, _Sums.of(works, services_us, logs))


def _measure(works: Sequence[int], services_us: Sequence[int], logs: Sequence[int], sums: _Sums) -> Measured:
    """Return what these samples say; there is at least one. `sums`: theirs."""
    ordered, count, total, served_us, summed = sums.ordered, len(logs), sums.work, sums.served_us, sums.logs
    level = plain = fixed.ln_q32(served_us, total)
    low, high = _bounds(ordered)
    if ordered[0] < low or ordered[-1] > high:  # else the clip changes nothing
        below, above = bisect_left(ordered, low), bisect_right(ordered, high)
        summed = sum(ordered[below:above]) + below * low + (count - above) * high
        for work, service_us, log in zip(works, services_us, logs, strict=True):
            if log < low:
                served_us += cost_us(unit_q64(low), work) - service_us
            elif log > high:
                served_us += cost_us(unit_q64(high), work) - service_us
        level = fixed.ln_q32(served_us, total)
    return Measured(count, level, summed // count, plain, min(works), max(works))


def _bounds(ordered: Sequence[int]) -> tuple[int, int]:
    """Return between which logs, of these, a sample is taken at its word."""
    if len(ordered) < CLIP_FROM:
        return ordered[0], ordered[-1]
    middle = _median(ordered)
    reach = _middle_distance(ordered, middle) * _CLIP_NUM // _CLIP_DEN + _CLIP_LEAST
    return middle - reach, middle + reach


def _middle_distance(ordered: Sequence[int], middle: int) -> int:
    """Return the median of the distances from `middle`."""
    half = len(ordered) // 2
    if len(ordered) % 2:
        return _nearest(ordered, middle, half + 1)
    return (_nearest(ordered, middle, half) + _nearest(ordered, middle, half + 1)) // 2


def _nearest(ordered: Sequence[int], middle: int, count: int) -> int:
    """Return the largest distance of the `count` nearest to `middle`, which lies among them.

    They stand side by side. The further on such a run begins, the nearer is its first and the further its last: the best run is
    the first whose last is the further one, or the one before it.
    """
    low, high = 0, len(ordered) - count
    while low < high:
        at = (low + high) // 2
        if ordered[at] + ordered[at + count - 1] < 2 * middle:
            low = at + 1
        else:
            high = at
    best = max(middle - ordered[low], ordered[low + count - 1] - middle)
    if low:
        best = min(best, max(middle - ordered[low - 1], ordered[low + count - 2] - middle))
    return best


def _median(ordered: Sequence[int]) -> int:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


@lru_cache(maxsize=4096)  # a plan asks for the same few again and again, and a logarithm changes only with a sample
def unit_q64(log_q32: int) -> int:
    """Return e**log as microseconds per unit of work, with 64 fraction bits.

    A unit of work is a micro-token, so its cost is far below a microsecond: 32 more bits keep what matters of it.
    """
    return fixed.exp_q32(log_q32 + 32 * _LN2_Q32)


def cost_us(unit: int, work: int) -> int:
    """Return the microseconds that `work` takes at `unit` (of unit_q64); at least 1, and 11 days at most."""
    cost = work * unit >> 64
    if 0 < cost < COST_US_MAX:
        return cost
    return 1 if cost <= 0 else COST_US_MAX


_LN2_Q32 = fixed.ln_q32(2)

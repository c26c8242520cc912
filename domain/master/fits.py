"""What work costs on one node and model: the mean log of time per unit of work, over a window of samples.

time = work * unit, and unit is estimated as exp of the mean of ln(service / work), shrunk towards a prior that counts as one
sample: a geometric mean, so that one straggler of ten times the usual length moves it by a tenth of what it moves a mean.
Source: the estimator comparison in docs/discussions/pricing.md ("prior x shrunk log ratio").
"""

from functools import lru_cache

import msgspec

from domain import fixed

WINDOW = 50
"""Samples kept; the oldest goes first."""
PRIOR_WEIGHT = 1
"""How many samples the prior counts as."""
MIN_SAMPLES = 20
"""Default of the setting from which on a helper's price is called its own fit; below, the owner's with what was seen so far."""

COST_US_MAX = 10**12
"""A price beyond this means nothing: with it, every sum of prices stays inside 64 bits."""


class Fit(msgspec.Struct):
    """Samples of one (node, model): ln(service_us / work) in Q32, a ring."""

    logs: list[int] = []
    next: int = 0
    total: int = 0
    """Sum of `logs`."""
    loads_us: list[int] = []
    """Measured loads of this model there, newest last."""

    def learn(self, work: int, service_us: int) -> None:
        """Take one successful run. Runs without work or without time say nothing and are left out."""
        if work <= 0 or service_us <= 0:
            return
        log = fixed.ln_q32(service_us, work)
        if len(self.logs) < WINDOW:
            self.logs.append(log)
        else:
            self.total -= self.logs[self.next]
            self.logs[self.next] = log
            self.next = (self.next + 1) % WINDOW
        self.total += log

    def learn_load(self, load_us: int) -> None:
        """Take one successful load, followed by a generation or not."""
        if load_us > 0:
            self.loads_us = [*self.loads_us[-19:], load_us]

    def mean_log(self) -> int | None:
        """Return the mean ln(us per unit of work) in Q32, or None without a sample."""
        return self.total // len(self.logs) if self.logs else None

    def shrunk_log(self, prior_log: int | None) -> int | None:
        """Return the mean shrunk towards `prior_log`; either may be missing, None if both are."""
        if prior_log is None:
            return self.mean_log()
        return (prior_log * PRIOR_WEIGHT + self.total) // (PRIOR_WEIGHT + len(self.logs))

    def load_us(self) -> int | None:
        """Return the median of the measured loads, or None without one."""
        if not self.loads_us:
            return None
        return sorted(self.loads_us)[len(self.loads_us) // 2]


@lru_cache(maxsize=4096)  # a plan asks for the same few again and again, and a logarithm changes only with a sample
def unit_q64(log_q32: int) -> int:
    """Return e**log as microseconds per unit of work, with 64 fraction bits.

    A unit of work is a micro-token, so its cost is far below a microsecond: 32 more bits keep what matters of it.
    """
    return fixed.exp_q32(log_q32 + 32 * _LN2_Q32)


def cost_us(unit: int, work: int) -> int:
    """Return the microseconds that `work` takes at `unit` (of unit_q64); at least 1, and 11 days at most."""
    return min(max(1, work * unit >> 64), COST_US_MAX)


_LN2_Q32 = fixed.ln_q32(2)

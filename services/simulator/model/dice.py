"""Seeded dice: the one place of the simulator that makes chance, so that a seed gives the same run on every machine."""

import math
from random import Random  # noqa: TID251  # seeded by the caller; the machine's own dice stay in adapters/clock.py
from typing import Final

_MASK: Final = (1 << 64) - 1
_PRIMES: Final = (11400714785074694791, 14029467366897019727, 2870177450012600261)

Dice = Random


def dice_of(seed: int) -> Dice:
    """Return dice that fall the same way for the same `seed`."""
    return Random(seed)  # noqa: S311  # chance for a simulation, not for a secret


def lognormal(dice: Dice, cv: float) -> float:
    """Return a factor with mean 1 and coefficient of variation `cv`; with none, nothing is thrown."""
    if not cv:
        return 1.0
    sigma = math.sqrt(math.log(1 + cv * cv))
    return math.exp(dice.gauss(-sigma * sigma / 2, sigma))


def lognormal_factor(dice: Dice, sigma: float) -> float:
    """Return a factor with median 1 whose logarithm spreads by `sigma`; with none, nothing is thrown."""
    return math.exp(dice.gauss(0, sigma)) if sigma else 1.0


def name_number(name: str) -> int:
    """Return a small number that stands for `name`: scenarios of different names get different dice."""
    return sum((place + 1) * ord(char) for place, char in enumerate(name)) % 9973


def cell_number(*values: int) -> int:
    """Return 16 bits that stand for `values`, none of them negative.

    It is what CPython (3.8 and later, 64 bits) says for the hash of their tuple, spelt out so that no interpreter's
    hash decides what a seed means.
    """
    p1, p2, p5 = _PRIMES
    mixed = p5
    for value in values:
        mixed = mixed + value * p2 & _MASK
        mixed = (mixed << 31 | mixed >> 33) & _MASK
        mixed = mixed * p1 & _MASK
    return (mixed + (len(values) ^ (p5 ^ 3527539))) & 0xFFFF

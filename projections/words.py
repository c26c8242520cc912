"""Numbers as people read them."""

from typing import Final

_US_PER: Final = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))


def duration(us: int) -> str:
    """Return microseconds as people read them: `1.25 s`; a negative one is unknown."""
    if us < 0:
        return "-"
    for unit, size in _US_PER:
        if us >= size - size // 2000:  # what is shown as 1000 of a unit is 1 of the next
            return f"{us / size:.3g} {unit}"
    return f"{us} us"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 slot`, `2 slots`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""When the earliest timer of the state has run out: domain time stands still between facts, so a clock has to tell."""

from typing import Final

from domain.master.timers import ELAPSED_US_MAX

AGAIN_AFTER_US: Final = 5_000_000
"""What was stated and not folded yet is stated again after so long."""


class Alarm:
    """Follows domain time and says when a timer in it must have run out."""

    def __init__(self) -> None:
        self._domain_us = -1
        self._moved_at_us = 0
        """Monotonic time at which domain time was last seen to move."""
        self._rung_at_us: int | None = None

    def rings(self, domain_us: int, due_us: int | None, now_us: int) -> int | None:
        """Return how long domain time has stood still if `due_us` is reached with that; None if not, or if it was said.

        Also after as long as one alarm moves domain time, if `due_us` is further away.
        """
        if domain_us != self._domain_us:
            self._domain_us, self._moved_at_us, self._rung_at_us = domain_us, now_us, None
        still_us = now_us - self._moved_at_us
        if due_us is None or (domain_us + still_us < due_us and still_us < ELAPSED_US_MAX):
            return None
        if self._rung_at_us is not None and now_us - self._rung_at_us < AGAIN_AFTER_US:
            return None
        self._rung_at_us = now_us
        return still_us

    def left_us(self, due_us: int | None, now_us: int) -> int:
        """Return how long it is, as of the last look, until `due_us` is reached; long where nothing is due, or it was said."""
        if due_us is None or self._rung_at_us is not None:
            return AGAIN_AFTER_US
        return max(0, min(due_us - self._domain_us, ELAPSED_US_MAX) - (now_us - self._moved_at_us))

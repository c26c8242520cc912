"""How fast a queue drains, as measured; what a refused client is told to wait."""

from collections import deque

_WINDOW = 16
_UNKNOWN_S = 5
_RETRY_AFTER_S_MAX = 600
_US_PER_S = 1_000_000


class DrainRate:
    """The moments of the last departures. Deterministic, integers only."""

    def __init__(self) -> None:
        self._left_us: deque[int] = deque(maxlen=_WINDOW)
        self._refused = 0

    def departed(self, now_us: int) -> None:
        """Note that a request ended, and so made room for one that was refused."""
        self._left_us.append(now_us)
        self._refused = max(0, self._refused - 1)

    def refused(self) -> None:
        """Note that a request was refused: it stands, in a way, in the line before the next one."""
        self._refused += 1

    def retry_after_s(self, now_us: int) -> int:
        """Return when a place should be free for the one refused last, counting those before it: 1 to 600 seconds.

        So the clients that were refused at once do not come back at once.
        """
        if len(self._left_us) < 2:
            return _UNKNOWN_S
        # The time since the last departure counts, so that a queue that stands still is not taken for a fast one.
        interval_us = max(1, (now_us - self._left_us[0]) // (len(self._left_us) - 1))
        wait_us = interval_us * max(1, self._refused)
        return min(_RETRY_AFTER_S_MAX, max(1, -(-wait_us // _US_PER_S)))

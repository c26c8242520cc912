"""What borrowed work drove out of a runtime, and when to load it back."""

from collections import deque

from domain.ids import ModelId
from domain.inputs import RoomConfig

_GAPS, _VISITS = 16, 8
_DOUBT_US = 5_000_000
"""Added to the time in which own requests were counted: half a request more might have come."""
_AGAIN_US = 100_000
"""Who finds the node busy looks again no sooner."""
_NEVER_US, _NEVER_FACTOR = 60_000_000, 10
"""Without any own request yet, the next one is expected after ten times the idle time and a minute."""
_KEEP_PAUSES, _KEEP_US_MAX = 16, 86_400_000_000
"""A borrowed model is kept for so many times the longest pause between its visits, and for a day, at most.

Both rates fall alike while nothing comes, so they alone would keep it for ever.
"""


class Restore:
    """The displaced model of one runtime and the quiet time before it is loaded back. Integers only."""

    def __init__(self, config: RoomConfig) -> None:
        self.delay_us = config.restore_delay_us
        self.keep = config.keep_while_likely
        self.displaced: ModelId | None = None
        """What was loaded before the run of borrowed work that drove it out."""
        self.wanted = False
        """A link of the run wants it back."""
        self.at_once = False
        """A load for borrowed work failed: nothing is loaded, so nothing is worth waiting for."""
        self.due_us: int | None = None
        """When to look whether the node is quiet; None if no restore is scheduled."""
        self._visits: deque[int] = deque(maxlen=_VISITS)
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._last_borrow_us: int | None = None
        """When a borrowed request last came or left."""
        self._last_own_us: int | None = None
        self._began_us = 0
        self.starting: ModelId | None = None
        """What the node itself loads at its start, until that load has ended or another has taken its place."""

    def begin(self, now_us: int, starting: ModelId | None) -> None:
        """Count idle time from now."""
        self._began_us, self.starting = now_us, starting

    def displace(self, leaving: ModelId | None) -> None:
        """Note what a load for borrowed work drives out: the first of a run is restored, if a link of the run says so.

        A load of the node's own that it breaks off counts as what is loaded: it would be, but for the borrowed work.
        """
        if self.displaced is None:
            self.displaced, self.wanted = leaving or self.starting, False
        self.starting = None

    def forget(self) -> None:
        """Note that the run is over: what it displaced is back, or the node's own work chose another model."""
        self.displaced, self.due_us, self.starting = None, None, None
        self.wanted = self.at_once = False

    def schedule(self, now_us: int) -> None:
        """Look for the first time after the delay."""
        self.due_us = now_us + self.delay_us

    def put_off(self, now_us: int) -> None:
        """Look again a whole delay later, however short that is."""
        self.due_us = now_us + max(self.delay_us, _AGAIN_US)

    def own_came(self, now_us: int) -> None:
        """Note a request of the node's own."""
        if self._last_own_us is not None:
            self._gaps.append(now_us - self._last_own_us)
        self._last_own_us = now_us

    def borrow_came(self, now_us: int, *, alone: bool) -> None:
        """Note a borrowed request. `alone`: no other is here; after more than the delay, it begins another visit."""
        if self._last_borrow_us is not None and alone and now_us - self._last_borrow_us > self.delay_us:
            self._visits.append(now_us - self._last_borrow_us)
        self._last_borrow_us = now_us
        if self.due_us is not None:
            self.put_off(now_us)

    def borrow_left(self, now_us: int) -> None:
        """Note that a borrowed request left the engine: what comes soon after it belongs to the same visit."""
        self._last_borrow_us = now_us

    def keeps(self, now_us: int, switch_us: int, back_us: int) -> bool:
        """Tell whether the borrowed model stays: its next visit, by the switch, is likelier than the next own by the way back.

        visits a second x `switch_us` > own requests a second x `back_us`, multiplied out. Before a second visit: no. Nor once
        none has come for 16 times the longest pause between the last visits, or for a day.
        """
        if not self.keep or not self._visits or self._last_borrow_us is None:
            return False
        quiet_us = now_us - self._last_borrow_us
        if quiet_us >= min(_KEEP_PAUSES * max(self._visits), _KEEP_US_MAX):
            return False
        visits_us = sum(self._visits) + quiet_us
        own, own_us = self._own_rate(now_us)
        return len(self._visits) * switch_us * own_us > own * back_us * visits_us

    def _own_rate(self, now_us: int) -> tuple[int, int]:
        """Return own requests and the time they took to come, with half a request of doubt, both doubled."""
        if self._last_own_us is None:
            return 1, _NEVER_FACTOR * (now_us - self._began_us + _NEVER_US)
        counted_us = sum(self._gaps) + now_us - self._last_own_us + _DOUBT_US
        return 2 * len(self._gaps) + 1, 2 * counted_us

"""Switches that make a memory stream go wrong in the ways that a real one does.

Each switch arms the next `count` publishes; switches that are armed together are used up in the order they were thrown.
"""

from collections import deque
from typing import Final

LOSE_ACK: Final = "lose_ack"
LATE: Final = "late"
LOSE: Final = "lose"
TWICE: Final = "twice"
REFUSE: Final = "refuse"
NOTHING: Final = "nothing"


class Faults:
    """What shall happen to the next publishes of one stream."""

    def __init__(self) -> None:
        self._armed: deque[tuple[str, str]] = deque()
        self.paused = False
        """While true nothing is stored or read, as with a frozen server; what was published meanwhile is stored after it."""

    def lose_ack(self, count: int = 1) -> None:
        """Store the next `count` messages, but answer with a timeout."""
        self._arm(LOSE_ACK, count)

    def late(self, count: int = 1) -> None:
        """Answer the next `count` publishes with a timeout and store them only when `MemoryStream.deliver_late` is called."""
        self._arm(LATE, count)

    def lose(self, count: int = 1) -> None:
        """Answer the next `count` publishes with a timeout and never store them."""
        self._arm(LOSE, count)

    def twice(self, count: int = 1) -> None:
        """Store each of the next `count` messages twice, as a re-sent message does after the deduplication window."""
        self._arm(TWICE, count)

    def refuse(self, count: int = 1, reason: str = "full") -> None:
        """Refuse the next `count` publishes for `reason` (too_large, full, not_allowed)."""
        self._arm(REFUSE, count, reason)

    def let_pass(self, count: int = 1) -> None:
        """Leave the next `count` publishes alone: a place holder between other switches."""
        self._arm(NOTHING, count)

    def clear(self) -> None:
        """Disarm every switch that was not used up; a pause stays."""
        self._armed.clear()

    def take(self) -> tuple[str, str]:
        """Return (fault, detail) for the publish that happens now."""
        return self._armed.popleft() if self._armed else (NOTHING, "")

    def _arm(self, fault: str, count: int, detail: str = "") -> None:
        self._armed.extend([(fault, detail)] * count)

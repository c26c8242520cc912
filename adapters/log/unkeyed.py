"""A reader without the cluster's secret: it cannot tell a forged fact by itself, but believes what commits say they refused.

So whoever may read the streams but does not hold the keys (the projector) folds the same state as the master, for every range
that is committed. What comes after the newest commit it takes for true; nothing is ever decided by it.
"""

from collections.abc import Sequence

from adapters.log.reader import BAD_MAC, Reader
from domain.master.inputs import FactOrRejected, Rejected
from domain.ports import StoredMessage


class UnkeyedReader(Reader):
    """Judges everything about a message but its authentication tag; that is as the commit says (`told`)."""

    def __init__(self, cluster: str) -> None:
        super().__init__(cluster, "")
        self._forged: frozenset[int] = frozenset()

    def told(self, rejected: Sequence[tuple[int, str]]) -> None:
        """Take note of the forged messages of the range that is read next."""
        self._forged = frozenset(seq for seq, code in rejected if code == BAD_MAC)

    def fact(self, message: StoredMessage) -> FactOrRejected:
        """Return the fact or observation in `message`, or why it is or was refused."""
        if message.seq in self._forged:
            return Rejected(message.seq, message.stamp_ns // 1000, BAD_MAC)
        return super().fact(message)

    def _authentic(self, body: bytes, who: str) -> bool:
        del body, who
        return True

"""What a process has taken of a stream, so that following it anew from its beginning brings nothing twice."""

from domain.ports import StoredMessage


class Taken:
    """How far a stream was taken."""

    def __init__(self) -> None:
        self._seq = self._stamp_ns = 0

    def is_new(self, message: StoredMessage) -> bool:
        """Take a stored message; tell whether it had not come before.

        The last word on a link or a setting holds, so an older one must not come after it, if only for a moment. A sequence
        that was taken but has a later stamp is of a stream that was made anew.
        """
        if message.seq <= self._seq and message.stamp_ns <= self._stamp_ns:
            return False
        self._seq, self._stamp_ns = message.seq, max(self._stamp_ns, message.stamp_ns)
        return True

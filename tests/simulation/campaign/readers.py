"""The product's reader for all masters of a run: what one has judged, the next need not judge again."""

from adapters.log.reader import Reader
from domain.master.inputs import FactOrRejected
from domain.ports import StoredMessage


class SharedReader(Reader):
    """A reader that remembers its verdict on each stored message. It is pure, so that changes nothing but the time it takes."""

    def __init__(self, cluster: str, mac_secret: str) -> None:
        super().__init__(cluster, mac_secret)
        self._judged: dict[int, tuple[StoredMessage, FactOrRejected]] = {}

    def fact(self, message: StoredMessage) -> FactOrRejected:
        known = self._judged.get(message.seq)
        if known is not None and known[0] is message:
            return known[1]
        verdict = super().fact(message)
        self._judged[message.seq] = message, verdict
        return verdict
